"""Noise stability of one attention head on Gaussian tokens: the predictions of Theorems 5.2 and 5.3, and a simulation.

Setting: X in R^{n x d} iid N(0, 1), Y its copy at correlation rho, A = softmax(X W X^T) by rows, output A X W_V; the
quantity is Stab of one output coordinate (i, j), with w = (W_V)[:, j]. No mask, residual or normalisation. Source:
Haris, Zhang & Yoshida 2026, Theorems 5.2, 5.3; spec A12, B10. Whether the theorems scale logits by 1/sqrt(d) is not
known; both agree with the simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.special import log_ndtr, ndtr, owens_t

from modelprops.errors import ArgumentError

Weights = Literal["identity", "low_rank", "unstructured"]


def identity_attention_stability(rho: float, column_norm: float = 1.0) -> float:
    """Theorem 5.2: rho ||w||^2 for W = I, or W = U U^T of rank >= O(log n / eps^2). A limit for d >> log n.

    `column_norm` is ||w||. Raises ArgumentError for rho outside [-1, 1].
    """
    _require(rho, 1)
    return rho * column_norm**2


def unstructured_attention_stability(rho: float, n: int, column_norm: float = 1.0, width: int | None = None) -> float:
    """Theorem 5.3: rho s_n(rho) ||w||^2 for W with iid N(0, 1) entries and n tokens. A limit for width -> infinity.

    With `width` = d given, adds the leading finite-d excess `unstructured_excess` (an approximation). Attention is
    then a random map of rows (not a permutation: `distinct_columns`), and s_n -> 0 as n grows. Spec A12, B10.
    """
    _require(rho, n)
    limit = rho * argmax_agreement(n, rho) * column_norm**2
    return limit if width is None else limit + unstructured_excess(rho, n, width) * column_norm**2


def unstructured_excess(rho: float, n: int, width: int) -> float:
    """rho (1 - s_n) E[max_n]^2 / d: the winning token leans towards W^T x_i, so even different winners agree a little.

    An approximation of leading order in 1/d (E[max_n]^2 ~ 2 ln n); a few standard errors of a simulation cover the
    rest.
    """
    _require(rho, n)
    if width < 1:
        raise ArgumentError(f"width={width} is not a dimension. Give d >= 1.")
    return rho * (1 - argmax_agreement(n, rho)) * expected_maximum(n) ** 2 / width


def argmax_agreement(n: int, rho: float) -> float:
    """s_n(rho) = P(argmax L = argmax L') for n iid Gaussian pairs of correlation rho^2. Quadrature, error about 1e-10.

    Given x_i the logits of the two copies are such pairs. s_n(0) = 1/n, s_n(1) = 1, s_2 = 1 - arccos(rho^2)/pi, and s_n
    falls like n^{-(1-r)/(1+r)} up to logarithms, r = rho^2. Raises ArgumentError for n < 1 or |rho| > 1. Spec A12.
    """
    _require(rho, n)
    r = rho * rho
    if n == 1 or r == 1:
        return 1.0
    if n == 2:
        return 1 - math.acos(r) / math.pi
    # s_n = n E[Phi_2(X, Y; r)^(n-1)]. In (x, z) with y = r x + sqrt(1-r^2) z the integrand is smooth and decays like a
    # Gaussian, so the midpoint rule converges exponentially; midpoints also keep x off 0, where Owen's formula divides.
    step = 18 / 360
    nodes = -9 + step * (np.arange(360) + 0.5)
    spread = math.sqrt(1 - r * r)
    x, z = np.meshgrid(nodes, nodes, indexing="ij")
    y = r * x + spread * z
    y = np.where(y == 0, 1e-300, y)
    joint = (ndtr(x) + ndtr(y) - (x * y < 0)) / 2
    joint -= owens_t(x, (y / x - r) / spread) + owens_t(y, (x / y - r) / spread)
    density = np.exp(-(x**2 + z**2) / 2) / (2 * math.pi)
    return float(n * step**2 * np.sum(density * np.clip(joint, 0, 1) ** (n - 1)))


def expected_maximum(n: int) -> float:
    """E max of n iid N(0, 1), by quadrature to ~1e-10; grows like sqrt(2 ln n). Raises ArgumentError for n < 1."""
    _require(0.0, n)
    step = 24 / 4800
    x = -12 + step * (np.arange(4800) + 0.5)
    log_density = -(x**2) / 2 - 0.5 * math.log(2 * math.pi) + (n - 1) * log_ndtr(x)
    return float(n * step * np.sum(x * np.exp(log_density)))


def distinct_columns(n: int) -> float:
    """Expected fraction of tokens that win some row, rows being independent: 1 - (1 - 1/n)^n. A model; spec B10."""
    _require(0.0, n)
    return 1 - (1 - 1 / n) ** n


def simulate_attention(
    weights: Weights,
    *,
    n: int,
    width: int,
    rho: float,
    draws: int,
    seed: int,
    rank: int | None = None,
    logit_scale: float = 1.0,
    columns: int = 8,
) -> AttentionSimulation:
    """Monte-Carlo estimate of the stability of a coordinate, ||w|| = 1, averaged over rows and `columns` random ones.

    Each draw has fresh tokens, noise and weights (`low_rank`: U of `rank` columns, entries N(0, 1/rank)), so the
    draws are independent and the standard error is theirs. n tokens, d = `width`. Raises ArgumentError for bad sizes.
    """
    _require(rho, n)
    if draws < 2 or width < 1 or columns < 1:
        raise ArgumentError(
            f"draws={draws}, width={width}, columns={columns}: give at least 2 draws, width 1, column 1."
        )
    if weights not in ("identity", "low_rank", "unstructured") or (weights == "low_rank") != (rank is not None):
        raise ArgumentError(
            f"weights={weights!r} with rank={rank!r}. Give identity or unstructured without a rank, low_rank with one."
        )
    generator = torch.Generator().manual_seed(seed)
    stability, agreement, distinct = [], [], []
    for _ in range(draws):
        x = torch.randn(n, width, generator=generator)
        y = rho * x + math.sqrt(1 - rho * rho) * torch.randn(n, width, generator=generator)
        value = torch.randn(width, columns, generator=generator)
        value /= value.norm(dim=0)
        mixing = _mixing(weights, width, rank, generator)
        left, right = (_attention(tokens, mixing, logit_scale) for tokens in (x, y))
        stability.append(float(((left @ x @ value) * (right @ y @ value)).mean()))
        agreement.append(float((left.argmax(-1) == right.argmax(-1)).float().mean()))
        distinct.append(len(set(left.argmax(-1).tolist())) / n)
    return AttentionSimulation(
        stability=float(np.mean(stability)),
        standard_error=float(np.std(stability, ddof=1) / math.sqrt(draws)),
        agreement=float(np.mean(agreement)),
        agreement_error=float(np.std(agreement, ddof=1) / math.sqrt(draws)),
        distinct=float(np.mean(distinct)),
        draws=draws,
    )


@dataclass(frozen=True)
class AttentionSimulation:
    """Means over independent draws: stability, P(argmax agrees), fraction of distinct argmax columns."""

    stability: float
    standard_error: float
    agreement: float
    agreement_error: float
    distinct: float
    draws: int


def _mixing(weights: Weights, width: int, rank: int | None, generator: torch.Generator) -> torch.Tensor | None:
    if weights == "identity":
        return None
    if weights == "unstructured":
        return torch.randn(width, width, generator=generator)
    assert rank is not None
    factor = torch.randn(width, rank, generator=generator) / math.sqrt(rank)
    return factor @ factor.T


def _attention(tokens: torch.Tensor, mixing: torch.Tensor | None, scale: float) -> torch.Tensor:
    left = tokens if mixing is None else tokens @ mixing
    return torch.softmax(scale * (left @ tokens.T), dim=-1)


def _require(rho: float, n: int) -> None:
    if not -1 <= rho <= 1:
        raise ArgumentError(f"rho={rho!r} is not a correlation. Give a number in [-1, 1].")
    if n < 1:
        raise ArgumentError(f"n={n} is not a number of tokens. Give at least 1.")
