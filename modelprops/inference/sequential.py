"""Draw in growing chunks until a claim is decided, an interval is narrow enough, or the budget is spent.

A *unit* is one independent draw (an input with its neighbours, a pair, a parameter direction): a vector of
components, each with a known range or an infinite one. A measure is the mean of a one-component unit, or a function of
the means of several (`Design.combine`), monotone enough that it maps a box of confidence intervals to an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from modelprops.errors import ArgumentError
from modelprops.estimate import Array, Number, Witness
from modelprops.inference.betting import Wealth, interval, lower_bound
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.seeds import derive


@dataclass(frozen=True)
class Chunk:
    """What one chunk of a sampler returns: a pure function of (subject, seed, size).

    `values` has shape (units, columns): the components first, then columns that only `Plan.details` reads. `highest`
    and `lowest` are the units with the most extreme values.
    `shared_variance` is the variance of the chunk's mean that its units share (inputs common to all directions).
    """

    values: Array
    evaluations: int
    highest: Witness | None = None
    lowest: Witness | None = None
    ties: int = 0
    comparisons: int = 0
    shared_variance: float = 0.0


@dataclass(frozen=True)
class Box:
    """Simultaneous intervals: `value`, `low`, `high` of one shape (or scalars)."""

    value: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class Design:
    """How units are drawn: a chunk from (seed, units), the range of each component, and how they combine.

    The error rate is split evenly among the components. `first` is the least size of a chunk (by default 16, and 64
    where only an asymptotic interval exists), `evaluations_per_unit` a forecast used against the budget. `sizes` fixes
    the chunks (those of a baseline, which are drawn again); without it they grow until the budget is spent. `summarise`
    maps a sample and a level to an anytime-valid box where the measure is no function of means (quantiles, a minimum).
    """

    draw: Callable[[int, int], Chunk]
    ranges: tuple[tuple[float, float], ...]
    evaluations_per_unit: int
    combine: Callable[[Box], Box] | None = None
    first: int | None = None
    largest: int = 4096
    sizes: tuple[int, ...] | None = None
    progress: Callable[[int, int], None] | None = None
    summarise: Callable[[Sample, float], Box] | None = None

    @property
    def bounded(self) -> bool:
        """Whether every component has a known range, so that finite-sample bounds exist."""
        return all(math.isfinite(low) and math.isfinite(high) for low, high in self.ranges)


@dataclass
class Sample:
    """All units drawn so far, and what was spent on them."""

    chunks: list[Chunk] = field(default_factory=list)
    highest: Witness | None = None
    lowest: Witness | None = None

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk and the most extreme witnesses."""
        self.chunks.append(chunk)
        if chunk.highest and (self.highest is None or chunk.highest.score > self.highest.score):
            self.highest = chunk.highest
        if chunk.lowest and (self.lowest is None or chunk.lowest.score < self.lowest.score):
            self.lowest = chunk.lowest

    @property
    def values(self) -> Array:
        """(units, components), in drawing order."""
        return np.concatenate([chunk.values for chunk in self.chunks])

    @property
    def units(self) -> int:
        """How many independent units were drawn."""
        return sum(len(chunk.values) for chunk in self.chunks)

    @property
    def evaluations(self) -> int:
        """How many model evaluations they cost."""
        return sum(chunk.evaluations for chunk in self.chunks)

    @property
    def tie_share(self) -> float:
        """Share of the comparisons that were too close to call."""
        total = sum(chunk.comparisons for chunk in self.chunks)
        return sum(chunk.ties for chunk in self.chunks) / total if total else 0.0


@dataclass(frozen=True)
class Decision:
    """`outcome` (`pass`, `fail`, `inconclusive`), the sample behind it, the log e-value against the rejected side."""

    outcome: str
    sample: Sample
    log_e: float | None


