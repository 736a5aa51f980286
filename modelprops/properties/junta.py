"""Junta size: on how few coordinates the function depends, up to a share of its total influence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modelprops.domains import BooleanCube
from modelprops.errors import ArgumentError
from modelprops.estimate import Array, Verdict
from modelprops.inference.sequential import Box, Chunk, Design
from modelprops.properties.claim import claim
from modelprops.properties.influence import draw_influences, exact_influences
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.tables import is_enumerable, table_of
from modelprops.subject import Subject

_ROUNDING = 1e-9


@measure(version=1, counts=True)
def junta_size(subject: Subject, *, mass: float = 0.9) -> Plan:
    """Least k such that some k coordinates carry `mass` of the total influence (variance kind, see `influences`).

    A k-junta has junta_size(mass=1) <= k; PARITY on n bits has ceil(mass n), a dictator 1, a constant 0. Small total
    influence I implies closeness to a junta on 2^{O(I/eps)} coordinates (Friedgut), which this measures directly.

    Guarantee: exact by enumeration; a confidence bound for a bounded readout; asymptotic otherwise. From simultaneous
    intervals of the n influences: the upper count is the least k for which some k coordinates at their lower bounds
    outweigh the rest at their upper bounds; the lower count is the least k that cannot be ruled out. Claims on it have
    tolerance 0. The unit is one input with all its neighbours (cost 1 + n). `details["heaviest"]` lists the
    coordinates by falling influence, as many as the value. Sampling cannot certify mass=1.

    Source: O'Donnell, Analysis of Boolean Functions, 9.6; Haris, Zhang and Yoshida 2026 (spec A10).
    """
    if isinstance(mass, bool) or not isinstance(mass, (int, float)) or not 0 < mass <= 1:
        raise ArgumentError(f"mass={mass!r} is not a share; give a number in (0, 1], such as 0.9")
    count = subject.domain.coordinates
    largest = subject.diameter / (4 if isinstance(subject.domain, BooleanCube) else 2)

    def draw(seed: int, size: int) -> Chunk:
        return draw_influences(subject, seed, size)

    def details(values: Array, level: float) -> Mapping[str, Any]:
        return _heaviest(values.mean(axis=0), mass)

    def exact() -> Exact:
        table = table_of(subject)
        found = exact_influences(table)
        size = float(counts(found, found, mass)[0])
        ties = {"tie_share": table.tie_share} if table.tie_share else {}
        return Exact(size, len(table.values), details=_heaviest(found, mass) | ties)

    enumerable = is_enumerable(subject.domain)
    return Plan(
        design=Design(draw, ((0.0, largest),) * count, 1 + count, combine=lambda box: _sizes(box, mass)),
        exact=exact if enumerable else None,
        exact_evaluations=enumerable,
        details=details,
        hint='details["heaviest"] of the estimate lists the coordinates that matter, by falling influence',
    )


def assert_junta(subject: Any, size: int, *, mass: float = 0.9, **options: Any) -> Verdict:
    """Require that at most `size` coordinates carry `mass` of the total influence.

    Returns the `Verdict`; raises `PropertyViolation`, or `Inconclusive` when the budget is spent. `options`: domain,
    confidence, budget, seed, exact. See `junta_size` for the quantity.
    """
    __tracebackhide__ = True
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ArgumentError(f"size={size!r} is not a number of coordinates; give a whole number of at least 0")
    parameters = {} if mass == 0.9 else {"mass": mass}
    return claim(junta_size, "<=", size, **parameters).require(subject, **options)


def counts(low: Array, high: Array, mass: float) -> tuple[int, int]:
    """Return the least and greatest junta size that influences between `low` and `high` can have.

    k coordinates S carry the mass if (1 - mass) sum_S - mass sum_rest >= 0. With S at its lower and the rest at its
    upper bounds this is certain, the other way round it is possible; the best S takes the largest terms.
    """
    if not np.isfinite(high).all():
        return 0, len(low)
    slack = _ROUNDING * float(np.abs(high).sum())

    def carried(inside: Array, outside: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        gains = np.sort((1 - mass) * inside + mass * outside)[::-1]
        reached: Array = np.concatenate([[0.0], np.cumsum(gains)]) - mass * float(outside.sum())
        return reached >= -slack

    certain, possible = carried(low, high), carried(high, low)
    greatest = int(certain.argmax()) if certain.any() else len(low)
    return int(possible.argmax()) if possible.any() else len(low), greatest


def _sizes(box: Box, mass: float) -> Box:
    value, low, high = (np.asarray(part) for part in (box.value, box.low, box.high))
    least, greatest = counts(low, high, mass)
    return Box(float(counts(value, value, mass)[0]), float(least), float(greatest))


def _heaviest(found: Array, mass: float) -> dict[str, Any]:
    size = counts(found, found, mass)[0]
    return {"heaviest": [int(coordinate) for coordinate in np.argsort(-found, kind="stable")[:size]]}
