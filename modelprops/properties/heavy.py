"""Large Walsh coefficients of a function on many bits, where the whole spectrum cannot be computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, Domain, generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.seeds import derive
from modelprops.settings import defaults, seed_of
from modelprops.subject import as_subject

_PAIRS_AT_ONCE = 2**14


@dataclass(frozen=True)
class HeavyCoefficients:
    """Coefficients found, as {tuple of coordinates: estimate}, largest first; each estimate is within `error`."""

    coefficients: dict[tuple[int, ...], float]
    threshold: float
    error: float
    confidence: float
    evaluations: int


def heavy_coefficients(
    subject: Any,
    *,
    threshold: float,
    domain: Domain | None = None,
    confidence: float | None = None,
    budget: int | None = None,
    seed: int | None = None,
) -> HeavyCoefficients:
    """Find every S with |f^(S)| >= `threshold` on `BooleanCube(n)`, n of any size, for a readout within [-1, 1].

    Guarantee (confidence bound): with probability >= `confidence` the result holds every S with |f^(S)| >= threshold
    and none with |f^(S)| < threshold/2, and each estimate is within threshold/4. By the Goldreich-Levin/Kushilevitz-
    Mansour search: the subsets of the first k coordinates are kept whose bucket weight
    E_z (E_y f(y, z) chi_S(y))^2 is estimated to be at least threshold^2 / 2; at most 4/threshold^2 survive each level.
    Cost about 2 n m model evaluations with m = O(log(n/threshold) / threshold^4).

    Raises `ArgumentError` for an unbounded or vector readout, a threshold outside (0, 1], or a budget too small for the
    guarantee. Source: Kushilevitz and Mansour 1993; O'Donnell, Analysis of Boolean Functions, 3.5.
    """
    target = as_subject(subject, domain)
    cube = target.domain
    if not isinstance(cube, BooleanCube):
        raise ArgumentError(f"Walsh coefficients live on mp.BooleanCube(n), not {type(cube).__name__}")
    low, high = target.readout.range
    if target.outputs != 1 or not (low >= -1 and high <= 1):
        raise ArgumentError("the search needs one output within [-1, 1]; use readout='sign', or state range=(-1, 1)")
    if not 0 < threshold <= 1:
        raise ArgumentError(f"threshold={threshold!r} is not in (0, 1]")
    level = 1 - (defaults().confidence if confidence is None else confidence)
    budget = defaults().budget if budget is None else budget
    root = seed_of("heavy_coefficients") if seed is None else seed
    # Hoeffding on products in [-1, 1]: every bucket of every level within threshold^2/4, by a union bound.
    buckets = 2 * math.ceil(4 / threshold**2) * cube.n
    pairs = math.ceil(2 * math.log(4 * buckets / level) / (threshold**2 / 4) ** 2)
    final = math.ceil(2 * math.log(4 * math.ceil(4 / threshold**2) / level) / (threshold / 4) ** 2)
    needed = 2 * pairs * cube.n + final
    if needed > budget:
        raise ArgumentError(
            f"threshold={threshold} at n={cube.n} needs {needed:,} model evaluations, the budget is {budget:,}; raise "
            "budget= or the threshold"
        )
    kept: list[tuple[int, ...]] = [()]
    with target.steady():
        for k in range(1, cube.n + 1):
            kept = [*kept, *((*members, k - 1) for members in kept)]
            weights = np.zeros(len(kept))
            for products, differing in _pairs(target, cube, k, pairs, derive(root, k)):
                # chi_S(y) chi_S(y') = product over S of y_i y'_i, the signs that differ.
                weights += [float(products @ differing[:, list(members)].prod(1)) for members in kept]
            kept = [
                members for members, weight in zip(kept, weights / pairs, strict=True) if weight >= threshold**2 / 2
            ]
        estimates = _means(target, cube, kept, final, derive(root, "final"))
    found = {members: value for members, value in zip(kept, estimates, strict=True) if abs(value) >= 0.75 * threshold}
    ordered = dict(sorted(found.items(), key=lambda item: (-abs(item[1]), item[0])))
    return HeavyCoefficients(ordered, threshold, threshold / 4, 1 - level, needed)


def _pairs(target: Any, cube: BooleanCube, k: int, count: int, seed: int) -> Any:
    """Yield (f(y, z) f(y', z), y * y') for pairs that share all coordinates from k on."""
    for start in range(0, count, _PAIRS_AT_ONCE):
        size = min(_PAIRS_AT_ONCE, count - start)
        generator = generator_of(derive(seed, start))
        first, second = cube.sample(size, generator), cube.sample(size, generator)
        second[:, k:] = first[:, k:]
        values = target(torch.cat([first, second])).numpy()
        yield values[:size] * values[size:], (first * second)[:, :k].numpy().astype(np.float64)


def _means(target: Any, cube: BooleanCube, kept: list[tuple[int, ...]], count: int, seed: int) -> Array:
    points = cube.sample(count, generator_of(seed))
    values = target(points).numpy()
    signs = points.numpy().astype(np.float64)
    return np.array([float((values * signs[:, list(members)].prod(1)).mean()) for members in kept])
