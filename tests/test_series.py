"""Series of checkpoints: trend, sudden steps, slow drift, and how seldom any of them is seen where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import toy

import modelprops as mp
from modelprops.measurement import Measurement
from modelprops.series import change_between, series_of_run


def run_of(shifts: list[float], seed: int = 0, name: str = "average_sensitivity") -> list[Measurement]:
    """Checkpoints whose true means are 1/4 + shift, measured on the same units."""
    return [toy.measurement(seed, shift, 0.02 if k else 0.0, name=name) for k, shift in enumerate(shifts)]


def test_series_without_change_raise_no_alarm() -> None:
    # 200 series of 6 checkpoints at family-wise 1%: more than 12 alarms have chance below 1e-6 even at the edge.
    alarms = sum(bool(mp.series_of(run_of([0.0] * 6, seed)).alarms) for seed in range(200))
    assert alarms <= 12


def test_a_sudden_step_is_a_jump_at_its_checkpoint_only() -> None:
    found = mp.series_of(run_of([0.0, 0.0, 0.12, 0.12]), names=["a", "b", "c", "d"])
    assert [point.name for point in found.points if "jump" in point.alarms] == ["c"]
    assert found.paired


def test_slow_drift_cannot_ratchet_in() -> None:
    # each step is 4% of the old value, within what a step may be; the fourth is 16% above the first
    found = mp.series_of(run_of([0.0, 0.01, 0.02, 0.03, 0.04]))
    assert not any("jump" in point.alarms for point in found.points)
    assert "drift" in found.points[-1].alarms
    assert found.points[1].alarms == ()


def test_a_fall_is_drift_for_stability_and_none_for_sensitivity() -> None:
    shifts = [0.0, -0.02, -0.04]
    assert "drift" not in str(mp.series_of(run_of(shifts)))
    assert "drift" in mp.series_of(run_of(shifts, name="noise_stability")).points[-1].alarms


def test_the_slope_is_covered_by_its_interval() -> None:
    # slope .02 a step; the interval is simultaneous with 7 others, so it misses with chance below 0.2%
    for seed in range(20):
        slope = mp.series_of(run_of([0.0, 0.02, 0.04, 0.06], seed)).slope
        assert slope.low <= 0.02 <= slope.high
        assert slope.high - slope.low < 0.02
    steps = mp.series_of(run_of([0.0, 0.02, 0.04, 0.06]), steps=[0, 100, 200, 300]).slope
    assert float(steps.value) == pytest.approx(float(mp.series_of(run_of([0.0, 0.02, 0.04, 0.06])).slope.value) / 100)


def test_without_units_the_interval_is_wider_and_the_series_says_unpaired() -> None:
    paired = run_of([0.0, 0.02])
    unpaired = [toy.measurement(k, 0.02 * k, 0.02 * k) for k in (0, 1)]
    one, other = (change_between(*pair, 0.01) for pair in (paired, unpaired))
    assert np.ptp([other.low, other.high]) > 3 * np.ptp([one.low, one.high])
    assert "unpaired" in str(mp.series_of(unpaired))


def test_a_run_gives_a_line_for_each_measure() -> None:
    rows = [(path, m) for path, m in zip("ab", run_of([0.0, 0.12]), strict=True)]
    rows += [(path, m) for path, m in zip("ab", run_of([0.0, 0.0], name="noise_stability"), strict=True)]
    lines = series_of_run(rows, ("a", "b"), 0.99)
    assert [alarm for _, alarm in lines] == [True, False]
    assert lines[0][0].startswith("series average_sensitivity: 0.2")
    assert "jump at b, drift at b" in lines[0][0]


def test_too_few_unlike_or_unordered_checkpoints_are_refused() -> None:
    first, second = run_of([0.0, 0.01])
    with pytest.raises(mp.ArgumentError, match="at least 2"):
        mp.series_of([first])
    with pytest.raises(mp.ArgumentError, match="one scalar measure"):
        mp.series_of([first, toy.measurement(0, name="sharpness")])
    with pytest.raises(mp.ArgumentError, match="increasing"):
        mp.series_of([first, second], steps=[1, 1])
