"""Average sensitivity: how much the output changes when one input coordinate does."""

from __future__ import annotations

from typing import Any

import torch

from modelprops.domains import BooleanCube, generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Verdict, Witness
from modelprops.inference.sequential import Chunk, Design
from modelprops.prefix import read_neighbours
from modelprops.properties.claim import claim, require_at_least_zero
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.tables import is_enumerable, table_of
from modelprops.readouts import Reading
from modelprops.subject import Subject

MOST_NEIGHBOURS = 64
_POINTS_AT_ONCE = 2**15


@measure(version=1)
def average_sensitivity(subject: Subject, *, neighbours: int | None = None, relative: bool = False) -> Plan:
    """Average sensitivity as(f) = E_x s(f, x), the total influence of the input's coordinates.

    On the cube s(f, x) = 1/4 sum_i |f(x) - f(x^i)|^2 with x^i flipped in coordinate i: for ±1 outputs the number of
    flips that change the output. On other domains s(f, x) = 1/2 sum_i |f(x) - f(x^(i))|^2 with coordinate i resampled;
    the two agree on the cube. A 0/1 model has a quarter of the value of its ±1 form.

    Guarantee: exact by enumeration; a confidence bound for a bounded readout; asymptotic otherwise. The unit is one
    input with `neighbours` of its coordinates (all up to 64; more are sampled evenly spaced from a random start, which
    is unbiased). Near-ties of `"sign"` and `"label"` readouts are counted apart, not as sensitivity.

    `relative=True` divides by Var f, which gives the mean Fourier degree of the non-constant part (in [1, n]).

    Source: Hahn and Rofin 2024 (with squares and 1/4: spec A.2); O'Donnell, Analysis of Boolean Functions, 2.3.
    """
    count = subject.domain.coordinates
    chosen = min(count, MOST_NEIGHBOURS) if neighbours is None else neighbours
    if not isinstance(chosen, int) or not 1 <= chosen <= count:
        raise ArgumentError(f"neighbours={neighbours!r} is not a number of coordinates in 1..{count}")
    flips = isinstance(subject.domain, BooleanCube)
    # Per coordinate: (difference)^2 / 4 for a flip, / 2 for a resampled coordinate.
    largest = count * subject.diameter / (4 if flips else 2)

    def draw(seed: int, size: int) -> Chunk:
        return _draw(subject, seed, size, chosen, relative)

    cost = 1 + chosen
    ranges: tuple[tuple[float, float], ...] = ((0.0, largest),)
    if relative:
        ranges, cost = (*ranges, (0.0, subject.diameter / 2)), cost + 1
    design = Design(draw, ranges, cost, combine=_ratio if relative else None)
    enumerable = is_enumerable(subject.domain)
    return Plan(
        design=design,
        exact=(lambda: _exact(subject, relative)) if enumerable else None,
        exact_evaluations=enumerable,
        minimise=lambda witness, high: _minimised(subject, witness) if high else witness,
        hint="the flip above changes the output most; average_sensitivity = n is PARITY, 1 a dictator, "
        "about sqrt(2n/pi) a majority",
    )


def assert_low_sensitivity(
    subject: Any, at_most: float, *, relative: bool = False, tolerance: float | None = None, **options: Any
) -> Verdict:
    """Require average sensitivity <= `at_most` (`relative=True`: of f scaled to unit variance).

    Returns the `Verdict`; raises `PropertyViolation` with the worst input, `Inconclusive` when the budget is spent.
    `options`: domain, confidence, budget, seed, exact. See `average_sensitivity` for the quantity.
    """
    __tracebackhide__ = True
    parameters = {"relative": True} if relative else {}
    at_most = require_at_least_zero("at_most", at_most)
    return claim(average_sensitivity, "<=", at_most, tolerance=tolerance, **parameters).require(subject, **options)


