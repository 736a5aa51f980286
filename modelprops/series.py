"""Properties along a training run: trend, sudden steps, and slow drift from the first checkpoint.

Every checkpoint is measured on the same units, so that a step is a paired difference. All intervals of a series hold
together: the error rate is split evenly over the steps from the previous checkpoint, those from the first, and the
slope. Comparing with the first as well as with the previous one is what keeps many small steps from adding up unseen.
Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.inference.sequential import Box
from modelprops.measurement import Measurement
from modelprops.paired import LEAST_DIFFERING, change_interval
from modelprops.rules import DEFAULT_SHARE, default_rules

JUMP = 0.25
"""A step is a phase change where it is certainly larger than this share of the previous value."""


@dataclass(frozen=True)
class Point:
    """One checkpoint: value, change from the previous and from the first one, and the alarms it raises.

    `alarms` holds `jump` (certainly more than the jump share from the previous value, either way) and `drift`
    (certainly worse than the first by more than the drift share).
    """

    name: str
    value: float
    from_previous: Box | None
    from_first: Box | None
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """A measure at each checkpoint and its slope per step; all intervals hold together at `confidence`."""

    measure: str
    points: tuple[Point, ...]
    slope: Box
    confidence: float
    paired: bool

    @property
    def alarms(self) -> tuple[str, ...]:
        """Every alarm in words."""
        return tuple(f"{alarm} at {point.name}" for point in self.points for alarm in point.alarms)

    def __str__(self) -> str:
        values = " -> ".join(f"{point.value:.4g}" for point in self.points)
        slope = f"slope {_text(self.slope)} a step" + ("" if self.paired else ", unpaired")
        return f"{self.measure}: {values}; {slope}; {', '.join(self.alarms) or 'no alarm'}"


def series_of(
    measurements: Sequence[Measurement],
    *,
    names: Sequence[str] | None = None,
    steps: Sequence[float] | None = None,
    confidence: float = 0.99,
    jump: float = JUMP,
    drift: float = DEFAULT_SHARE,
    families: int = 1,
) -> Series:
    """Return one scalar measure along checkpoints, given in order of training.

    `names` and `steps` (training steps; 0, 1, 2, ... without) belong to the measurements; the slope is that of least
    squares per unit of `steps`. `families` is how many series are looked at together; they share the error rate.

    Guarantee: the chance of any false alarm is at most 1 - `confidence`, where an alarm is false if the step is really
    within `jump` (25%) of the previous value or the worsening within `drift` (5%) of the first. Confidence bounds for
    bounded measures with few differing units, asymptotic otherwise (see `modelprops.paired.change_interval`).

    Raises `ArgumentError` for fewer than two measurements, unlike ones (measure, domain, readout), or unordered steps.
    """
    count = len(measurements)
    first = measurements[0] if count else None
    if first is None or count < 2:
        raise ArgumentError(f"a series of {count} checkpoints has no trend; give at least 2")
    unlike = [m for m in measurements if _kind(m) != _kind(first) or not m.scalar]
    if unlike:
        raise ArgumentError(f"a series is of one scalar measure on one domain and readout, not {first} and {unlike[0]}")
    at = np.arange(count, dtype=np.float64) if steps is None else np.asarray(steps, dtype=np.float64)
    if len(at) != count or (np.diff(at) <= 0).any():
        raise ArgumentError(f"steps={list(at)} are not {count} increasing numbers, one for each checkpoint")
    labels = list(names) if names is not None else [m.test or str(k) for k, m in enumerate(measurements)]
    level = (1 - confidence) / families / (2 * (count - 1) + 1)
    points = [Point(labels[0], float(first.estimate.value), None, None)]
    for k in range(1, count):
        step = change_between(measurements[k - 1], measurements[k], level)
        since = change_between(first, measurements[k], level)
        previous, now = (float(m.estimate.value) for m in measurements[k - 1 : k + 1])
        alarms = _alarms(first, step, since, jump * abs(previous), drift * abs(float(first.estimate.value)))
        points.append(Point(labels[k], now, step, since, alarms))
    paired = _common(measurements) is not None or all(m.estimate.method == "exact" for m in measurements)
    return Series(str(first), tuple(points), _slope(measurements, at, level), confidence, paired)


def change_between(old: Measurement, new: Measurement, level: float) -> Box:
    """Return the change with its interval at `level`: exact, on common units, or from two intervals."""
    if old.estimate.method == new.estimate.method == "exact":
        change = float(new.estimate.value) - float(old.estimate.value)
        return Box(change, change, change)
    if (columns := _common([old, new])) is not None and old.limits is not None:
        return change_interval(columns[1], columns[0], old.limits, level)
    before, after = (_widened(m, level / 2) for m in (old, new))
    change = float(after.value) - float(before.value)
    return Box(change, float(after.low) - float(before.high), float(after.high) - float(before.low))


def series_of_run(
    rows: Sequence[tuple[str | None, Measurement]], checkpoints: Sequence[str], confidence: float
) -> list[tuple[str, bool]]:
    """Return the lines for a run over several checkpoints, each with whether it raises an alarm."""
    found: dict[tuple[str, str, str], dict[str, Measurement]] = {}
    for checkpoint, m in rows:
        if checkpoint is not None and m.scalar:
            found.setdefault((str(m), m.domain, m.readout), {}).setdefault(checkpoint, m)
    whole = {key: by for key, by in found.items() if len(by) > 1}
    lines = []
    for key in sorted(whole):
        order = [path for path in checkpoints if path in whole[key]]
        labels = [path.rpartition("/")[2] for path in order]
        one = series_of([whole[key][p] for p in order], names=labels, confidence=confidence, families=len(whole))
        lines.append((f"series {one}", bool(one.alarms)))
    return lines


def _kind(m: Measurement) -> tuple[object, ...]:
    return str(m), m.version, m.domain, m.readout


def _alarms(first: Measurement, step: Box, since: Box, jump: float, drift: float) -> tuple[str, ...]:
    alarms = []
    if float(step.low) > jump or float(step.high) < -jump:
        alarms.append("jump")
    worse = {rule.sign for rule in default_rules(first.measure)}
    if (1 in worse and float(since.low) > drift) or (-1 in worse and float(since.high) < -drift):
        alarms.append("drift")
    return tuple(alarms)


def _common(measurements: Sequence[Measurement]) -> list[Array] | None:
    """The units that all measurements share: the chunks of one seed and of equal size, from the start."""
    first = measurements[0]
    if any(m.units is None or m.limits is None or m.estimate.seed != first.estimate.seed for m in measurements):
        return None
    shared = 0
    for sizes in zip(*(m.sizes for m in measurements), strict=False):
        if len(set(sizes)) > 1:
            break
        shared += sizes[0]
    return [m.units[:shared, 0] for m in measurements if m.units is not None] if shared else None


def _slope(measurements: Sequence[Measurement], at: Array, level: float) -> Box:
    centred = at - at.mean()
    weights = centred / float((centred**2).sum())
    columns = _common(measurements)
    if columns is not None:
        units = np.stack(columns, 1) @ weights
        if int((np.abs(units) > 1e-12).sum()) >= LEAST_DIFFERING:
            mean, half = float(units.mean()), asymptotic_half_width(float(units.var(ddof=1)), len(units), level)
            return Box(mean, mean - half, mean + half)
    boxes = [_widened(m, level / len(measurements)) for m in measurements]
    value = float(weights @ np.array([float(box.value) for box in boxes]))
    weighted = list(zip(weights, boxes, strict=True))
    below = sum(w * float(box.value - (box.low if w > 0 else box.high)) for w, box in weighted)
    above = sum(w * float((box.high if w > 0 else box.low) - box.value) for w, box in weighted)
    return Box(value, value - below, value + above)


def _widened(m: Measurement, level: float) -> Box:
    """The measurement's interval at `level`, from its units; without them its own, if it is as sure as that."""
    value = float(m.estimate.value)
    if m.estimate.method == "exact":
        return Box(value, value, value)
    if m.units is not None and m.limits is not None:
        return change_interval(m.units[:, 0], np.zeros(len(m.units)), m.limits, level)
    if m.estimate.confidence >= 1 - level - 1e-12:
        return Box(value, float(m.estimate.low), float(m.estimate.high))
    return Box(value, -math.inf, math.inf)


def _text(box: Box) -> str:
    if box.low == box.high:
        return f"{float(box.value):.4g}"
    return f"{float(box.value):.4g} [{float(box.low):.4g}, {float(box.high):.4g}]"