def chunks(design: Design, seed: int, budget: int) -> Iterator[Chunk]:
    """Yield chunks of growing size (a quarter more in total each time) until the budget would be exceeded.

    The sizes depend on nothing but the design, so the same seed draws the same units for any batch size; only the
    last chunk before the budget is cut to fit it.
    """
    first = design.first or (16 if design.bounded else 64)
    total, spent, index = 0, 0, 0
    while True:
        if design.sizes is not None and index == len(design.sizes):
            return
        size = design.sizes[index] if design.sizes else min(max(first, math.ceil(total / 4)), design.largest)
        size = min(size, (budget - spent) // design.evaluations_per_unit)
        if size < 1:
            return
        chunk = design.draw(derive(seed, index), size)
        total, spent, index = total + len(chunk.values), spent + chunk.evaluations, index + 1
        if design.progress is not None:
            design.progress(spent, budget)
        yield chunk


def decide(
    design: Design, *, comparison: str, threshold: float, tolerance: float, level: float, budget: int, seed: int
) -> Decision:
    """Decide whether the measure is `<=` or `>=` the threshold.

    Confidence bound: `pass` certifies measure < threshold + tolerance (for `<=`), `fail` certifies
    measure > threshold - tolerance, each wrong with probability at most `level` / 2, whenever it stops.
    """
    sample = Sample()
    test: Callable[[], tuple[str, float | None]]
    if len(design.ranges) == 1 and design.combine is None and design.bounded and design.summarise is None:
        bets = _TwoSided(design.ranges[0], comparison, threshold, tolerance, level)
        test = bets.outcome
    else:
        bets = None

        def test() -> tuple[str, float | None]:
            return outcome_of(bounds(design, sample, level), comparison, threshold, tolerance), None

    outcome, log_e = "inconclusive", None
    for chunk in chunks(design, seed, budget):
        sample.add(chunk)
        if bets:
            bets.update(chunk.values[:, 0])
        outcome, log_e = test()
        if outcome != "inconclusive":
            break
    if not sample.chunks:
        raise _too_small(budget, design)
    return Decision(outcome, sample, log_e)


def collect(
    design: Design, *, width: float | None, level: float, budget: int, seed: int, relative: float = 0.1
) -> tuple[Sample, Box]:
    """Draw until the interval is narrow or the budget is spent; return the sample and its interval.

    Narrow is `width`, or without one `relative` times the value (of the widest component).
    """
    sample, box = Sample(), None
    due = 0
    for chunk in chunks(design, seed, budget):
        sample.add(chunk)
        # An interval costs a root search over all units: look at it when the sample has grown by half.
        if sample.units >= due:
            due = math.ceil(1.5 * sample.units)
            box = bounds(design, sample, level)
            enough = width if width is not None else relative * float(np.max(np.abs(box.value)))
            if np.max(np.asarray(box.high) - np.asarray(box.low)) <= enough:
                return sample, box
    if not sample.chunks:
        raise _too_small(budget, design)
    return sample, bounds(design, sample, level)


def _too_small(budget: int, design: Design) -> ArgumentError:
    return ArgumentError(
        f"budget={budget} is less than the {design.evaluations_per_unit} model evaluations that one unit costs; "
        "raise budget="
    )


def bounds(design: Design, sample: Sample, level: float) -> Box:
    """Return the measure's interval at `level`, simultaneous over its components."""
    if design.summarise is not None:
        return design.summarise(sample, level)
    values = sample.values
    each = level / len(design.ranges)
    rows = [_component(values[:, k], limits, each, sample) for k, limits in enumerate(design.ranges)]
    value, low, high = (np.array(column) for column in zip(*rows, strict=True))
    if design.combine is not None:
        return design.combine(Box(value, low, high))
    if len(rows) == 1:
        return Box(float(value[0]), float(low[0]), float(high[0]))
    return Box(value, low, high)


def outcome_of(box: Box, comparison: str, threshold: float, tolerance: float) -> str:
    """Read a verdict off an interval."""
    low, high = float(np.max(box.low)), float(np.max(box.high))
    if comparison == ">=":
        low, high = -float(np.min(box.high)), -float(np.min(box.low))
        threshold = -threshold
    if low == high:  # exact: equality holds, and rounding in the last digits is not a violation
        return "pass" if low <= threshold + 1e-9 * max(1.0, abs(threshold)) else "fail"
    above, below = low > threshold - tolerance, high < threshold + tolerance
    if above and below:  # both certificates hold: say what the nearer side says
        return "pass" if (low + high) / 2 <= threshold else "fail"
    return "pass" if below else "fail" if above else "inconclusive"


def _component(values: Array, limits: tuple[float, float], level: float, sample: Sample) -> tuple[float, float, float]:
    mean = float(values.mean())
    low, high = limits
    if math.isfinite(low) and math.isfinite(high):
        if high <= low:
            return mean, low, low
        unit = unit_interval(values, limits)
        inner = interval(unit, level)
        return mean, low + (high - low) * inner[0], low + (high - low) * inner[1]
    variance = float(values.var(ddof=1)) if len(values) > 1 else math.inf
    shares = [len(chunk.values) / len(values) for chunk in sample.chunks]
    shared = sum(share**2 * chunk.shared_variance for share, chunk in zip(shares, sample.chunks, strict=True))
    half = asymptotic_half_width(variance + len(values) * shared, len(values), level)
    return mean, max(low, mean - half), min(high, mean + half)


def unit_interval(values: Array, limits: tuple[float, float]) -> Array:
    """Rescale values of a stated range to [0, 1]; a value outside the range is an error, not an outlier."""
    low, high = limits
    scaled = (values - low) / (high - low)
    if len(scaled) and (scaled.min() < -1e-6 or scaled.max() > 1 + 1e-6):
        raise ArgumentError(
            f"values from {values.min():.6g} to {values.max():.6g} leave the stated range [{low:.6g}, {high:.6g}]; "
            "correct the readout's range="
        )
    return np.clip(scaled, 0.0, 1.0)


class _TwoSided:
    """Bets against both hypotheses of a claim about one bounded mean."""

    def __init__(
        self, limits: tuple[float, float], comparison: str, threshold: float, tolerance: float, level: float
    ) -> None:
        self._limits = limits
        self._comparison = comparison
        self._needed = math.log(2.0 / level)
        low, high = limits
        scale = high - low or 1.0
        # "mean >= upper edge" is rejected by bets on small values, "mean <= lower edge" by bets on large ones.
        # A tolerance that reaches past the range must not make an edge trivially true: only a draw beyond it counts.
        upper = max(min(threshold + tolerance, high), threshold)
        lower = min(max(threshold - tolerance, low), threshold)
        self._below = Wealth(1.0 - (upper - low) / scale)
        self._above = Wealth((lower - low) / scale)

    def update(self, values: Array) -> None:
        unit = unit_interval(values, self._limits) if self._limits[1] > self._limits[0] else np.zeros(len(values))
        self._above.update(unit)
        self._below.update(1.0 - unit)

    def outcome(self) -> tuple[str, float | None]:
        below, above = self._below.log, self._above.log
        decided = max(below, above) >= self._needed
        is_below = below >= above
        if not decided:
            return "inconclusive", max(below, above)
        return ("pass" if is_below == (self._comparison == "<=") else "fail"), max(below, above)


def one_sided(values: Array, limits: tuple[float, float], level: float) -> float:
    """Return an anytime-valid lower confidence bound at `level` for the mean of draws in a stated range."""
    low, high = limits
    return low + (high - low) * lower_bound(unit_interval(values, limits), level)
