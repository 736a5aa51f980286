"""Symmetry: does the output stay (or move as it should) when the input is permuted or otherwise transformed?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, Domain, Tokens, generator_of
from modelprops.errors import ArgumentError, DomainError
from modelprops.estimate import Array, Verdict, Witness
from modelprops.inference.sequential import Chunk, Design
from modelprops.properties.claim import claim, require_at_least_zero
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.sensitivity import squared_change
from modelprops.properties.tables import Table, all_points, is_enumerable, points_at, table_of
from modelprops.readouts import Reading
from modelprops.subject import Subject


@measure(version=1)
def symmetry_violation(subject: Subject, *, atol: float | None = None) -> Plan:
    """Probability that a random permutation of the input changes the output: P_{x,pi}[|f(x) - f(pi x)| > atol].

    0 for a symmetric function. Permuted are the coordinates of the cube, the free positions of `Tokens`, the first
    axis of real points. `atol` (Euclidean for vectors) is by default twice the readout's rounding noise, 0 for `"sign"`
    and `"label"`, whose near-ties are no violation.

    Guarantee: exact by enumeration; a confidence bound for every readout. The unit is an input with one permutation
    (cost 2). Source: O'Donnell, Analysis of Boolean Functions, 2.1 (symmetric functions).
    """
    limit = _limit(subject, atol)
    places = _places(subject.domain)

    def draw(seed: int, size: int) -> Chunk:
        generator = generator_of(seed)
        points = subject.domain.sample(size, generator)
        order = torch.rand(size, len(places), generator=generator).argsort(1)
        partners = _permuted(points, places, order)
        wrong = _differs(subject, subject.read(points), subject.read(partners), limit)
        row = int(wrong.long().argmax())
        witness = Witness(points[row].clone(), partner=partners[row].clone(), score=1.0) if wrong[row] else None
        return Chunk(wrong.double()[:, None].numpy(), 2 * size, witness)

    enumerable = is_enumerable(subject.domain)
    return Plan(
        design=Design(draw, ((0.0, 1.0),), 2),
        exact=(lambda: _exact(subject, limit)) if enumerable else None,
        exact_evaluations=enumerable,
        minimise=lambda witness, high: _one_swap(subject, limit, witness) if high else witness,
        hint="the two inputs above are permutations of each other and their outputs differ",
    )


@measure(version=1)
def equivariance_violation(subject: Subject, *, group: Any, atol: float | None = None) -> Plan:
    """Probability that a transformation is not followed: P_{x,g}[|f(g x) - g f(x)| > atol], g uniform in `group`.

    `group` is a name or one element or a sequence of elements. An element is a callable on domain points (batch, ...),
    after which the output must be the same, or a pair of callables (on points, on outputs). Names: `"reversal"` of the
    coordinates, `"rotations"` (all cyclic shifts), `"negation"` (f(-x) = f(x)), `"odd"` (f(-x) = -f(x)). Elements must
    keep the domain's measure for the probability to be about it. `atol` as in `symmetry_violation`.

    Guarantee: exact by enumeration; a confidence bound for every readout. The unit is an input with all elements of
    the group (cost 1 + group). Source: Cohen and Welling 2016 (definition of equivariance).
    """
    elements = _elements(group, subject.domain)
    limit = _limit(subject, atol)
    cost = 1 + len(elements)

    def wrong(points: torch.Tensor) -> torch.Tensor:
        return _unfollowed(subject, elements, points, limit)

    def draw(seed: int, size: int) -> Chunk:
        points = subject.domain.sample(size, generator_of(seed))
        return _chunk(points, wrong(points), cost)

    enumerable = is_enumerable(subject.domain)

    def exact() -> Exact:
        total, worst = 0.0, None
        for points in all_points(subject.domain):
            found = _chunk(points, wrong(points), cost)
            total += float(found.values.sum())
            worst = worst or found.highest
        return Exact(total / enumerable, enumerable * cost, highest=worst)

    return Plan(
        design=Design(draw, ((0.0, 1.0),), cost),
        exact=exact if enumerable else None,
        exact_evaluations=enumerable * cost,
        minimise=lambda witness, high: _simplified(subject, wrong, witness) if high else witness,
        hint="some transformation of the input above is not followed by the output",
    )


def assert_symmetric(
    subject: Any, *, at_most: float = 0.0, tolerance: float | None = 0.01, atol: float | None = None, **options: Any
) -> Verdict:
    """Require that permutations of the input leave the output, on all but a share `at_most` of (input, permutation).

    With `at_most=0` a single changed output is a failure, whose witness is a pair that differs by one swap, and a pass
    certifies a share below `tolerance` (0 by enumeration). `options`: domain, confidence, budget, seed, exact.
    """
    __tracebackhide__ = True
    parameters = {} if atol is None else {"atol": atol}
    return claim(symmetry_violation, "<=", at_most, tolerance=tolerance, **parameters).require(subject, **options)


def assert_equivariant(
    subject: Any,
    group: Any,
    *,
    at_most: float = 0.0,
    tolerance: float | None = 0.01,
    atol: float | None = None,
    **options: Any,
) -> Verdict:
    """Require that the output follows the transformations of `group` (see `equivariance_violation`).

    Certificates and errors as `assert_symmetric`. `options`: domain, confidence, budget, seed, exact.
    """
    __tracebackhide__ = True
    parameters: dict[str, Any] = {"group": group} if atol is None else {"group": group, "atol": atol}
    return claim(equivariance_violation, "<=", at_most, tolerance=tolerance, **parameters).require(subject, **options)


def _limit(subject: Subject, atol: float | None) -> float:
    if atol is not None:
        return require_at_least_zero("atol", atol)
    return 0.0 if subject.readout.name in ("sign", "label") else 2 * subject.noise


def _differs(subject: Subject, first: Reading, second: Reading, limit: float) -> torch.Tensor:
    """(batch,): whether two readings are further apart than `limit`; ties are not."""
    change, _ = squared_change(first, second, subject.noise)
    return change > limit**2


def _places(domain: Domain) -> torch.Tensor:
    """The positions along axis 1 that may trade places."""
    if isinstance(domain, Tokens):
        return domain.free
    point = domain.sample(1, generator_of(0))
    if point.ndim < 2:
        raise DomainError(f"{type(domain).__name__} has points without an axis of coordinates; nothing can be permuted")
    return torch.arange(point.shape[1])


def _permuted(points: torch.Tensor, places: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    out = points.clone()
    rows = torch.arange(len(points))[:, None]
    out[:, places] = points[rows, places[order]]
    return out


def _exact(subject: Subject, limit: float) -> Exact:
    """Enumerate: a random permutation takes a point to a uniform point of its orbit."""
    table = table_of(subject)
    key = _orbits(table)
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    total, worst = 0.0, None
    for rows in np.split(order, starts[1:]):
        kept = rows[~table.ties[rows]]
        if len(kept) < 2:
            continue
        apart = _apart(table.values[kept], limit)
        total += apart / len(rows)
        if apart and worst is None:
            worst = _pair(table, kept, limit)
    return Exact(total / len(key), len(key), highest=worst)


def _orbits(table: Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number of each point that permutations keep: its digits, sorted."""
    base, count = table.levels[0], len(table.levels)
    rows = np.arange(len(table.values))
    digits = (rows[:, None] // base ** np.arange(count)) % base
    keys: np.ndarray[Any, np.dtype[np.int64]] = np.sort(digits, axis=1) @ base ** np.arange(count)
    return keys


def _apart(values: Array, limit: float) -> float:
    """How many ordered pairs of rows are further apart than `limit`."""
    if values.shape[1] == 1:
        ordered = np.sort(values[:, 0])
        inside = np.searchsorted(ordered, ordered + limit, "right") - np.searchsorted(ordered, ordered - limit, "left")
        return float((len(ordered) - inside).sum())
    distinct, times = np.unique(values, axis=0, return_counts=True)
    far = [times[((distinct - row) ** 2).sum(1) > limit**2].sum() for row in distinct]
    return float(times @ np.array(far))


def _pair(table: Table, rows: np.ndarray[Any, Any], limit: float) -> Witness | None:
    values = table.values[rows]
    first = int(values[:, 0].argmin())
    distance = ((values - values[first]) ** 2).sum(1)
    second = int(distance.argmax())
    if distance[second] <= limit**2:
        return None
    points = points_at(table.subject.domain, torch.from_numpy(rows[[first, second]]))
    return Witness(points[0], partner=points[1], score=1.0)


def _one_swap(subject: Subject, limit: float, witness: Witness) -> Witness:
    """Walk from one input to the other by swaps to two that differ by one swap, then simplify what they share."""
    point, partner, domain = witness.point, witness.partner, subject.domain
    if point is None or partner is None or point.is_floating_point() or point.ndim != 1:
        return witness
    path = [point]
    for place in _places(domain).tolist():
        here = path[-1]
        if here[place] != partner[place]:
            later = (here == partner[place]) & (here != partner) & (torch.arange(len(here)) > place)
            swapped = here.clone()
            other = int(later.nonzero()[0, 0])
            swapped[[place, other]] = here[[other, place]]
            path.append(swapped)
    steps = torch.stack(path)
    wrong = _differs(subject, subject.read(steps[:-1]), subject.read(steps[1:]), limit)
    if wrong.any():
        row = int(wrong.long().argmax())
        point, partner = steps[row], steps[row + 1]
    lowest = 1 if isinstance(domain, BooleanCube) else int(domain.allowed[0]) if isinstance(domain, Tokens) else None
    if lowest is not None:
        for place in _places(domain)[(point == partner)[_places(domain)]].tolist():
            pair = torch.stack([point, partner])
            pair[:, place] = lowest
            if _differs(subject, subject.read(pair[:1]), subject.read(pair[1:]), limit).any():
                point, partner = pair
    return Witness(point.clone(), partner=partner.clone(), score=1.0)


Element = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


def _elements(group: Any, domain: Domain) -> list[Element]:
    if isinstance(group, str):
        return _named(group, domain)
    one = callable(group) or (isinstance(group, tuple) and len(group) == 2 and all(map(callable, group)))
    listed: Sequence[Any] = [group] if one else list(group) if isinstance(group, Sequence) else []
    pairs = [(item, _same) if callable(item) else item for item in listed]
    if not pairs or not all(isinstance(p, tuple) and len(p) == 2 and all(map(callable, p)) for p in pairs):
        raise ArgumentError(
            f"group={group!r} is no group; give a callable on points, a pair (on points, on outputs), a sequence of "
            'these, or one of "reversal", "rotations", "negation", "odd"'
        )
    return pairs


def _named(name: str, domain: Domain) -> list[Element]:
    places = _places(domain)
    count = len(places)

    def moved(order: torch.Tensor) -> Element:
        return (lambda points: _permuted(points, places, order.expand(len(points), -1))), _same

    if name == "reversal":
        return [moved(torch.arange(count).flip(0))]
    if name == "rotations":
        return [moved(torch.arange(count).roll(shift)) for shift in range(1, count)] or [(_same, _same)]
    if name in ("negation", "odd") and isinstance(domain, Tokens):
        raise ArgumentError(f"group={name!r} negates points, which token ids do not allow; use mp.BooleanCube(n)")
    if name in ("negation", "odd"):
        return [(torch.neg, torch.neg if name == "odd" else _same)]
    raise ArgumentError(f'group={name!r} is unknown; use "reversal", "rotations", "negation", "odd" or callables')


def _unfollowed(subject: Subject, elements: list[Element], points: torch.Tensor, limit: float) -> torch.Tensor:
    """(batch, elements): whether the output does not follow."""
    before = subject.read(points)
    columns = []
    for on_points, on_outputs in elements:
        moved = on_points(points)
        expected = on_outputs(before.values)
        if moved.shape != points.shape or expected.shape != before.values.shape:
            raise ArgumentError(
                f"a group element turns points {tuple(points.shape)} into {tuple(moved.shape)} and outputs "
                f"{tuple(before.values.shape)} into {tuple(expected.shape)}; both must keep their shape"
            )
        columns.append(_differs(subject, Reading(expected, before.margin), subject.read(moved), limit))
    return torch.stack(columns, 1)


def _chunk(points: torch.Tensor, wrong: torch.Tensor, cost: int) -> Chunk:
    share = wrong.double().mean(1)
    row = int(share.argmax())
    witness = Witness(points[row].clone(), score=float(share[row])) if share[row] else None
    return Chunk(share[:, None].numpy(), len(points) * cost, witness)


def _simplified(subject: Subject, wrong: Callable[[torch.Tensor], torch.Tensor], witness: Witness) -> Witness:
    simpler = getattr(subject.domain, "simpler", None)
    while simpler is not None and witness.point is not None:
        candidates = simpler(witness.point)
        share = wrong(candidates).double().mean(1) if len(candidates) else torch.zeros(0)
        if not share.any():
            break
        row = int((share > 0).long().argmax())
        witness = Witness(candidates[row].clone(), score=float(share[row]))
    return witness
