"""Noise stability: how much of the output survives when every input coordinate is partly redrawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Array, Verdict, Witness
from modelprops.inference.betting import interval
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.inference.sequential import Box, Chunk, Design, unit_interval
from modelprops.properties.claim import claim
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.sensitivity import squared_change
from modelprops.properties.tables import is_enumerable, table_of
from modelprops.readouts import Reading
from modelprops.subject import Subject

NORMALISATIONS = ("raw", "centred", "correlation")


@measure(version=1)
def noise_stability(
    subject: Subject, *, rho: float | None = None, keep: float | None = None, normalisation: str = "raw"
) -> Plan:
    """Noise stability Stab_rho(f) = E f(X)·f(Y), with Y a rho-correlated partner of X.

    Each coordinate of Y is that of X with probability rho and else redrawn (on the cube E x_i y_i = rho, and negative
    rho negates; on R^d Y = rho X + sqrt(1 - rho^2) Z). `keep=` names the probability itself; note that keeping with
    probability (1 + r)/2 and else *redrawing* has correlation (1 + r)/2, not r.

    `normalisation`: `"raw"` is E f(X)·f(Y), a second moment; `"centred"` subtracts |E f|^2, the covariance;
    `"correlation"` divides that by Var f. `details` reports all three and the gap E f^2 - Stab = 1/2 E |f(X) - f(Y)|^2,
    each with its own interval.

    Guarantee: exact by enumeration; a confidence bound for a bounded readout; asymptotic otherwise. The unit is two
    independent pairs, so that the gap is measured on pairs and the variance across them.

    Source: O'Donnell, Analysis of Boolean Functions, 2.4 and 8.2; Haris, Zhang and Yoshida 2026 (spec A1-A4).
    """
    correlation = _correlation(rho, keep)
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} is unknown; use one of {', '.join(NORMALISATIONS)}")
    # Refuse what the domain cannot draw before anything is spent.
    subject.domain.correlated(subject.domain.sample(1, generator_of(0)), correlation, generator_of(0))
    half = subject.diameter / 2
    columns: dict[str, tuple[tuple[float, float], ...]] = {
        "raw": (subject.readout.products(subject.outputs),),
        "centred": ((-half, half),),
        "correlation": ((0.0, half), (0.0, half)),
    }

    def draw(seed: int, size: int) -> Chunk:
        return _draw(subject, correlation, normalisation, seed, size)

    design = Design(
        draw, columns[normalisation], 4, combine=_correlation_box if normalisation == "correlation" else None
    )
    enumerable = is_enumerable(subject.domain)
    return Plan(
        design=design,
        exact=(lambda: _exact(subject, correlation, normalisation)) if enumerable else None,
        exact_evaluations=enumerable,
        details=lambda values, level: _three_numbers(values, subject, level),
        minimise=lambda witness, high: witness if high else _minimised(subject, witness),
        hint="redrawing a few coordinates of this input changes the output; a dictator keeps rho, parity only rho^n",
    )


def assert_stability_above(
    subject: Any,
    at_least: float,
    *,
    rho: float | None = None,
    keep: float | None = None,
    normalisation: str = "raw",
    tolerance: float | None = None,
    **options: Any,
) -> Verdict:
    """Require noise stability >= `at_least` at correlation `rho`.

    Returns the `Verdict`; raises `PropertyViolation` with the worst pair, `Inconclusive` when the budget is spent.
    `options`: domain, confidence, budget, seed, exact. See `noise_stability` for the quantity.
    """
    __tracebackhide__ = True
    given = {"rho": rho, "keep": keep, "normalisation": None if normalisation == "raw" else normalisation}
    parameters = {name: value for name, value in given.items() if value is not None}
    return claim(noise_stability, ">=", at_least, tolerance=tolerance, **parameters).require(subject, **options)


def _correlation(rho: float | None, keep: float | None) -> float:
    if (rho is None) == (keep is None):
        raise ArgumentError("give either rho= (the correlation) or keep= (the probability that a coordinate is kept)")
    if keep is not None:
        if not isinstance(keep, (int, float)) or not 0 <= keep <= 1:
            raise ArgumentError(f"keep={keep!r} is not a probability; give a number in [0, 1]")
        return float(keep)
    if not isinstance(rho, (int, float)) or not -1 <= rho <= 1:
        raise ArgumentError(f"rho={rho!r} is not a correlation; give a number in [-1, 1]")
    return float(rho)


def _draw(subject: Subject, rho: float, normalisation: str, seed: int, size: int) -> Chunk:
    generator = generator_of(seed)
    domain = subject.domain
    points = domain.sample(2 * size, generator)
    partners = domain.correlated(points, rho, generator)
    reading = subject.read(torch.cat([points, partners]))
    count = 2 * size
    first, second = _half(reading, slice(0, count)), _half(reading, slice(count, None))
    gap, tied = squared_change(first, second, subject.noise)
    gap = gap / 2
    norms = (first.values**2 + second.values**2).view(count, -1).sum(1) / 2
    product = norms - gap
    # Across the two pairs of a unit both the X and the Y are independent: half their squared distance has mean Var f.
    spread = torch.stack(
        [((part.values[0::2] - part.values[1::2]) ** 2).view(size, -1).sum(1) / 2 for part in (first, second)]
    ).mean(0)
    unit_gap, unit_product = gap.view(size, 2).mean(1), product.view(size, 2).mean(1)
    leading = {"raw": [unit_product], "centred": [spread - unit_gap], "correlation": [unit_gap, spread]}[normalisation]
    low, high = int(product.argmin()), int(product.argmax())
    return Chunk(
        torch.stack([*leading, unit_product, unit_gap, spread], 1).numpy(),
        4 * size,
        _pair(points, partners, product, high),
        _pair(points, partners, product, low),
        int(tied.sum()),
        count,
    )


def _half(reading: Reading, rows: slice) -> Reading:
    return Reading(reading.values[rows], None if reading.margin is None else reading.margin[rows])


def _pair(points: torch.Tensor, partners: torch.Tensor, score: torch.Tensor, row: int) -> Witness:
    return Witness(points[row].clone(), partner=partners[row].clone(), score=float(score[row]))


def _correlation_box(box: Box) -> Box:
    """1 - gap/variance from a box over both."""
    value, low, high = np.asarray(box.value), np.asarray(box.low), np.asarray(box.high)
    least = 1 - high[0] / low[1] if low[1] > 0 else -math.inf
    most = 1 - low[0] / high[1] if high[1] > 0 else 1.0
    return Box(1 - value[0] / value[1] if value[1] > 0 else 1.0, max(-1.0, least), min(1.0, most))


def _three_numbers(values: Array, subject: Subject, level: float) -> Mapping[str, Any]:
    """The gap, the raw, centred and correlation forms, each with its own interval at `level`."""
    product, gap, spread = values[:, -3], values[:, -2], values[:, -1]
    half = subject.diameter / 2
    both = [np.array(_mean_interval(column, (0.0, half), level / 2)) for column in (gap, spread)]
    ratio = _correlation_box(Box(*(np.array([both[0][k], both[1][k]]) for k in range(3))))
    rows = {
        "gap": _mean_interval(gap, (0.0, half), level),
        "raw": _mean_interval(product, subject.readout.products(subject.outputs), level),
        "centred": _mean_interval(spread - gap, (-half, half), level),
        "correlation": (float(ratio.value), float(ratio.low), float(ratio.high)),
    }
    return {name: dict(zip(("value", "low", "high"), row, strict=True)) for name, row in rows.items()}


def _mean_interval(column: Array, limits: tuple[float, float], level: float) -> tuple[float, float, float]:
    low, high = limits
    mean = float(column.mean())
    if math.isfinite(low) and math.isfinite(high) and high > low:
        inner = interval(unit_interval(column, limits), level)
        return mean, low + (high - low) * inner[0], low + (high - low) * inner[1]
    half = asymptotic_half_width(float(column.var(ddof=1)), len(column), level) if len(column) > 1 else math.inf
    return mean, max(low, mean - half), min(high, mean + half)


def _exact(subject: Subject, rho: float, normalisation: str) -> Exact:
    table = table_of(subject)
    smooth = table.smoothed(rho)
    products = (table.values * smooth).sum(1)
    raw = float(products.mean())
    moment, variance = table.second_moment(), table.variance()
    centred = raw - (moment - variance)
    numbers = {
        "gap": moment - raw,
        "raw": raw,
        "centred": centred,
        "correlation": centred / variance if variance > 0 else 1.0,
    }
    details: dict[str, Any] = {name: {"value": x, "low": x, "high": x} for name, x in numbers.items()}
    if table.tie_share:
        details["tie_share"] = table.tie_share
    high, low = int(products.argmax()), int(products.argmin())
    return Exact(
        numbers[normalisation],
        len(products),
        table.witness(high, float(products[high])),
        table.witness(low, float(products[low])),
        details,
    )


def _minimised(subject: Subject, witness: Witness) -> Witness:
    """Undo the differences of a pair one by one while its product stays as low."""
    point, partner = witness.point, witness.partner
    if point is None or partner is None or point.is_floating_point():
        return witness
    value = subject(point[None])
    improved = True
    while improved:
        places = (point != partner).nonzero()[:, 0]
        candidates = partner.repeat(len(places), 1)
        candidates[torch.arange(len(places)), places] = point[places]
        if not len(candidates):
            break
        products = (subject(candidates) * value).view(len(candidates), -1).sum(1)
        enough = (products <= witness.score + 1e-9 * max(1.0, abs(witness.score))).nonzero()[:, 0]
        improved = len(enough) > 0
        if improved:
            partner = candidates[int(enough[0])]
            witness = Witness(point, partner=partner, score=float(products[int(enough[0])]))
    return witness
