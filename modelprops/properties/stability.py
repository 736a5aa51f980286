"""Noise stability: how much of the output survives when every input coordinate is partly redrawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    subject: Subject,
    *,
    rho: float | Sequence[float] | None = None,
    keep: float | None = None,
    normalisation: str = "raw",
) -> Plan:
    """Noise stability Stab_rho(f) = E f(X)·f(Y), with Y a rho-correlated partner of X.

    Each coordinate of Y is that of X with probability rho and else redrawn (on the cube E x_i y_i = rho, and negative
    rho negates; on R^d Y = rho X + sqrt(1 - rho^2) Z). `keep=` names the probability itself; note that keeping with
    probability (1 + r)/2 and else *redrawing* has correlation (1 + r)/2, not r. Several `rho` give a vector with
    simultaneous intervals, from one chain of nested noise (one evaluation each beside the first).

    `normalisation`: `"raw"` is E f(X)·f(Y), a second moment; `"centred"` subtracts |E f|^2, the covariance;
    `"correlation"` divides that by Var f. `details` reports all three and the gap E f^2 - Stab = 1/2 E |f(X) - f(Y)|^2,
    each with its own interval.

    Guarantee: exact by enumeration; a confidence bound for a bounded readout; asymptotic otherwise. The unit is two
    independent pairs, so that the gap is measured on pairs and the variance across them.

    Source: O'Donnell, Analysis of Boolean Functions, 2.4 and 8.2; Haris, Zhang and Yoshida 2026 (spec A1-A4).
    """
    rhos = _correlations(rho, keep)
    single = keep is not None or not isinstance(rho, Sequence)
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} is unknown; use one of {', '.join(NORMALISATIONS)}")
    # Refuse what the domain cannot draw before anything is spent.
    subject.domain.correlated(subject.domain.sample(1, generator_of(0)), min(rhos), generator_of(0))
    half, count = subject.diameter / 2, len(rhos)
    columns: dict[str, tuple[tuple[float, float], ...]] = {
        "raw": (subject.readout.products(subject.outputs),) * count,
        "centred": ((-half, half),) * count,
        "correlation": ((0.0, half),) * (count + 1),
    }

    def draw(seed: int, size: int) -> Chunk:
        return _draw(subject, rhos, normalisation, seed, size)

    def combine(box: Box) -> Box:
        return _correlation_box(box, single)

    design = Design(
        draw, columns[normalisation], 2 * (count + 1), combine=combine if normalisation == "correlation" else None
    )
    enumerable = is_enumerable(subject.domain)
    return Plan(
        design=design,
        exact=(lambda: _exact(subject, rhos, normalisation, single)) if enumerable else None,
        exact_evaluations=enumerable,
        details=(lambda values, level: _three_numbers(values, subject, level)) if single else None,
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


def _correlations(rho: float | Sequence[float] | None, keep: float | None) -> tuple[float, ...]:
    if (rho is None) == (keep is None):
        raise ArgumentError("give either rho= (the correlation) or keep= (the probability that a coordinate is kept)")
    if keep is not None:
        if not isinstance(keep, (int, float)) or not 0 <= keep <= 1:
            raise ArgumentError(f"keep={keep!r} is not a probability; give a number in [0, 1]")
        return (float(keep),)
    several = isinstance(rho, Sequence) and not isinstance(rho, str)
    values = tuple(rho) if isinstance(rho, Sequence) else (rho,)
    least = 0 if several else -1
    if not values or any(not isinstance(each, (int, float)) or not least <= each <= 1 for each in values):
        raise ArgumentError(f"rho={rho!r} is not a correlation; give a number in [-1, 1], or several in [0, 1]")
    return tuple(float(each) for each in values if each is not None)


def nested_partners(
    subject: Subject, points: torch.Tensor, rhos: Sequence[float], generator: torch.Generator
) -> list[torch.Tensor]:
    """Return a partner of `points` for each correlation, each drawn from the one before: correlations multiply."""
    partners: list[torch.Tensor] = [points] * len(rhos)
    previous, nearest = points, 1.0
    for place in sorted(range(len(rhos)), key=lambda k: -rhos[k]):
        ratio = rhos[place] / nearest if nearest else 0.0
        previous, nearest = subject.domain.correlated(previous, ratio, generator), rhos[place]
        partners[place] = previous
    return partners


def _draw(subject: Subject, rhos: tuple[float, ...], normalisation: str, seed: int, size: int) -> Chunk:
    generator = generator_of(seed)
    count, several = 2 * size, len(rhos)
    points = subject.domain.sample(count, generator)
    partners = nested_partners(subject, points, rhos, generator)
    reading = subject.read(torch.cat([points, *partners]))
    parts = [rows_of(reading, k * count, (k + 1) * count) for k in range(several + 1)]
    gaps, products, ties = [], [], 0
    for part in parts[1:]:
        gap, tied = squared_change(parts[0], part, subject.noise)
        norms = (parts[0].values ** 2 + part.values**2).view(count, -1).sum(1) / 2
        gaps.append(gap / 2)
        products.append(norms - gap / 2)
        ties += int(tied.sum())
    # Across the two pairs of a unit both the X and the Y are independent: half their squared distance has mean Var f.
    ends = (parts[0], parts[-1])
    spread = torch.stack([((p.values[0::2] - p.values[1::2]) ** 2).view(size, -1).sum(1) / 2 for p in ends]).mean(0)
    unit_gaps = [gap.view(size, 2).mean(1) for gap in gaps]
    unit_products = [product.view(size, 2).mean(1) for product in products]
    leading = {
        "raw": unit_products,
        "centred": [spread - gap for gap in unit_gaps],
        "correlation": [*unit_gaps, spread],
    }[normalisation]
    low, high = int(products[0].argmin()), int(products[0].argmax())
    return Chunk(
        torch.stack([*leading, unit_products[0], unit_gaps[0], spread], 1).numpy(),
        count * (several + 1),
        _pair(points, partners[0], products[0], high),
        _pair(points, partners[0], products[0], low),
        ties,
        count * several,
    )


def rows_of(reading: Reading, start: int, stop: int) -> Reading:
    """Return a slice of a reading, margins included."""
    return Reading(reading.values[start:stop], None if reading.margin is None else reading.margin[start:stop])


def _pair(points: torch.Tensor, partners: torch.Tensor, score: torch.Tensor, row: int) -> Witness:
    return Witness(points[row].clone(), partner=partners[row].clone(), score=float(score[row]))


def _correlation_box(box: Box, single: bool) -> Box:
    """1 - gap/variance for every gap, from a box over the gaps and, last, the variance."""
    value, low, high = (np.asarray(part, dtype=np.float64) for part in (box.value, box.low, box.high))
    count = len(value) - 1

    def remaining(gap: Array, variance: float, empty: float) -> Array:
        return 1 - gap / variance if variance > 0 else np.full(count, empty)

    middle = remaining(value[:-1], float(value[-1]), 1.0)
    least = np.maximum(remaining(high[:-1], float(low[-1]), -1.0), -1.0)
    most = np.minimum(remaining(low[:-1], float(high[-1]), 1.0), 1.0)
    return Box(float(middle[0]), float(least[0]), float(most[0])) if single else Box(middle, least, most)


def _three_numbers(values: Array, subject: Subject, level: float) -> Mapping[str, Any]:
    """The gap, the raw, centred and correlation forms, each with its own interval at `level`."""
    product, gap, spread = values[:, -3], values[:, -2], values[:, -1]
    half = subject.diameter / 2
    both = [np.array(_mean_interval(column, (0.0, half), level / 2)) for column in (gap, spread)]
    ratio = _correlation_box(Box(*(np.array([both[0][k], both[1][k]]) for k in range(3))), single=True)
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


def _exact(subject: Subject, rhos: tuple[float, ...], normalisation: str, single: bool) -> Exact:
    table = table_of(subject)
    moment, variance = table.second_moment(), table.variance()
    products = (table.values * table.smoothed(rhos[0])).sum(1)
    rows: list[dict[str, float]] = []
    for rho in rhos:
        raw = float((table.values * table.smoothed(rho)).sum(1).mean())
        centred = raw - (moment - variance)
        correlation = centred / variance if variance > 0 else 1.0
        rows.append({"gap": moment - raw, "raw": raw, "centred": centred, "correlation": correlation})
    details: dict[str, Any] = {}
    if single:
        details = {name: {"value": x, "low": x, "high": x} for name, x in rows[0].items()}
    if table.tie_share:
        details["tie_share"] = table.tie_share
    high, low = int(products.argmax()), int(products.argmin())
    return Exact(
        rows[0][normalisation] if single else np.array([row[normalisation] for row in rows]),
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
    limit = witness.score + 1e-9 * max(1.0, abs(witness.score))
    single = True  # first try pairs with one difference alone, then undo one difference after another
    while True:
        places = (point != partner).nonzero()[:, 0]
        candidates = (point if single else partner).repeat(len(places), 1)
        candidates[torch.arange(len(places)), places] = (partner if single else point)[places]
        if not len(candidates):
            break
        products = (subject(candidates) * value).view(len(candidates), -1).sum(1)
        enough = (products <= limit).nonzero()[:, 0]
        if len(enough):
            partner = candidates[int(enough[0])]
            witness = Witness(point, partner=partner, score=float(products[int(enough[0])]))
        if single and not len(enough):
            single = False
        elif single or not len(enough):
            break
    return witness
