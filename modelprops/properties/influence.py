"""Influences: how much each single coordinate of the input matters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, generator_of
from modelprops.errors import ArgumentError, DomainError
from modelprops.estimate import Array, Number, Verdict, Witness
from modelprops.inference.sequential import Chunk, Design
from modelprops.properties.claim import claim, require_at_least_zero
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.sensitivity import sensitivities
from modelprops.properties.tables import Table, is_enumerable, table_of
from modelprops.subject import Subject

KINDS = ("variance", "probability", "geometric", "geometric-squared")
_POINTS_AT_ONCE = 2**15
_GRADIENTS_AT_ONCE = 256
_WITNESS_POINTS = 64


@measure(version=1)
def influences(subject: Subject, *, kind: str = "variance") -> Plan:
    """Influence of each coordinate, a vector of n values with simultaneous intervals.

    `kind="variance"`: Inf_i = E Var_i f = 1/2 E |f(x) - f(x^(i))|^2 with coordinate i resampled, on the cube
    1/4 E |f(x) - f(x^i)|^2 with it flipped. The n values add up to the average sensitivity. A 0/1 model has a quarter
    of the values of its ±1 form.

    `kind="probability"`: P[f(x) != f(x^i)] on the cube, which for ±1 outputs is the variance kind;
    P[f(x) != f(x^(i))] elsewhere, where the redrawn token may come out the same. A change within rounding is none.

    `kind="geometric"`: E |grad_{e_i} f(x)|_2 on points of real vectors, by automatic differentiation, where e_i is
    entry i of a flat point and the vector of position i of points (positions, dimensions). It does not add up to the
    total influence; `"geometric-squared"`, E |grad_{e_i} f(x)|_2^2, does. Both are refused on the cube and on tokens,
    which have no gradient, and for `"sign"` and `"label"`, whose gradient is 0 wherever it exists (the influence of a
    set, a boundary measure, is not its mean).

    Guarantee: exact by enumeration; confidence bounds for a bounded readout, all n at once (level/n each); asymptotic
    for an unbounded one and for gradients. The unit is one input with all its neighbours (cost 1 + n; a causal
    language model runs only the suffix behind each change, see `modelprops.prefix`); for gradients one input, whose
    backward pass counts as two evaluations an output.

    Source: O'Donnell, Analysis of Boolean Functions, 2.2 and 8.4; Keller, Mossel and Sen 2012 (geometric influence);
    Haris, Zhang and Yoshida 2026 (spec A5, A6).
    """
    if kind not in KINDS:
        raise ArgumentError(f"kind={kind!r} is unknown; use one of {', '.join(KINDS)}")
    if kind.startswith("geometric"):
        return _geometric(subject, squared=kind == "geometric-squared")
    count = subject.domain.coordinates
    probability = kind == "probability"
    largest = 1.0 if probability else subject.diameter / (4 if isinstance(subject.domain, BooleanCube) else 2)

    def draw(seed: int, size: int) -> Chunk:
        return draw_influences(subject, seed, size, probability)

    enumerable = is_enumerable(subject.domain)
    return Plan(
        design=Design(draw, ((0.0, largest),) * count, 1 + count),
        exact=(lambda: _exact(subject, probability)) if enumerable else None,
        exact_evaluations=enumerable,
        witness=lambda values, high: witness_of(subject, values, high),
        minimise=lambda witness, high: _minimised(subject, witness) if high else witness,
        hint="the coordinate above has the greatest influence; the output changes most at the input shown",
    )


def assert_no_dominant_coordinate(
    subject: Any, at_most: float, *, kind: str = "variance", tolerance: float | None = None, **options: Any
) -> Verdict:
    """Require that every coordinate's influence is <= `at_most`.

    Returns the `Verdict`; raises `PropertyViolation` whose witness names the most influential coordinate and an input
    at which it matters most, `Inconclusive` when the budget is spent. `options`: domain, confidence, budget, seed,
    exact. See `influences` for the quantity.
    """
    __tracebackhide__ = True
    parameters = {} if kind == "variance" else {"kind": kind}
    at_most = require_at_least_zero("at_most", at_most)
    return claim(influences, "<=", at_most, tolerance=tolerance, **parameters).require(subject, **options)


def draw_influences(subject: Subject, seed: int, size: int, probability: bool = False) -> Chunk:
    """Draw units of n columns: the change that each coordinate makes at one input."""
    generator = generator_of(seed)
    count = subject.domain.coordinates
    points = subject.domain.sample(size, generator)
    group = max(1, _POINTS_AT_ONCE // (1 + count))
    scale = 4 if isinstance(subject.domain, BooleanCube) else 2
    rows, ties = [], 0
    for first in range(0, size, group):
        change, _, _, tied = sensitivities(subject, points[first : first + group], generator, count)
        rows.append((change * scale > _rounding(subject)).double() if probability else change)
        ties += tied
    return Chunk(torch.cat(rows).numpy(), size * (1 + count), ties=ties, comparisons=size * count)


def exact_influences(table: Table, probability: bool = False) -> Array:
    """Influences (coordinates,) from a table."""
    if not probability:
        means: Array = table.coordinate_changes().mean(axis=1)
        return means
    grid, tied = table.grid(), table.ties.reshape(*reversed(table.levels))
    rounding = _rounding(table.subject)
    shares = []
    for coordinate, levels in enumerate(table.levels):
        axis = len(table.levels) - 1 - coordinate
        changed = np.zeros(grid.shape[:-1])
        for step in range(1, levels):
            differs = ((grid - np.roll(grid, step, axis)) ** 2).sum(-1) > rounding
            changed += differs & ~(tied | np.roll(tied, step, axis))
        # A flip always changes the coordinate; a redrawn one is the same with probability 1/levels.
        shares.append(changed.mean() / (1 if isinstance(table.subject.domain, BooleanCube) else levels))
    return np.array(shares)


def witness_of(subject: Subject, values: Number, high: bool) -> Witness | None:
    """The coordinate with the greatest (or least) influence, at the one of a few inputs where it matters most."""
    flat = np.atleast_1d(values)
    coordinate = int(flat.argmax() if high else flat.argmin())
    generator = generator_of(0)
    points = subject.domain.sample(_WITNESS_POINTS, generator)
    if isinstance(subject.domain, BooleanCube):
        near = subject.domain.neighbours(points, torch.full((len(points), 1), coordinate))[:, 0]
    else:
        near = subject.domain.resample(points, coordinate, generator)
    gap = ((subject(near) - subject(points)) ** 2).view(len(points), -1).sum(1)
    row = int(gap.argmax() if high else gap.argmin())
    return Witness(points[row].clone(), coordinate, score=float(flat[coordinate]))


def _minimised(subject: Subject, witness: Witness) -> Witness:
    """Move the other bits toward +1 while the flip changes the output as much."""
    domain, point, coordinate = subject.domain, witness.point, witness.coordinate
    if point is None or coordinate is None or not isinstance(domain, BooleanCube) or domain.n > 256:
        return witness

    def gaps(points: torch.Tensor) -> torch.Tensor:
        near = points.clone()
        near[:, coordinate] *= -1
        return ((subject(near) - subject(points)) ** 2).view(len(points), -1).sum(1)

    needed = float(gaps(point[None])[0]) * (1 - 1e-9)
    while len(candidates := domain.simpler(point)):
        enough = (gaps(candidates) >= needed).nonzero()[:, 0]
        if not len(enough):
            break
        point = candidates[int(enough[0])]
    return Witness(point.clone(), coordinate, score=witness.score)


def _rounding(subject: Subject) -> float:
    """Squared distances up to this are rounding."""
    return 0.0 if subject.readout.name in ("sign", "label") else subject.noise**2


def _exact(subject: Subject, probability: bool) -> Exact:
    table = table_of(subject)
    details = {"tie_share": table.tie_share} if table.tie_share else {}
    return Exact(exact_influences(table, probability), len(table.values), details=details)


def _geometric(subject: Subject, squared: bool) -> Plan:
    """Gradients on a domain of real vectors."""
    domain = subject.domain
    base = domain.sample(1, generator_of(0))
    if not base.is_floating_point():
        raise DomainError(
            f"a geometric influence needs points of real vectors, which {type(domain).__name__} does not have; use "
            'kind="variance", or a Gaussian or embedding domain'
        )
    if subject.readout.name in ("sign", "label"):
        raise ArgumentError(
            f'the gradient of readout="{subject.readout.name}" is 0 wherever it exists; use kind="variance", or a '
            "readout without a threshold"
        )
    count, cost = base.shape[1], 1 + 2 * subject.outputs

    def draw(seed: int, size: int) -> Chunk:
        points = domain.sample(size, generator_of(seed))
        parts = torch.split(points, _GRADIENTS_AT_ONCE)
        squares = torch.cat([squared_gradients(subject, part) for part in parts])
        return Chunk((squares if squared else squares.sqrt()).numpy(), size * cost)

    return Plan(
        design=Design(draw, ((0.0, math.inf),) * count, cost),
        witness=lambda values, high: _steepest(subject, values, high),
        hint="the position above has the greatest influence; its gradient is steepest at the input shown",
    )


def squared_gradients(subject: Subject, points: torch.Tensor) -> torch.Tensor:
    """|d f / d x_i|^2 of shape (batch, points.shape[1]), summed over outputs and over all but the first two axes."""
    with torch.enable_grad():
        leaves = points.detach().clone().requires_grad_(True)
        values = subject.differentiable(leaves, {}).view(len(points), -1)
        if not values.requires_grad:
            raise ArgumentError(
                f"{subject.name} cuts the graph between its input and its output (detach, no_grad or a step function), "
                'so it has no gradient; use kind="variance"'
            )
        total = torch.zeros(points.shape[:2], dtype=torch.float64)
        for column in range(values.shape[1]):
            (slope,) = torch.autograd.grad(values[:, column].sum(), leaves, retain_graph=column + 1 < values.shape[1])
            total += slope.double().flatten(2).square().sum(2) if slope.ndim > 2 else slope.double().square()
    return total


def _steepest(subject: Subject, values: Number, high: bool) -> Witness:
    flat = np.atleast_1d(values)
    coordinate = int(flat.argmax() if high else flat.argmin())
    points = subject.domain.sample(_WITNESS_POINTS, generator_of(0))
    slopes = squared_gradients(subject, points)[:, coordinate]
    row = int(slopes.argmax() if high else slopes.argmin())
    return Witness(points[row].clone(), coordinate, score=float(flat[coordinate]))
