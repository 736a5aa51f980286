"""The inequalities of Hahn & Rofin 2024 as numbers: sensitivity against LayerNorm blowup and against sharpness.

Two classes of guarantee live here and must not be mixed. Exact: the finite-n sharpness inequalities (spec A.10), the
LayerNorm caps (A.3, A.4) and the automaton bound (A.12) hold for every model and may be asserted. Up to a constant: the
Lipschitz-type bounds and the trade-offs (A.6 to A.9) contain a factor C whose polynomial part no source gives, so the
caller names it; without it only the C that a measurement *implies* is available (A.11). `log` is the natural logarithm.
Sensitivity is s(f,x) = 1/4 sum_i (f(x) - f(x^i))^2, its mean as_n(f), on ±1 inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from modelprops.errors import ArgumentError


def _at_least(name: str, given: float, least: float) -> None:
    if not (math.isfinite(given) and given >= least):
        raise ArgumentError(
            f"{name}={given!r}: it must be a finite number of at least {least:g}. Pass {name}>={least:g}."
        )


def _positive(name: str, given: float) -> None:
    if not (math.isfinite(given) and given > 0):
        raise ArgumentError(f"{name}={given!r}: it must be a finite number above 0. Pass {name}>0.")


def _check_norms(query_key_norms: Tensor) -> None:
    if query_key_norms.dim() != 2 or min(query_key_norms.shape) < 1:
        raise ArgumentError(
            f"query_key_norms of shape {tuple(query_key_norms.shape)}: one spectral norm per layer and head is needed. "
            "Pass (layers, heads), as AnalysedTransformer.query_key_norms() returns."
        )


def scale(n: int) -> float:
    """sqrt(n log n), the order of as_n that a bounded Blowup allows (spec A.8). Exact; n >= 2, else `ArgumentError`."""
    _at_least("n", n, 2)
    return math.sqrt(n * math.log(n))


def exceptional_fraction(n: int, heads: int) -> float:
    """min(1, H / n^2): the largest share of inputs on which A.7 and A.8 may fail; vacuous (1) for n <= sqrt(H)."""
    _at_least("n", n, 1)
    _at_least("heads", heads, 1)
    return min(1.0, heads / n**2)


def log_constant(query_key_norms: Tensor, d: int, *, log_polynomial: float) -> float:
    """log C = 4 d max_h sum_{i>=2} ||K_{i,h}^T Q_{i,h}||_2 + log poly(d, L, H, norms) (spec A.5).

    query_key_norms is (layers, heads). The polynomial is given in no source: `log_polynomial` is the caller's
    assumption (0 leaves it out), so the result is a certified constant only if that assumption is. In logarithms,
    because exp overflows at ordinary widths. Raises `ArgumentError` for another shape or d < 1.
    """
    _check_norms(query_key_norms)
    _at_least("d", d, 1)
    return 4 * d * float(query_key_norms[1:].sum(dim=0).max()) + log_polynomial


def log_pointwise_bound(query_key_norms: Tensor, d: int, eps: float, *, log_constant: float) -> float:
    """log of A.6, for EVERY x: s(T,x) <= C exp(4 d max_h ||K_{1,h}^T Q_{1,h}||_2) / eps^(L/2).

    Up to the constant. eps > 0 is LayerNorm's epsilon, not Euler's e: each of the L LayerNorms multiplies by at most
    eps^(-1/2). L = query_key_norms.shape[0]. Raises `ArgumentError` for eps <= 0, where the bound is infinite.
    """
    _check_norms(query_key_norms)
    _at_least("d", d, 1)
    _positive("eps", eps)
    layers = query_key_norms.shape[0]
    return log_constant + 4 * d * float(query_key_norms[0].max()) - layers / 2 * math.log(eps)


def log_typical_bound(n: int, layers: int, eps: float, *, log_constant: float) -> float:
    """log of A.7, for at least 1 - H/n^2 of the inputs: s(T,x) <= C log(n) / eps^(L/2).

    Up to the constant; eps > 0 is LayerNorm's epsilon. Raises `ArgumentError` for n < 2, layers < 1 or eps <= 0.
    """
    _at_least("n", n, 2)
    _at_least("layers", layers, 1)
    _positive("eps", eps)
    return log_constant + math.log(math.log(n)) - layers / 2 * math.log(eps)


def largest_layer_norm_factor(eps: float) -> float:
    """N <= eps^(-1/2) for every LayerNorm with epsilon eps (spec A.3); infinity at eps = 0. Exact."""
    _at_least("eps", eps, 0)
    return math.inf if eps == 0 else 1 / math.sqrt(eps)


def largest_blowup(eps: float, norms: int) -> float:
    """Blowup(x) <= (1 + eps^(-1/2))^L for L = `norms` LayerNorms, at every x (spec A.4); infinity at eps = 0. Exact."""
    _at_least("norms", norms, 0)
    factor = 1 + largest_layer_norm_factor(eps)
    return float(factor**norms)


def local_blowup_needed(sensitivity: Tensor, n: int, *, constant: float) -> Tensor:
    """A.8: Blowup(x)^2 + (1/n) sum_i Blowup(x^i)^2 >= s(T,x) / (C sqrt(n log n)), except on H/n^2 of the inputs.

    sensitivity holds s(T,x), any shape; the result is the right side, same shape. Up to C = `constant` > 0.
    """
    _positive("constant", constant)
    return sensitivity / (constant * scale(n))


def average_blowup_needed(average_sensitivity: float, n: int, heads: int, *, constant: float) -> float:
    """A.9: E Blowup^2 >= (as_n(T) / sqrt(n log n) - H/n) / C; negative constrains nothing. Up to C = `constant` > 0."""
    _positive("constant", constant)
    _at_least("heads", heads, 1)
    return (average_sensitivity / scale(n) - heads / n) / constant


def implied_local_constant(sensitivity: Tensor, blowup: Tensor, neighbour_blowups: Tensor) -> Tensor:
    """A.11: the C at which A.8 is an equality, s(T,x) / (sqrt(n log n) [Blowup(x)^2 + mean_i Blowup(x^i)^2]).

    sensitivity and blowup are (batch,), neighbour_blowups is (batch, n); the result is (batch,). Exact for its inputs.
    The theory claims that it stays bounded in n for one fixed parameter vector, and nothing about its size.
    Raises `ArgumentError` if the shapes disagree or n < 2.
    """
    if neighbour_blowups.dim() != 2 or not sensitivity.shape == blowup.shape == neighbour_blowups.shape[:1]:
        raise ArgumentError(
            f"shapes {tuple(sensitivity.shape)}, {tuple(blowup.shape)}, {tuple(neighbour_blowups.shape)}: sensitivity "
            "and blowup are (batch,), neighbour_blowups is (batch, n). Pass one Blowup per flipped bit."
        )
    return sensitivity / (scale(neighbour_blowups.shape[1]) * (blowup**2 + (neighbour_blowups**2).mean(dim=1)))


def implied_average_constant(average_sensitivity: float, mean_squared_blowup: float, n: int, heads: int) -> float:
    """A.11: the C at which A.9 is an equality, (as_n(T)/sqrt(n log n) - H/n) / E Blowup^2. Exact for its inputs.

    Raises `ArgumentError` for n < 2 or E Blowup^2 < 1, which no Blowup has.
    """
    _at_least("mean_squared_blowup", mean_squared_blowup, 1)
    return average_blowup_needed(average_sensitivity, n, heads, constant=mean_squared_blowup)


def parity_blowup_growth(n: int) -> float:
    """sqrt(n / log n): the order of C E Blowup^2 that PARITY (as_n = n) forces by A.9 (spec B.5). n >= 2."""
    return n / scale(n)


def linear_sharpness_bound(sensitivity_before: float, sensitivity_after: float, n: int) -> float:
    """E_x (f - g)^2 >= as_n(f) / (2n) - as_n(g) / n for EVERY f, g: {±1}^n -> R (spec A.10).

    Exact, finite n, no constant: with f = T_theta and g = T_(theta + Delta) it bounds the sharpness of this Delta from
    below by how much sensitivity Delta destroys. For 0/1-valued f, both sides are a quarter of their ±1 value.
    Raises `ArgumentError` for n < 1 or a negative sensitivity.
    """
    _check_pair(sensitivity_before, sensitivity_after, n)
    return sensitivity_before / (2 * n) - sensitivity_after / n


def root_sharpness_bound(sensitivity_before: float, sensitivity_after: float, n: int) -> float:
    """E_x (f - g)^2 >= (sqrt(as_n(f)) - sqrt(as_n(g)))_+^2 / n for EVERY f, g: {±1}^n -> R (spec A.10).

    Exact, and never below `linear_sharpness_bound` where that is positive. Tight: f = PARITY, g = 0 gives 1 = 1.
    Raises `ArgumentError` for n < 1 or a negative sensitivity.
    """
    _check_pair(sensitivity_before, sensitivity_after, n)
    return max(0.0, math.sqrt(sensitivity_before) - math.sqrt(sensitivity_after)) ** 2 / n


def _check_pair(before: float, after: float, n: int) -> None:
    _at_least("n", n, 1)
    _at_least("sensitivity_before", before, 0)
    _at_least("sensitivity_after", after, 0)


def asymptotic_sharpness_bound(sensitivity_per_bit: float, *, boolean: bool, width_term: float) -> float:
    """A.10: lim_{rho->0} liminf_n L_{rho,n}(T) >= liminf_n as_n(T)/(2n) - L exp(-Omega(d)); no 2 if T_theta is boolean.

    sensitivity_per_bit is liminf as_n(T)/n; boolean says that T_theta (unperturbed) takes the values ±1; width_term is
    L exp(-Omega(d)), which no source makes explicit. The limit in n comes first: at fixed n the sharpness goes to 0
    with rho, so never assert this at one n and a tiny rho.
    """
    _at_least("sensitivity_per_bit", sensitivity_per_bit, 0)
    _at_least("width_term", width_term, 0)
    return sensitivity_per_bit / (1 if boolean else 2) - width_term


@dataclass(frozen=True)
class StepSensitivity:
    """Sensitivity of one scratchpad step (state, symbol) -> next state, in the bits of its context.

    local: s at each context, (states, symbols). mean, largest: over all contexts. bound: b (a + b), for b bits per
    state and a bits per symbol. None of them depends on the input length.
    """

    local: npt.NDArray[np.int64]
    mean: float
    largest: int
    bound: int


def step_sensitivity(transitions: Sequence[Sequence[int]] | npt.NDArray[np.int64]) -> StepSensitivity:
    """Per-step sensitivity of the finite automaton `transitions[state][symbol] = next state` (spec A.12).

    s(state, symbol) = number of (flipped context bit, changed bit of the next state) pairs: states and symbols are
    numbered from 0 and coded in binary with b and a bits, and only flips that lead to another state or symbol of the
    automaton count. The next state has b bits and its context a + b, all other positions of input and scratchpad being
    ignored, so s <= b (a + b) = O(1) in the length. PARITY, [[0, 1], [1, 0]]: s = 2 everywhere.
    Exact. Raises `ArgumentError` unless the table is a rectangle of state numbers.
    """
    try:
        table = np.asarray(transitions)
    except ValueError:
        table = np.empty(0)
    if (
        table.ndim != 2
        or table.size == 0
        or table.dtype.kind not in "iu"
        or table.min() < 0
        or table.max() >= len(table)
    ):
        raise ArgumentError(
            f"transitions={transitions!r}: every row (state) lists one next state 0..states-1 per symbol. "
            "Pass a (states, symbols) table of integers."
        )
    states, symbols = table.shape
    state_bits, symbol_bits = (states - 1).bit_length(), (symbols - 1).bit_length()
    local = np.zeros((states, symbols), dtype=np.int64)
    for state, symbol in np.ndindex(states, symbols):
        neighbours = [(state ^ (1 << bit), symbol) for bit in range(state_bits)]
        neighbours += [(state, symbol ^ (1 << bit)) for bit in range(symbol_bits)]
        local[state, symbol] = sum(
            int(table[state, symbol] ^ table[other]).bit_count()
            for other in neighbours
            if other[0] < states and other[1] < symbols
        )
    return StepSensitivity(local, float(local.mean()), int(local.max()), state_bits * (symbol_bits + state_bits))
