"""A tolerance that reaches past the range of the draws must not decide a claim by itself."""

from __future__ import annotations

import numpy as np

from modelprops.inference.sequential import Chunk, Design, decide


def outcome(values: list[float], comparison: str, threshold: float, tolerance: float, budget: int = 2000) -> str:
    design = Design(lambda seed, size: Chunk(np.resize(values, (size, 1)).astype(float), size), ((0.0, 1.0),), 1)
    decision = decide(
        design, comparison=comparison, threshold=threshold, tolerance=tolerance, level=0.01, budget=budget, seed=0
    )
    return decision.outcome


def test_at_most_zero_fails_on_the_first_positive_draw_and_passes_below_the_tolerance() -> None:
    assert outcome([0.0], "<=", 0.0, 0.01) == "pass"
    assert outcome([0.0] * 15 + [1.0], "<=", 0.0, 0.01) == "fail"
    assert outcome([0.0], "<=", 0.0, 0.01, budget=100) == "inconclusive"


def test_at_least_one_is_the_mirror_image() -> None:
    assert outcome([1.0], ">=", 1.0, 0.01) == "pass"
    assert outcome([1.0] * 15 + [0.0], ">=", 1.0, 0.01) == "fail"


def test_thresholds_beyond_the_range_are_decided_by_the_range() -> None:
    assert outcome([0.5], "<=", 2.0, 0.0) == "pass"
    assert outcome([0.5], "<=", -1.0, 0.0) == "fail"
