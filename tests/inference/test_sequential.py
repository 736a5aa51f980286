"""Chunks, decisions and intervals of several components, on simulated units."""

from __future__ import annotations

import math

import numpy as np
import pytest

import modelprops as mp
from modelprops.inference.intervals import (
    asymptotic_half_width,
    clopper_pearson,
    median_of_means,
    order_statistic_ranks,
)
from modelprops.inference.multiplicity import holm
from modelprops.inference.sequential import Box, Chunk, Design, Sample, bounds, chunks, collect, decide, outcome_of


def coin(probability: float, *, scale: float = 1.0, cost: int = 1) -> Design:
    """Units that are `scale` with a probability and else 0."""

    def draw(seed: int, size: int) -> Chunk:
        hits = np.random.default_rng(seed).random(size) < probability
        return Chunk(scale * hits[:, None].astype(float), size * cost)

    return Design(draw, ((0.0, scale),), cost)


def test_chunks_grow_by_a_quarter_and_stop_at_the_budget() -> None:
    sizes = [len(chunk.values) for chunk in chunks(coin(0.5, cost=3), seed=0, budget=1000)]
    assert sizes[:5] == [16, 16, 16, 16, 16]
    assert sum(sizes) == 1000 // 3
    assert sizes[:-1] == sorted(sizes[:-1])


def test_the_same_seed_draws_the_same_units() -> None:
    first, second = (collect(coin(0.3), width=None, level=0.01, budget=500, seed=7)[0].values for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("comparison", "clear"), [("<=", "pass"), (">=", "fail")])
def test_a_clear_margin_gives_one_verdict_for_100_seeds(comparison: str, clear: str) -> None:
    """Each run errs with probability below 1e-8 at this level."""
    outcomes = {
        decide(
            coin(0.1), comparison=comparison, threshold=0.3, tolerance=0.0, level=1e-8, budget=10_000, seed=seed
        ).outcome
        for seed in range(100)
    }
    assert outcomes == {clear}


def test_on_the_threshold_without_tolerance_a_wrong_verdict_is_rare() -> None:
    """2,000 runs at level .05: at most 5% decided (each is wrong for one side), plus 5 standard errors."""
    decided = sum(
        decide(
            coin(0.1), comparison="<=", threshold=0.1, tolerance=0.0, level=0.05, budget=600, seed=seed
        ).outcome != "inconclusive"
        for seed in range(2000)
    )  # fmt: skip
    assert decided / 2000 <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / 2000)


def test_on_the_threshold_with_tolerance_every_run_ends_and_both_certificates_are_true() -> None:
    """A pass certifies mean < .12, a fail mean > .08; the truth is .10, so either is right."""
    for seed in range(200):
        decision = decide(
            coin(0.1), comparison="<=", threshold=0.1, tolerance=0.02, level=0.01, budget=100_000, seed=seed
        )
        assert decision.outcome in ("pass", "fail")


def test_a_certificate_is_false_no_more_often_than_stated() -> None:
    """The truth .12 is the edge of what a pass excludes: at most level/2 = 2.5% of 1,000 passes, plus 5 s.e."""
    passes = sum(
        decide(
            coin(0.12), comparison="<=", threshold=0.1, tolerance=0.02, level=0.05, budget=5_000, seed=seed
        ).outcome == "pass"
        for seed in range(1000)
    )  # fmt: skip
    assert passes / 1000 <= 0.025 + 5 * math.sqrt(0.025 * 0.975 / 1000)


def test_the_decision_agrees_with_the_interval() -> None:
    for seed in range(50):
        design = coin(0.2, scale=3.0)
        decision = decide(design, comparison="<=", threshold=0.9, tolerance=0.0, level=0.01, budget=50_000, seed=seed)
        box = bounds(design, decision.sample, 0.01)
        assert decision.outcome == "pass"
        assert float(box.high) < 0.9 + 1e-6


def test_a_width_is_reached_and_covers() -> None:
    """Confidence 1 - 1e-7."""
    _, box = collect(coin(0.2), width=0.05, level=1e-7, budget=10**6, seed=1)
    assert float(box.high) - float(box.low) <= 0.05
    assert float(box.low) <= 0.2 <= float(box.high)


def test_a_budget_below_one_unit_is_an_error() -> None:
    with pytest.raises(mp.ArgumentError, match="budget=5 is less than the 9"):
        decide(coin(0.2, cost=9), comparison="<=", threshold=1.0, tolerance=0.0, level=0.01, budget=5, seed=0)


