"""Spectral tails: how much of the function sits at high degree, and the degree that holds most of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Array, Verdict
from modelprops.inference.levels import MOST_LEVELS, Row, gap_row, influence_row, moment_row, tail_bounds
from modelprops.inference.sequential import Box, Chunk, Design
from modelprops.properties.claim import claim, require_at_least_zero
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.sensitivity import MOST_NEIGHBOURS, sensitivities, squared_change
from modelprops.properties.spectrum import level_weights_of
from modelprops.properties.stability import nested_partners, rows_of
from modelprops.properties.tables import is_enumerable
from modelprops.readouts import Reading
from modelprops.subject import Subject

RHOS = (0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3)
METHODS = ("best", "stability", "sensitivity")
RELATIVE = (None, "moment", "variance")


@measure(version=1)
def spectral_tail(
    subject: Subject,
    *,
    degree: int,
    method: str = "best",
    rhos: Sequence[float] = RHOS,
    relative: str | None = None,
) -> Plan:
    """Spectral tail W^{>=k}(f): the weight of f at degree k and above (sum over the outputs of a vector).

    `method`: `"sensitivity"` I[f]/k (Markov on levels); `"stability"` min over rho of E D_rho / (1 - rho^k) with D the
    noise gap 1/2 |f(X) - f(Y)|^2; `"best"` the linear programme over level weights with every measured gap and E f^2
    as two-sided rows, which contains the other. `relative="moment"` divides by E f^2, `"variance"` by Var f.

    The estimate's `low` and `high` bound the tail at the stated confidence; `value` is the upper bound that the point
    estimates alone give (for `"best"`: `high`), since no unbiased estimate of a tail exists. Exact on enumerable
    domains. Guarantee: exact; a confidence bound for a bounded readout; asymptotic otherwise; the error rate is shared
    among the rows. Only for product measures (degree is not defined on others). On R^d degree is Hermite degree.

    Raises `ArgumentError` on a domain that is not a product measure.
    Source: Haris, Zhang and Yoshida 2026 (spec A7-A9, D).
    """
    require_product(subject, "spectral_tail")
    if not isinstance(degree, int) or degree < 1:
        raise ArgumentError(f"degree={degree!r} is not a whole number of at least 1")
    if method not in METHODS:
        raise ArgumentError(f"method={method!r} is unknown; use one of {', '.join(METHODS)}")
    if method == "sensitivity" and not hasattr(subject.domain, "levels"):
        raise ArgumentError(
            "method='sensitivity' counts resampled coordinates, which on R^d is not Hermite degree; use 'best' or "
            "'stability'"
        )
    if relative not in RELATIVE:
        raise ArgumentError(f'relative={relative!r} is unknown; use None, "moment" or "variance"')

    def finish(rows: _Rows) -> tuple[float, float]:
        if method == "sensitivity":
            return 0.0, rows.influence[1] / degree
        if method == "stability":
            return 0.0, min(high / (1 - rho**degree) for rho, (_, high) in rows.gaps.items() if rho < 1)
        return rows.tail(degree)

    def exact() -> Exact:
        weights, evaluations = level_weights_of(subject)
        scale = {None: 1.0, "moment": float(weights.sum()), "variance": float(weights[1:].sum())}[relative]
        tail = float(weights[degree:].sum())
        return Exact(tail / scale if scale > 0 else 0.0, evaluations, details={"level_weights": weights})

    return _plan(subject, rhos, method == "sensitivity", relative, finish, exact)


@measure(version=1)
def degree_at(subject: Subject, *, mass: float = 0.9, rhos: Sequence[float] = RHOS) -> Plan:
    """Smallest T with W^{<=T} >= `mass` times E f^2: the degree that holds most of the function.

    `low` and `high` are bounds from the linear programme over level weights at the stated confidence; `value` is
    `high`, a degree that certainly suffices. Guarantee and domains as `spectral_tail`; exact on enumerable domains.
    Source: Haris, Zhang and Yoshida 2026 (spec A7: (1 - mass, T+1)-concentration).
    """
    require_product(subject, "degree_at")
    if not isinstance(mass, (int, float)) or not 0 < mass <= 1:
        raise ArgumentError(f"mass={mass!r} is not a share; give a number in (0, 1]")

    def finish(rows: _Rows) -> tuple[float, float]:
        lost = 1 - mass
        least = _first(rows.levels, lambda t: rows.tail(t + 1)[0] <= lost * rows.moment[1] + 1e-12)
        most = _first(rows.levels, lambda t: rows.tail(t + 1)[1] <= lost * rows.moment[0] + 1e-12)
        return float(least), float(most)

    def exact() -> Exact:
        weights, evaluations = level_weights_of(subject)
        reached = np.cumsum(weights) >= mass * weights.sum() - 1e-12
        return Exact(float(np.argmax(reached)), evaluations, details={"level_weights": weights})

    return _plan(subject, rhos, False, None, finish, exact)


def assert_low_degree(
    subject: Any,
    *,
    degree: int,
    tail_at_most: float,
    method: str = "best",
    relative: str | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Verdict:
    """Require spectral tail W^{>=degree} <= `tail_at_most`.

    Returns the `Verdict`; raises `PropertyViolation` or `Inconclusive`. See `spectral_tail` for the quantity.
    """
    __tracebackhide__ = True
    bound = require_at_least_zero("tail_at_most", tail_at_most)
    parameters = {"method": method} if method != "best" else {}
    parameters |= {"relative": relative} if relative else {}
    return claim(spectral_tail, "<=", bound, tolerance=tolerance, degree=degree, **parameters).require(
        subject, **options
    )


def require_product(subject: Subject, quantity: str) -> None:
    """Refuse a domain whose coordinates are not independent."""
    if not getattr(subject.domain, "product", False):
        raise ArgumentError(
            f"{quantity} needs a product measure, and {type(subject.domain).__name__} is not one (a corpus, or no "
            "`product = True`): level weights are not defined there. Use independent tokens, mp.Tokens(...)"
        )


class _Rows:
    """The measured intervals: gaps by rho, the second moment, and total influence where it was measured."""

    def __init__(self, subject: Subject, gaps: dict[float, tuple[float, float]], moment: tuple[float, float]) -> None:
        count = subject.domain.coordinates
        # On R^d degrees have no end: the domain is one whose coordinates take no finite number of values.
        self.open_ended = not hasattr(subject.domain, "levels") or count > MOST_LEVELS
        self.levels = MOST_LEVELS if self.open_ended else count
        self.gaps = gaps
        self.moment = moment
        self.influence = (0.0, math.inf)

    def tail(self, degree: int) -> tuple[float, float]:
        if degree > self.levels and not self.open_ended:
            return 0.0, 0.0
        rows: list[Row] = [gap_row(rho, self.levels, *limits) for rho, limits in self.gaps.items()]
        rows.append(moment_row(self.levels, *self.moment))
        if math.isfinite(self.influence[1]):
            rows.append(influence_row(self.levels, *self.influence))
        return tail_bounds(min(degree, self.levels), self.levels, rows, open_ended=self.open_ended)


def _plan(
    subject: Subject,
    rhos: Sequence[float],
    by_influence: bool,
    relative: str | None,
    finish: Callable[[_Rows], tuple[float, float]],
    exact: Callable[[], Exact],
) -> Plan:
    chain = sorted({float(rho) for rho in rhos}, reverse=True)
    if not chain or not all(0 <= rho < 1 for rho in chain):
        raise ArgumentError(f"rhos={tuple(rhos)!r} are not correlations in [0, 1)")
    count = subject.domain.coordinates
    half = subject.diameter / 2
    low, high = subject.readout.products(subject.outputs)
    chosen = min(count, MOST_NEIGHBOURS)
    # Components: one gap a correlation (or the influence), then E f^2, then Var f.
    first = [(0.0, count * half)] if by_influence else [(0.0, half)] * len(chain)
    ranges = (*first, (max(0.0, low), high), (0.0, half))

    def draw(seed: int, size: int) -> Chunk:
        return _draw(subject, chain, by_influence, chosen, seed, size)

    def combine(box: Box) -> Box:
        value, low, high = (np.asarray(part) for part in (box.value, box.low, box.high))
        bounds = [finish(_rows(subject, chain, by_influence, edges)) for edges in ((low, high), (value, value))]
        (least, most), (_, point) = bounds
        if relative is not None:
            place = -2 if relative == "moment" else -1
            least = least / high[place] if high[place] > 0 else 0.0
            most = most / low[place] if low[place] > 0 else math.inf
            point = point / value[place] if value[place] > 0 else math.inf
        return Box(min(max(point, least), most), least, most)

    cost = 2 + chosen if by_influence else len(chain) + 2
    enumerable = is_enumerable(subject.domain)
    return Plan(
        Design(draw, ranges, cost, combine=combine, first=64),
        exact if enumerable else None,
        enumerable,
        hint="the tail bound falls with more samples, with another method, and with a higher degree",
    )


def _rows(subject: Subject, chain: list[float], by_influence: bool, edges: tuple[Array, Array]) -> _Rows:
    low, high = edges
    moment = (float(low[-2]), float(high[-2]))
    if by_influence:
        rows = _Rows(subject, {}, moment)
        rows.influence = (float(low[0]), float(high[0]))
        return rows
    return _Rows(subject, {rho: (float(low[k]), float(high[k])) for k, rho in enumerate(chain)}, moment)


def _draw(subject: Subject, chain: list[float], by_influence: bool, chosen: int, seed: int, size: int) -> Chunk:
    generator = generator_of(seed)
    domain = subject.domain
    points = domain.sample(size, generator)
    if by_influence:
        change, _, base, _ = sensitivities(subject, points, generator, chosen)
        columns = [change.sum(1) * (domain.coordinates / chosen)]
        reading = Reading(base.view(size, -1))
        cost = 2 + chosen
    else:
        whole = subject.read(torch.cat([points, *nested_partners(subject, points, chain, generator)]))
        parts = [rows_of(whole, k * size, (k + 1) * size) for k in range(len(chain) + 1)]
        reading = parts[0]
        columns = [squared_change(reading, part, subject.noise)[0] / 2 for part in parts[1:]]
        cost = len(chain) + 2
    moment = (reading.values.view(size, -1) ** 2).sum(1)
    other = subject(domain.sample(size, generator)).view(size, -1)
    columns += [moment, ((reading.values.view(size, -1) - other) ** 2).sum(1) / 2]
    return Chunk(torch.stack(columns, 1).numpy(), size * cost)


def _first(most: int, holds: Callable[[int], bool]) -> int:
    """Least t in 0..most with holds(t), for a condition that stays true once it is."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
