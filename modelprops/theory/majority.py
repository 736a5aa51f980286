"""Recursive majority of three: a function whose noise stability is known exactly and falls by a factor per level.

Source: Li & Mossel 2025 (hierarchical functions); spec E1.
"""

from __future__ import annotations

from modelprops.errors import ArgumentError
from modelprops.theory.resampling import Noise, correlation_of


def majority_map(rho: float) -> float:
    """Stab_rho(Maj3) = (3/4) rho + (1/4) rho^3 on uniform signs, rho in [-1, 1]. Exact."""
    if not -1 <= rho <= 1:
        raise ArgumentError(f"rho={rho!r} is not a correlation. Give a number in [-1, 1].")
    return 0.75 * rho + 0.25 * rho**3


def recursive_majority_stability(noise: Noise, depth: int) -> float:
    """Stab of the depth-`depth` tree of Maj3 on 3^depth uniform signs. Exact; depth 0 is one bit.

    The two copies of a node are unbiased signs of correlation rho', and disjoint subtrees are independent, so each
    level applies `majority_map`. Near 0 it shrinks by 3/4 per level: exponentially small in depth. Spec E1.
    """
    if depth < 0:
        raise ArgumentError(f"depth={depth} is negative. Give 0 for one bit, 1 for Maj3, ...")
    rho = correlation_of(noise)
    for _ in range(depth):
        rho = majority_map(rho)
    return rho