def test_values_outside_the_stated_range_are_an_error() -> None:
    design = Design(lambda seed, size: Chunk(np.full((size, 1), 2.0), size), ((0.0, 1.0),), 1)
    with pytest.raises(mp.ArgumentError, match="range="):
        collect(design, width=None, level=0.01, budget=100, seed=0)


def test_equality_without_noise_holds_and_the_last_digit_is_no_violation() -> None:
    assert outcome_of(Box(2.0, 2.0, 2.0), "<=", 2.0, 0.0) == "pass"
    assert outcome_of(Box(2.0, 2.0, 2.0), ">=", 2.0, 0.0) == "pass"
    assert outcome_of(Box(2 + 1e-12, 2 + 1e-12, 2 + 1e-12), "<=", 2.0, 0.1) == "pass"
    assert outcome_of(Box(2.001, 2.001, 2.001), "<=", 2.0, 0.1) == "fail"


def test_simultaneous_intervals_cover_together() -> None:
    """20 coins at level .05 shared: all covered in at least 95% of 300 repeats, minus 5 standard errors."""
    probabilities = np.linspace(0.05, 0.95, 20)

    def draw(seed: int, size: int) -> Chunk:
        return Chunk((np.random.default_rng(seed).random((size, 20)) < probabilities).astype(float), size)

    design = Design(draw, ((0.0, 1.0),) * 20, 1)
    missed = 0
    for seed in range(300):
        box = bounds(design, Sample([draw(seed, 200)]), 0.05)
        missed += bool(((probabilities < box.low) | (probabilities > box.high)).any())
    assert missed / 300 <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_the_asymptotic_sequence_covers_at_every_peek(kind: str) -> None:
    """2,000 repeats at level .05, peeking at 64..4096; skewed data get a third more, since the bound is asymptotic."""
    chance = np.random.default_rng(0)
    counts = np.array([64, 128, 256, 512, 1024, 2048, 4096])
    missed = 0
    for _ in range(2000):
        values = chance.normal(1, 2, 4096) if kind == "normal" else chance.exponential(1.0, 4096)
        sums, squares = np.cumsum(values)[counts - 1], np.cumsum(values**2)[counts - 1]
        means = sums / counts
        variances = (squares - counts * means**2) / (counts - 1)
        halves = np.array(
            [asymptotic_half_width(float(v), float(t), 0.05) for v, t in zip(variances, counts, strict=True)]
        )
        missed += bool((np.abs(means - 1) > halves).any())
    allowed = 0.05 * (1 if kind == "normal" else 4 / 3)
    assert missed / 2000 <= allowed + 5 * math.sqrt(0.05 * 0.95 / 2000)


def test_order_statistics_and_exact_binomials_cover() -> None:
    """4,000 repeats at level .05, minus 5 standard errors; ranks by simulation of uniforms."""
    chance = np.random.default_rng(1)
    low, high = order_statistic_ranks(60, 0.9, 0.05)
    draws = np.sort(chance.random((4000, 60)), axis=1)
    upper = draws[:, high] if high < 60 else np.ones(4000)
    assert ((draws[:, low] <= 0.9) & (upper >= 0.9)).mean() >= 0.95 - 5 * math.sqrt(0.05 * 0.95 / 4000)
    hits = chance.binomial(40, 0.03, 4000)
    covered = [a <= 0.03 <= b for a, b in (clopper_pearson(int(h), 40, 0.05) for h in hits)]
    assert np.mean(covered) >= 0.95


def test_the_median_of_means_survives_one_wild_value() -> None:
    values = np.random.default_rng(2).normal(1, 0.1, 640)
    values[17] = 1e9
    middle, low, high = median_of_means(values, 0.01)
    assert low <= middle <= high < 2
    assert middle == pytest.approx(1.0, abs=0.05)


def test_holm_on_e_values_steps_down() -> None:
    # 1/e = .001, .02, .04 at level .05 with three claims: .001 <= .05/3, .02 <= .05/2, .04 <= .05.
    assert holm([math.log(1000), math.log(50), math.log(25)], 0.05) == [True, True, True]
    assert holm([math.log(1000), math.log(30), math.log(25)], 0.05) == [True, False, False]
    assert holm([], 0.05) == []
