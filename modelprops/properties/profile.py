"""Sensitivity profile: how the local sensitivity is distributed over the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, generator_of
from modelprops.errors import ArgumentError, DomainError
from modelprops.estimate import Array, Number, Witness
from modelprops.inference.sequential import Box, Chunk, Design, Sample
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.sensitivity import sensitivities
from modelprops.properties.tables import Table, is_enumerable, table_of
from modelprops.subject import Subject

QUANTITIES = ("distribution", "minimum", "maximum")
_POINTS_AT_ONCE = 2**15


@measure(version=1)
def sensitivity_profile(
    subject: Subject,
    *,
    quantity: str = "distribution",
    quantiles: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0),
) -> Plan:
    """Distribution of the local sensitivity s(f, x) over inputs x (see `average_sensitivity`), its minimum and maximum.

    `quantity="distribution"`: for a ±1 readout (`"sign"`, `"label"`) on the cube the vector P[s(f, x) = k], k = 0..n;
    for any other the quantiles of s at the levels `quantiles`. `details` holds the mean, the minimum and the maximum.
    `quantity="minimum"` and `"maximum"` give those alone, for claims such as
    `sensitivity_profile(quantity='minimum') <= 4`: a function without an insensitive input is out of a random
    transformer's reach, PARITY's profile is a point mass at n.

    Guarantee: exact by enumeration. Sampled (on the cube only), confidence bounds: each probability anytime-valid at
    level/(n + 1); quantiles from the Dvoretzky-Kiefer-Wolfowitz band, all levels at once, with level/(j (j + 1)) spent
    at the j-th look; a minimum and a maximum are one-sided, what was seen and the end of the range. Near-ties count as
    no change. The unit is one input with all its neighbours (cost 1 + n).

    Other domains are enumerated or refused: one redrawn neighbour gives the mean of s, not its distribution.

    Source: Hahn and Rofin 2024 (spec A.2); Kövér, Butoi, Svete, Hahn and Cotterell 2026 (spec E); Massart 1990 (the
    band's constant).
    """
    levels = _checked(quantity, quantiles)
    enumerable = is_enumerable(subject.domain)
    if not isinstance(subject.domain, BooleanCube) and not enumerable:
        raise DomainError(
            f"the profile on {type(subject.domain).__name__} needs every value of each coordinate, and the domain "
            "cannot be enumerated; use mp.BooleanCube(n), a smaller token domain, or average_sensitivity"
        )
    count = subject.domain.coordinates
    flips = isinstance(subject.domain, BooleanCube)
    discrete = quantity == "distribution" and flips and subject.readout.name in ("sign", "label")
    top = count * subject.diameter / (4 if flips else 2)

    def exact() -> Exact:
        table = table_of(subject)
        return _exact(table, quantity, levels, count if discrete else None)

    design = None
    if flips:
        design = Design(
            lambda seed, size: _draw(subject, seed, size, count if discrete else None),
            ((0.0, 1.0),) * (count + 1) if discrete else ((0.0, top),),
            1 + count,
            summarise=None if discrete else _summary(quantity, levels, top),
        )
    return Plan(
        design=design,
        exact=exact if enumerable else None,
        exact_evaluations=enumerable,
        details=lambda values, level: _extremes(values[:, -1], top),
        guarantee="confidence bound",
        witness=None if quantity != "distribution" else _no_witness,
        hint="the input above has the extreme sensitivity; PARITY has s = n everywhere, a dictator 1",
    )


def quantile_band(values: Array, levels: Sequence[float], level: float, look: int, top: float) -> Box:
    """Simultaneous intervals for quantiles of draws in [0, `top`] at the `look`-th look at the sample (from 1).

    P[sup |F_t - F| > e] <= 2 exp(-2 t e^2) at a fixed t, and the looks' shares level/(j (j + 1)) add up to the level.
    The 0- and 1-quantile are the minimum and maximum: certain on the side that was seen.
    """
    ordered = np.concatenate([[0.0], np.sort(values), [top]])
    count = len(values)
    band = math.sqrt(math.log(2 * look * (look + 1) / level) / (2 * count))
    wanted = np.asarray(levels, dtype=np.float64)
    # F^-1(q) is the ceil(q t)-th of t draws; rank 0 is the lower end of the range and t + 1 the upper.
    exact = np.clip(np.ceil(wanted * count - 1e-9), 1, count).astype(int)
    below = np.clip(np.ceil((wanted - band) * count - 1e-9), 0, count).astype(int)
    above = np.where(wanted + band >= 1, count + 1, np.floor((wanted + band) * count + 1e-9) + 1).astype(int)
    low, high = ordered[below], ordered[np.minimum(above, count + 1)]
    value = ordered[exact]
    high = np.where(wanted == 0, ordered[1], high)
    low = np.where(wanted == 1, ordered[-2], low)
    return Box(value, np.minimum(low, value), np.maximum(high, value))


def _checked(quantity: str, quantiles: Sequence[float]) -> tuple[float, ...]:
    if quantity not in QUANTITIES:
        raise ArgumentError(f"quantity={quantity!r} is unknown; use one of {', '.join(QUANTITIES)}")
    levels = tuple(quantiles)
    if not levels or any(isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1 for q in levels):
        raise ArgumentError(f"quantiles={quantiles!r} are not levels in [0, 1]; give for example (0.1, 0.5, 0.9)")
    return levels


def _summary(quantity: str, levels: tuple[float, ...], top: float) -> Callable[[Sample, float], Box]:
    def summary(sample: Sample, level: float) -> Box:
        values = sample.values[:, -1]
        least, most = float(values.min()), float(values.max())
        if quantity == "minimum":
            return Box(least, 0.0, least)
        if quantity == "maximum":
            return Box(most, most, top)
        return quantile_band(values, levels, level, len(sample.chunks), top)

    return summary


def _draw(subject: Subject, seed: int, size: int, count: int | None) -> Chunk:
    """Columns: for ±1 readouts an indicator of each s = 0..n; last, s itself."""
    generator = generator_of(seed)
    n = subject.domain.coordinates
    points = subject.domain.sample(size, generator)
    group = max(1, _POINTS_AT_ONCE // (1 + n))
    scores, ties, most = [], 0, torch.zeros(0, dtype=torch.long)
    for first in range(0, size, group):
        change, _, _, tied = sensitivities(subject, points[first : first + group], generator, n)
        scores.append(change.sum(1))
        most = torch.cat([most, change.argmax(1)])
        ties += tied
    score = torch.cat(scores)
    columns = score[:, None]
    if count is not None:
        columns = torch.cat([(score.round()[:, None] == torch.arange(count + 1)).double(), columns], 1)
    high, low = int(score.argmax()), int(score.argmin())
    return Chunk(
        columns.numpy(),
        size * (1 + n),
        Witness(points[high].clone(), int(most[high]), score=float(score[high])),
        Witness(points[low].clone(), int(most[low]), score=float(score[low])),
        ties,
        size * n,
    )


def _exact(table: Table, quantity: str, levels: tuple[float, ...], count: int | None) -> Exact:
    local = table.local_sensitivity()
    # Sums of equal terms in another order differ in the last digits.
    local = np.round(local, 12)
    high, low = int(local.argmax()), int(local.argmin())
    value: Number
    if quantity != "distribution":
        value = float(local[high] if quantity == "maximum" else local[low])
    elif count is not None:
        value = np.bincount(local.round().astype(int), minlength=count + 1) / len(local)
    else:
        value = np.quantile(local, levels, method="inverted_cdf")
    details = {
        "mean": float(local.mean()),
        "minimum": _one_value(float(local[low])),
        "maximum": _one_value(float(local[high])),
    }
    if table.tie_share:
        details["tie_share"] = table.tie_share
    return Exact(
        value, len(local), table.witness(high, float(local[high])), table.witness(low, float(local[low])), details
    )


def _one_value(x: float) -> dict[str, float]:
    return {"value": x, "low": x, "high": x}


def _extremes(scores: Array, top: float) -> Mapping[str, Any]:
    """The mean seen, and the minimum and maximum as one-sided bounds."""
    least, most = float(scores.min()), float(scores.max())
    return {
        "mean": float(scores.mean()),
        "minimum": {"value": least, "low": 0.0, "high": least},
        "maximum": {"value": most, "low": most, "high": top},
    }


def _no_witness(values: Number, high: bool) -> Witness | None:
    """A probability or a quantile is no one input's."""
    return None