def squared_change(before: Reading, after: Reading, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return |after - before|^2 summed over outputs, and which comparisons were too close to call (counted as 0).

    A thresholded value whose margin is within the rounding noise may differ by the batch it was computed in alone.
    """
    change = (after.values - before.values) ** 2
    if before.margin is None or after.margin is None:
        tied = torch.zeros(change.shape[:1], dtype=torch.bool)
    else:
        close = (before.margin < noise) | (after.margin < noise)
        tied = close if close.ndim == 1 else close.any(1)
        change = change.masked_fill(close if close.ndim == change.ndim else close[:, None], 0.0)
    return (change if change.ndim == 1 else change.sum(1)), tied


def sensitivities(
    subject: Subject, points: torch.Tensor, generator: torch.Generator, chosen: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return changes (points, chosen) per coordinate, the coordinates, the values at the points, and the ties.

    A change is 1/4 |f(x) - f(x^i)|^2 on the cube and 1/2 |f(x) - f(x^(i))|^2 elsewhere.
    """
    domain, count, size = subject.domain, subject.domain.coordinates, len(points)
    flips = isinstance(domain, BooleanCube)
    spaced = torch.arange(chosen) * count // chosen
    start = torch.randint(0, count, (size, 1), generator=generator) if chosen < count else torch.zeros(size, 1).long()
    places = (spaced + start) % count
    if isinstance(domain, BooleanCube):
        near = domain.neighbours(points, None if chosen == count else places)
    else:
        near = points.repeat_interleave(chosen, 0).view(size, chosen, *points.shape[1:])
        for coordinate in sorted(set(places.flatten().tolist())):
            rows, columns = (places == coordinate).nonzero(as_tuple=True)
            near[rows, columns] = domain.resample(points[rows], coordinate, generator)
    reading = read_neighbours(subject, points, near, places)
    values = reading.values.view(size, 1 + chosen, -1)
    margins = None if reading.margin is None else reading.margin.view(size, 1 + chosen, -1)
    before = Reading(
        values[:, :1].expand(-1, chosen, -1).flatten(0, 1),
        None if margins is None else margins[:, :1].expand(-1, chosen, -1).flatten(0, 1),
    )
    after = Reading(values[:, 1:].flatten(0, 1), None if margins is None else margins[:, 1:].flatten(0, 1))
    change, tied = squared_change(before, after, subject.noise)
    return change.view(size, chosen) / (4 if flips else 2), places, values[:, 0], int(tied.sum())


def _draw(subject: Subject, seed: int, size: int, chosen: int, relative: bool) -> Chunk:
    generator = generator_of(seed)
    domain = subject.domain
    points = domain.sample(size, generator)
    group = max(1, _POINTS_AT_ONCE // (1 + chosen))
    values, ties, highest, lowest = [], 0, None, None
    for first in range(0, size, group):
        part = points[first : first + group]
        change, places, base, tied = sensitivities(subject, part, generator, chosen)
        score = change.sum(1) * (domain.coordinates / chosen)
        columns = [score]
        if relative:
            other = subject(domain.sample(len(part), generator)).view(len(part), -1)
            columns.append(((base - other) ** 2).sum(1) / 2)
        values.append(torch.stack(columns, 1))
        ties += tied
        high, low = int(score.argmax()), int(score.argmin())
        highest = _more(highest, _witness(part, change, places, score, high), 1)
        lowest = _more(lowest, _witness(part, change, places, score, low), -1)
    return Chunk(
        torch.cat(values).numpy(), size * (1 + chosen + relative), highest, lowest, ties, comparisons=size * chosen
    )


def _witness(
    points: torch.Tensor, change: torch.Tensor, places: torch.Tensor, score: torch.Tensor, row: int
) -> Witness:
    return Witness(points[row].clone(), int(places[row, change[row].argmax()]), score=float(score[row]))


def _more(old: Witness | None, new: Witness, sign: int) -> Witness:
    return new if old is None or sign * new.score > sign * old.score else old


def _ratio(box: Any) -> Any:
    """as / Var from a box over (as, Var)."""
    from modelprops.inference.sequential import Box

    def safe(top: float, bottom: float) -> float:
        return top / bottom if bottom > 0 else float("inf")

    return Box(
        safe(box.value[0], box.value[1]),
        box.low[0] / box.high[1] if box.high[1] > 0 else 0.0,
        safe(box.high[0], box.low[1]),
    )


def _exact(subject: Subject, relative: bool) -> Exact:
    table = table_of(subject)
    local = table.local_sensitivity()
    average = float(local.mean())
    high, low = int(local.argmax()), int(local.argmin())
    if relative:
        variance = table.variance()
        average = average / variance if variance > 0 else 0.0
    return Exact(
        average,
        len(local),
        table.witness(high, float(local[high])),
        table.witness(low, float(local[low])),
        {"tie_share": table.tie_share} if table.tie_share else {},
    )


def _minimised(subject: Subject, witness: Witness) -> Witness:
    """Move the input toward the simplest one as long as its local sensitivity does not fall."""
    simpler = getattr(subject.domain, "simpler", None)
    count = subject.domain.coordinates
    if simpler is None or witness.point is None or not isinstance(subject.domain, BooleanCube) or count > 256:
        return witness
    improved = True
    while improved:
        improved = False
        candidates = simpler(witness.point)
        if not len(candidates):
            break
        change, _, _, _ = sensitivities(subject, candidates, generator_of(0), count)
        score = change.sum(1)
        enough = (score >= witness.score * (1 - 1e-9)).nonzero()[:, 0]
        if len(enough):
            row = int(enough[0])
            witness = Witness(candidates[row].clone(), int(change[row].argmax()), score=float(score[row]))
            improved = True
    return witness
