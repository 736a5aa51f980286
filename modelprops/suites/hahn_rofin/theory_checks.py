"""What holds exactly: identities and closed forms, the finite-n inequalities, caps of LayerNorm, automata.

`expected` comes from the specification's printed digits, from enumeration or from a bound; `found` from the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import modelprops as mp
from modelprops.estimate import Array
from modelprops.functions.walsh import level_weights, walsh_hadamard
from modelprops.properties.perturbation import displaced, perturbed_parameters
from modelprops.suites.findings import Check
from modelprops.theory import bounds
from modelprops.theory.transformer import AnalysedTransformer, EncoderTransformer
from modelprops.training.tasks import all_bits

MAJORITY = dict(
    zip(
        (4, 5, 10, 11, 15, 30, 100, 512, 1024),
        (1.5, 1.875, 2.4609375, 2.70703, 3.14209, 4.33393, 7.95892, 18.04525, 25.52607),
        strict=True,
    )
)
"""as_n(MAJORITY) as printed in spec A.2."""

PAIRS = 2000
_DIGITS = 5e-6  # half of the last printed digit


def checks() -> tuple[Check, ...]:
    """All rows; a few seconds."""
    return (*closed_form_checks(), *identity_checks(), *inequality_checks(), *blowup_checks(), *automaton_checks())


def closed_form_checks() -> list[Check]:
    """The table of spec A.2: sensitivity of the four tasks, on average and at its largest."""
    rows = [
        Check(f"as_n(MAJORITY), n = {n}", "A.2", printed, mp.functions.majority(n).average_sensitivity(), _DIGITS)
        for n, printed in MAJORITY.items()
    ]
    for n in (9, 10):
        largest = (n + 1) / 2 if n % 2 else n / 2 + 1
        for name, average, top in (
            ("parity", n, n),
            ("majority", mp.functions.majority(n).average_sensitivity(), largest),
            ("first", 1, 1),
            ("mean", 1 / n, 1 / n),
        ):
            local = local_sensitivities(getattr(mp.functions, name)(n).table())
            rows.append(
                Check(f"as_n({name.upper()}) by enumeration, n = {n}", "A.2", average, float(local.mean()), 1e-12)
            )
            rows.append(Check(f"largest s(f,x) of {name.upper()}, n = {n}", "A.2", top, float(local.max()), 1e-12))
    near = local_sensitivities(mp.functions.majority(11).table()) > 0
    rows.append(Check("share of inputs at MAJORITY's boundary, n = 11", "A.2", 0.45, float(near.mean()), 0.005))
    return rows


def identity_checks() -> list[Check]:
    """as_n(f) = sum |P| lambda_P^2 on random real tables, and the factor 4 between 0/1 and ±1 outputs."""
    generator = np.random.default_rng(0)
    worst = 0.0
    for n in range(1, 11):
        table = generator.standard_normal(2**n)
        fourier = float(level_weights(walsh_hadamard(table)) @ np.arange(n + 1))
        worst = max(worst, abs(fourier - float(local_sensitivities(table).mean())))
    bits = generator.integers(0, 2, 2**8)
    ratio = (
        local_sensitivities((2 * bits - 1).astype(np.float64)).mean()
        / local_sensitivities(bits.astype(np.float64)).mean()
    )
    return [
        Check("as_n by flips and by Fourier, largest difference for n <= 10", "A.2, B.4", 0.0, worst, 1e-9),
        Check("±1 over 0/1 outputs", "A.1", 4.0, float(ratio), 1e-12),
    ]


def inequality_checks() -> list[Check]:
    """The two exact sharpness inequalities: violations among random pairs, and tightness at g = 0."""
    generator = np.random.default_rng(1)
    wrong = sum(violations(*_random_pair(generator)) for _ in range(PAIRS))
    parity = mp.functions.parity(8).table()
    untrained = sum(violations(*pair) for pair in perturbed_pairs())
    tight = bounds.root_sharpness_bound(8.0, 0.0, 8) - float((parity**2).mean())
    return [
        Check(f"violations of both inequalities in {PAIRS} random pairs", "A.10", 0, wrong, 0),
        Check("violations by untrained models and their perturbations", "A.10", 0, untrained, 0),
        Check("PARITY against g = 0: bound minus E(f - g)^2", "A.10", 0.0, tight, 1e-12),
    ]


def blowup_checks() -> list[Check]:
    """N <= eps^(-1/2), Blowup >= 1 and its cap, on random analysed models; every norm of the encoder seen."""
    over, under, capped = 0.0, math.inf, 0.0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for eps in (1e-5, 1e-3, 1.0):
            trace = AnalysedTransformer(6, d=8, eps=eps).trace(all_bits(6))
            over = max(over, float(trace.n_factors.max()) / bounds.largest_layer_norm_factor(eps))
            under = min(under, float(trace.blowup.min()))
            capped = max(capped, float(trace.blowup.max()) / bounds.largest_blowup(eps, 2))
        encoder = EncoderTransformer(6, 8)
    seen = mp.layernorm_blowup(mp.Subject(encoder, mp.BooleanCube(6, encoding=to_bits))).details["layers"]
    return [
        Check("largest N eps^(1/2) is at most 1", "A.3", 1.0, max(over, 1.0), 1e-6),
        Check("least Blowup is at least 1", "A.4", 1.0, min(under, 1.0), 1e-6),
        Check("largest Blowup over its cap is at most 1", "A.4", 1.0, max(capped, 1.0), 1e-6),
        Check("LayerNorms of a two-layer encoder whose hook fired", "D.8", 4, len(seen), 0),
    ]


def automaton_checks() -> list[Check]:
    """Sensitivity of one scratchpad step: 2 for PARITY, at most b (a + b) for any automaton."""
    parity = bounds.step_sensitivity([[0, 1], [1, 0]])
    generator = np.random.default_rng(3)
    over = 0
    for _ in range(200):
        states, symbols = generator.integers(1, 17, 2)
        step = bounds.step_sensitivity(generator.integers(0, states, (states, symbols)))
        over += step.largest > step.bound
    return [
        Check("least s of a PARITY step", "A.12", 2, float(parity.local.min()), 0),
        Check("largest s of a PARITY step", "A.12", 2, parity.largest, 0),
        Check("random automata (up to 16 states) above b (a + b)", "A.12", 0, over, 0),
    ]


def local_sensitivities(table: Array) -> Array:
    """s(f,x) = 1/4 sum_i (f(x) - f(x^i))^2 at every x, from the 2^n values in the order of `BooleanCube.exhaustive`."""
    rows = np.arange(len(table))
    flips = [1 << i for i in range(len(table).bit_length() - 1)]
    total: Array = sum(((table - table[rows ^ flip]) ** 2 for flip in flips), np.zeros(len(table)))
    return total / 4


def violations(before: Array, after: Array) -> int:
    """How many of the two inequalities of spec A.10 fail for f = `before`, g = `after` (0 but for rounding)."""
    n = len(before).bit_length() - 1
    moved = float(((before - after) ** 2).mean())
    pair = (float(local_sensitivities(before).mean()), float(local_sensitivities(after).mean()))
    slack = 1e-9 * (1 + moved)
    return sum(
        moved + slack < bound(*pair, n) for bound in (bounds.linear_sharpness_bound, bounds.root_sharpness_bound)
    )


def perturbed_pairs(models: int = 3, directions: int = 4) -> Iterator[tuple[Array, Array]]:
    """Tables of random encoders on 6 bits before and after steps of radius 0.01 to 100."""
    for seed in range(models):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            subject = mp.Subject(EncoderTransformer(6, 8), mp.BooleanCube(6, encoding=to_bits))
        yield from moved_tables(subject, (0.01, 1.0, 100.0), directions)


def moved_tables(subject: mp.Subject, radii: tuple[float, ...], directions: int) -> Iterator[tuple[Array, Array]]:
    """(T_theta, T_(theta + Delta)) over the whole cube, for several random Delta of each radius."""
    cube: Any = subject.domain
    points = cube.exhaustive()
    before = subject.read(points).values.numpy().astype(np.float64)
    for radius in radii:
        move = displaced(perturbed_parameters(subject), radius)
        for seed in range(directions):
            yield before, subject.read(points, move(seed)).values.numpy().astype(np.float64)


def to_bits(points: torch.Tensor) -> torch.Tensor:
    """±1 inputs as the 0/1 bits that the theory's models read."""
    return (points > 0).long()


def _random_pair(generator: np.random.Generator) -> tuple[Array, Array]:
    """Two tables on 1 to 8 bits: real or ±1, independent, close, or smoothed."""
    n = int(generator.integers(1, 9))
    first, second = generator.standard_normal((2, 2**n))
    if generator.random() < 0.5:
        first = np.sign(first)
    kind = generator.integers(3)
    if kind == 0:
        return first, second
    return (first, first + 0.1 * second) if kind == 1 else (first, generator.random() * first)
