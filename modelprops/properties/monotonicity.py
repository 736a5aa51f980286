"""Monotonicity: raising an input coordinate never lowers the output."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, generator_of
from modelprops.errors import ArgumentError, DomainError
from modelprops.estimate import Verdict, Witness
from modelprops.inference.sequential import Chunk, Design
from modelprops.properties.claim import claim, require_at_least_zero
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.tables import is_enumerable, points_at, table_of
from modelprops.readouts import Reading
from modelprops.subject import Subject

_POINTS_AT_ONCE = 2**15


@measure(version=1)
def monotonicity_violation(subject: Subject, *, atol: float | None = None) -> Plan:
    """Share of the cube's edges along which f falls: P_{x,i}[f(x with x_i = +1) < f(x with x_i = -1) - atol].

    0 for a monotone function, 1/2 for PARITY. A ±1 function with this share v is within n v of a monotone one
    (Goldreich, Goldwasser, Lehman, Ron and Samorodnitsky 2000). `atol` is by default twice the rounding noise of the
    readout; near-ties of a `"sign"` readout are no violation.

    Guarantee: exact by enumeration; a confidence bound for every readout, since the unit is one input with the share
    of its n edges that fall (cost 1 + n). On the cube only: other domains have no order of their coordinates' values.

    Source: O'Donnell, Analysis of Boolean Functions, 2.2; Goldreich et al., Combinatorica 20 (2000).
    """
    domain = subject.domain
    if not isinstance(domain, BooleanCube):
        raise DomainError(
            f"monotonicity is defined on mp.BooleanCube(n); {type(domain).__name__} has no order of its values"
        )
    if subject.outputs != 1:
        raise ArgumentError(f"the readout has {subject.outputs} outputs; choose one, such as readout=('logit', 0)")
    margin = 2 * subject.noise if atol is None else require_at_least_zero("atol", atol)
    count = domain.n

    def draw(seed: int, size: int) -> Chunk:
        return _draw(subject, margin, seed, size)

    enumerable = is_enumerable(domain)
    return Plan(
        design=Design(draw, ((0.0, 1.0),), 1 + count),
        exact=(lambda: _exact(subject, margin)) if enumerable else None,
        exact_evaluations=enumerable,
        minimise=lambda witness, high: _minimised(subject, margin, witness) if high else witness,
        hint="raising the coordinate shown from -1 to +1 lowers the output",
    )


def assert_monotone(
    subject: Any,
    *,
    at_most: float = 0.0,
    tolerance: float | None = 0.01,
    atol: float | None = None,
    **options: Any,
) -> Verdict:
    """Require that f is monotone: the share of violating edges is <= `at_most`.

    With `at_most=0` a single violating edge is a failure, with its minimal input as the witness, and a pass certifies a
    share below `tolerance` (0 by enumeration). `options`: domain, confidence, budget, seed, exact.
    """
    __tracebackhide__ = True
    parameters = {} if atol is None else {"atol": atol}
    return claim(monotonicity_violation, "<=", at_most, tolerance=tolerance, **parameters).require(subject, **options)


def _falls(subject: Subject, points: torch.Tensor, margin: float) -> torch.Tensor:
    """(batch, n): whether f falls when coordinate i rises from -1 to +1 and the others stay."""
    domain = subject.domain
    assert isinstance(domain, BooleanCube)
    block = torch.cat([points[:, None], domain.neighbours(points)], 1)
    reading = subject.read(block.flatten(0, 1))
    values = reading.values.view(len(points), 1 + domain.n)
    rise = (values[:, 1:] - values[:, :1]) * torch.where(points > 0, -1.0, 1.0)
    return (rise < -margin) & ~_tied(subject, reading, values.shape)


def _tied(subject: Subject, reading: Reading, shape: torch.Size) -> torch.Tensor:
    if reading.margin is None or subject.readout.name != "sign":
        return torch.zeros(1, 1, dtype=torch.bool)
    close = reading.margin.view(shape) < subject.noise
    return close[:, 1:] | close[:, :1]


def _draw(subject: Subject, margin: float, seed: int, size: int) -> Chunk:
    points = subject.domain.sample(size, generator_of(seed))
    n = subject.domain.coordinates
    falls = torch.cat(
        [_falls(subject, part, margin) for part in torch.split(points, max(1, _POINTS_AT_ONCE // (1 + n)))]
    )
    share = falls.double().mean(1)
    row = int(share.argmax())
    highest = _witness(points[row], falls[row]) if falls[row].any() else None
    return Chunk(share[:, None].numpy(), size * (1 + n), highest, comparisons=size * n)


def _witness(point: torch.Tensor, falls: torch.Tensor) -> Witness:
    return Witness(point.clone(), int(falls.long().argmax()), score=float(falls.double().mean()))


def _exact(subject: Subject, margin: float) -> Exact:
    table = table_of(subject)
    grid, tied = table.grid()[..., 0], table.ties.reshape(*reversed(table.levels))
    count = len(table.levels)
    share, worst = 0.0, None
    for coordinate in range(count):
        axis = count - 1 - coordinate
        # Level 0 is +1 and level 1 is -1.
        raised, lowered = grid.take(0, axis), grid.take(1, axis)
        falls = (raised < lowered - margin) & ~(tied.take(0, axis) | tied.take(1, axis))
        share += falls.mean() / count
        if worst is None and falls.any():
            place = np.insert(np.argwhere(falls)[0], axis, 1)
            row = int(np.ravel_multi_index(tuple(place), grid.shape))
            worst = Witness(points_at(subject.domain, torch.tensor([row]))[0], coordinate, score=1.0)
    return Exact(float(share), len(table.values), highest=worst)


def _minimised(subject: Subject, margin: float, witness: Witness) -> Witness:
    """Move the other coordinates toward +1 while the same edge falls."""
    domain, point, coordinate = subject.domain, witness.point, witness.coordinate
    if point is None or coordinate is None or not isinstance(domain, BooleanCube) or domain.n > 256:
        return witness
    while len(candidates := domain.simpler(point)):
        falls = _falls(subject, candidates, margin)
        kept = falls[:, coordinate] & (candidates[:, coordinate] == point[coordinate])
        if not kept.any():
            break
        row = int(kept.long().argmax())
        point, witness = candidates[row], _at(candidates[row], coordinate, falls[row])
    # Score it as it is now: the share of the final input's edges that fall.
    return _at(point, coordinate, _falls(subject, point[None], margin)[0])


def _at(point: torch.Tensor, coordinate: int, falls: torch.Tensor) -> Witness:
    return Witness(point.clone(), coordinate, score=float(falls.double().mean()))
