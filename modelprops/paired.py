"""The change of a measure between two checkpoints: decided on paired units, exactly, or through an old interval."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from modelprops.errors import ArgumentError, BaselineError
from modelprops.estimate import Array
from modelprops.inference.betting import interval, lower_bound
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.inference.sequential import Box, Chunk, Decision, Design, Sample, bounds, chunks, decide, outcome_of
from modelprops.measurement import Measurement
from modelprops.properties.claim import RELATIVE_TOLERANCE
from modelprops.properties.measure import Options, Plan
from modelprops.rules import Rule
from modelprops.seeds import derive

LEAST_DIFFERING = 30
"""An asymptotic interval of differences is trusted only where at least this many units differ at all."""


class UnpairedWarning(UserWarning):
    """A baseline without units is compared through its interval, which takes many more evaluations."""


@dataclass(frozen=True)
class Comparison:
    """One measurement of a baseline, one rule, and the claim that they make: new - factor old against the amount."""

    baseline: str
    old: Measurement
    rule: Rule
    tolerance: float | None = None

    @property
    def reference(self) -> float:
        """The old value."""
        return float(self.old.estimate.value)

    @property
    def factor(self) -> float:
        """What the old values are multiplied by."""
        return self.rule.factor(self.reference)

    @property
    def amount(self) -> float:
        """The signed amount that is allowed beside the factor."""
        return self.rule.sign * self.rule.amount

    @property
    def comparison(self) -> str:
        """`<=` bounds a rise, `>=` a fall."""
        return "<=" if self.rule.sign > 0 else ">="

    @property
    def slack(self) -> float:
        """The tolerance in force: 5% of the allowed change where none was given."""
        return RELATIVE_TOLERANCE * abs(self.rule.allowed(self.reference)) if self.tolerance is None else self.tolerance

    def __str__(self) -> str:
        size = f"{100 * self.rule.share:.10g}%" if self.rule.share else f"{self.rule.amount:.10g}"
        return f"{self.old} {'rises' if self.rule.sign > 0 else 'falls'} by at most {size} from {self.baseline}"


@dataclass(frozen=True)
class Outcome:
    """What was decided about new - old: `evaluations` of the new checkpoint, `guarantee` of the interval.

    `confidence` is that of the interval where it is not the one asked for.
    """

    outcome: str
    change: Box
    new: float
    old: float
    units: int
    evaluations: int
    method: str
    guarantee: str
    log_e: float | None = None
    confidence: float | None = None


def decide_change(comparison: Comparison, plan: Plan, options: Options, *, same_weights: bool = False) -> Outcome:
    """Decide new - factor old against the allowed amount: exactly, on paired units, or through the old interval."""
    old = comparison.old
    if old.estimate.method == "exact":
        if plan.exact is None:
            raise BaselineError(f"{old} of baseline {comparison.baseline!r} is exact and cannot be enumerated here")
        exact = plan.exact()
        value = float(exact.value)
        box = _shifted(Box(value, value, value), comparison.factor * comparison.reference)
        outcome = outcome_of(box, comparison.comparison, comparison.amount, 0.0)
        change = _shifted(Box(value, value, value), comparison.reference)
        return Outcome(outcome, change, value, comparison.reference, 0, exact.evaluations, "exact", "exact")
    if plan.design is None:
        raise BaselineError(f"{old} of baseline {comparison.baseline!r} was sampled and can only be enumerated here")
    if old.units is None:
        warnings.warn(
            f"baseline {comparison.baseline!r} has no units of {old}: it is compared unpaired, through its interval",
            UnpairedWarning,
            stacklevel=2,
        )
        return _unpaired(comparison, plan.design, options)
    if old.units.shape[1] != len(plan.design.ranges):
        raise BaselineError(f"{old} of baseline {comparison.baseline!r} has {old.units.shape[1]} components, now "
                            f"{len(plan.design.ranges)}; save it again")  # fmt: skip
    return _Paired(comparison, plan.design, old.units, same_weights).decide(options)


def _unpaired(comparison: Comparison, design: Design, options: Options) -> Outcome:
    """New units of their own at half of the level, against the old interval: the error rates add up."""
    old, sample, outcome, factor = comparison.old.estimate, Sample(), "inconclusive", comparison.factor
    box, claim = Box(math.nan, -math.inf, math.inf), Box(math.nan, -math.inf, math.inf)
    edges = sorted((factor * float(old.low), factor * float(old.high)))
    due = 0
    for chunk in chunks(design, derive(options.seed, "unpaired"), options.budget):
        sample.add(chunk)
        if sample.units < due:
            continue
        due = math.ceil(1.1 * sample.units)
        box = bounds(design, sample, options.level / 2)
        claim = Box(box.value - factor * comparison.reference, box.low - edges[1], box.high - edges[0])
        outcome = outcome_of(claim, comparison.comparison, comparison.amount, comparison.slack)
        if outcome != "inconclusive":
            break
    if not sample.chunks:
        raise ArgumentError(f"budget={options.budget} is less than one unit costs; raise budget=")
    change = Box(box.value - comparison.reference, box.low - float(old.high), box.high - float(old.low))
    guarantee = "confidence bound, unpaired" if design.bounded else "asymptotic, unpaired"
    new = float(np.max(box.value))
    sure = old.confidence - options.level / 2
    spent = sample.evaluations
    return Outcome(
        outcome, change, new, comparison.reference, sample.units, spent, "sequential", guarantee, confidence=sure
    )


class _Paired:
    """The baseline's units drawn again, and the change decided on the differences."""

    def __init__(self, comparison: Comparison, design: Design, old: Array, same_weights: bool) -> None:
        self._comparison = comparison
        self._design = design
        self._same_weights = same_weights
        self._new: list[Array] = []
        edges = np.cumsum([0, *comparison.old.sizes])
        self._old = [old[start:end] for start, end in pairwise(edges)]

    def decide(self, options: Options) -> Outcome:
        """Bet on differences of a bounded mean; use the asymptotic interval for everything else."""
        c, design = self._comparison, self._differences(options.seed)
        if self._same_weights and (spent := self._reproduced(design, options)):
            old, new = self._means()
            return Outcome("pass", Box(0.0, 0.0, 0.0), new, old, len(self._new[0]), spent, "exact", "exact")
        self._new.clear()
        simple = len(self._design.ranges) == 1 and self._design.combine is None and self._design.bounded
        level = options.level / 2 if simple else options.level
        decision = self._betting(design, options, level) if simple else self._asymptotic(design, options, level)
        box = bounds(design, decision.sample, level) if simple else self._interval(level)
        guarantee = "confidence bound" if simple else "asymptotic"
        if simple and decision.outcome == "inconclusive" and self._differing() >= LEAST_DIFFERING:
            box, guarantee = self._interval(level), "asymptotic"
            late = outcome_of(box, c.comparison, c.amount, c.slack)
            decision = replace(decision, outcome=late, log_e=None)
        old, new = self._means()
        sample = decision.sample
        return Outcome(
            decision.outcome,
            _shifted(box, (1 - c.factor) * old),
            new,
            old,
            sample.units,
            sample.evaluations,
            "sequential",
            guarantee,
            decision.log_e,
        )

    def _betting(self, design: Design, options: Options, level: float) -> Decision:
        c = self._comparison
        return decide(
            design,
            comparison=c.comparison,
            threshold=c.amount,
            tolerance=c.slack,
            level=level,
            budget=options.budget,
            seed=options.seed,
        )

    def _asymptotic(self, design: Design, options: Options, level: float) -> Decision:
        c, sample, outcome = self._comparison, Sample(), "inconclusive"
        for chunk in chunks(design, options.seed, options.budget):
            sample.add(chunk)
            if sample.units >= LEAST_DIFFERING:
                outcome = outcome_of(self._interval(level), c.comparison, c.amount, c.slack)
            if outcome != "inconclusive":
                break
        if not sample.chunks:
            raise ArgumentError(f"budget={options.budget} is less than one unit costs; raise budget=")
        return Decision(outcome, sample, None)

    def _differences(self, seed: int) -> Design:
        """The design whose units are new - factor old."""
        places = {derive(seed, k): k for k in range(len(self._old))}
        factor, inner = self._comparison.factor, self._design
        low, high = inner.ranges[0]
        ends = sorted((factor * low, factor * high))

        def draw(chunk_seed: int, size: int) -> Chunk:
            chunk = inner.draw(chunk_seed, size)
            new = chunk.values[:, : len(inner.ranges)]
            old = self._old[places[chunk_seed]][:size]
            self._new.append(new)
            return replace(chunk, values=new[:, :1] - factor * old[:, :1], shared_variance=0.0)

        return replace(
            inner, draw=draw, ranges=((low - ends[1], high - ends[0]),), combine=None, sizes=self._comparison.old.sizes
        )

    def _columns(self) -> tuple[Array, Array]:
        new = np.concatenate(self._new)
        return np.concatenate(self._old)[: len(new)], new

    def _means(self) -> tuple[float, float]:
        old, new = self._columns()
        return self._value(old.mean(0)), self._value(new.mean(0))

    def _value(self, means: Array) -> float:
        if self._design.combine is None:
            return float(means[0])
        return float(np.max(self._design.combine(Box(means, means, means)).value))

    def _slopes(self, means: Array) -> Array:
        """How much the measure changes with the mean of each component."""
        if self._design.combine is None:
            return np.ones(1)
        steps = 1e-4 * np.maximum(np.abs(means), 1e-9)
        slopes = []
        for k, step in enumerate(steps):
            up, down = means.copy(), means.copy()
            up[k], down[k] = means[k] + step, means[k] - step
            slopes.append((self._value(up) - self._value(down)) / (2 * step))
        return np.array(slopes, dtype=np.float64)

    def _linear(self, values: Array) -> Array:
        """Each unit's share in the measure: the values themselves, or to first order where a measure combines means."""
        means = values.mean(0)
        linear: Array = self._value(means) + (values[:, : len(means)] - means) @ self._slopes(means)
        return linear

    def _interval(self, level: float) -> Box:
        """The asymptotic interval, widened by the units that could differ and were not seen where few did."""
        old, new = self._columns()
        units = self._linear(new) - self._comparison.factor * self._linear(old)
        variance = float(units.var(ddof=1)) if len(units) > 1 else math.inf
        half, mean = asymptotic_half_width(variance, len(units), level), float(units.mean())
        if self._differing() < LEAST_DIFFERING:
            widths = np.array([high - low for low, high in self._design.ranges])
            same: Array = np.asarray((np.abs(new - old) <= 1e-12).all(axis=1), dtype=np.float64)
            half += (1.0 - lower_bound(same, level)) * float(np.abs(self._slopes(new.mean(0))) @ widths)
        return Box(mean, mean - half, mean + half)

    def _differing(self) -> int:
        old, new = self._columns()
        return int((np.abs(new - old) > 1e-12).any(1).sum())

    def _reproduced(self, design: Design, options: Options) -> int:
        """The evaluations spent where equal weights give equal units (up to rounding): one function, no change."""
        chunk = next(chunks(design, options.seed, options.budget), None)
        if chunk is None:
            return 0
        old, new = self._columns()
        scale = float(np.abs(old).max(initial=0.0))
        return chunk.evaluations if np.allclose(new, old, rtol=1e-5, atol=1e-9 + 1e-6 * scale) else 0


def _shifted(box: Box, by: float) -> Box:
    return Box(box.value - by, box.low - by, box.high - by)


def change_interval(new: Array, old: Array, limits: tuple[float, float], level: float) -> Box:
    """Return mean(new - old) of paired units with the tighter of two anytime-valid intervals, each at half the level.

    Asymptotic where at least 30 units differ; otherwise a confidence bound alone (infinite without a known range).
    """
    change = new - old
    mean, width = float(change.mean()), limits[1] - limits[0]
    low, high = -math.inf, math.inf
    if math.isfinite(width) and width > 0:
        inner = interval((change + width) / (2 * width), level / 2)
        low, high = (2 * width * edge - width for edge in inner)
    if int((np.abs(change) > 1e-12).sum()) >= LEAST_DIFFERING:
        half = asymptotic_half_width(float(change.var(ddof=1)), len(change), level / 2)
        low, high = max(low, mean - half), min(high, mean + half)
    return Box(mean, low, high)
