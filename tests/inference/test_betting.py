"""The betting test and interval: valid at every time, as cheap as published, and able to fail when weakened."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelprops.inference.betting import FRACTIONS, Wealth, interval, lower_bound
from modelprops.inference.intervals import hoeffding_samples

LEVEL = 0.05
PEEKS = (16, 32, 64, 128, 256, 512, 1024)
REPEATS = 2000

Draw = dict[str, tuple[float, object]]


def bernoulli(chance: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return (chance.random(size) < 0.1).astype(float)


def beta(chance: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return chance.beta(0.5, 1.5, size)


def two_point(chance: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return np.where(chance.random(size) < 0.02, 0.9, 0.2)


def clipped_normal(chance: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return np.clip(chance.normal(0.3, 0.4, size), 0, 1)


MEANS = {bernoulli: 0.1, beta: 0.25, two_point: 0.2 + 0.02 * 0.7, clipped_normal: None}


def mean_of(draw: object) -> float:
    known = MEANS[draw]  # type: ignore[index]
    if known is not None:
        return known
    # E clip(N(m, s), 0, 1) in closed form.
    low, high = (0 - 0.3) / 0.4, (1 - 0.3) / 0.4

    def cdf(z: float) -> float:
        return 0.5 * (1 + math.erf(z / math.sqrt(2)))

    def density(z: float) -> float:
        return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    return 0.3 * (cdf(high) - cdf(low)) + 0.4 * (density(low) - density(high)) + 1 - cdf(high)


def log_wealths(values: np.ndarray, mean: float, peeks: tuple[int, ...] = PEEKS) -> np.ndarray:
    """(repeats, peeks) log mixture wealth against `mean`, written apart from the code under test."""
    sums = np.stack([np.cumsum(np.log1p(f * (values / mean - 1)), axis=1)[:, np.array(peeks) - 1] for f in FRACTIONS])
    return np.log(np.mean(np.exp(sums - sums.max(0)), axis=0)) + sums.max(0)


@pytest.mark.parametrize("draw", list(MEANS), ids=lambda draw: draw.__name__)
def test_the_interval_covers_after_every_chunk(draw: object) -> None:
    """Misses at any of seven peeks: at most 5% of 2,000, plus 5 standard errors (chance of failing below 1e-6)."""
    values = draw(np.random.default_rng(1), (REPEATS, PEEKS[-1]))  # type: ignore[operator]
    truth = mean_of(draw)
    # The interval excludes the truth from below (above) exactly when the wealth against it passes 2/level.
    needed = math.log(2 / LEVEL)
    missed = (log_wealths(values, truth) >= needed).any(1) | (log_wealths(1 - values, 1 - truth) >= needed).any(1)
    assert missed.mean() <= LEVEL + 5 * math.sqrt(LEVEL * (1 - LEVEL) / REPEATS)


@pytest.mark.parametrize("draw", list(MEANS), ids=lambda draw: draw.__name__)
def test_the_interval_is_the_set_of_means_that_the_wealth_does_not_reject(draw: object) -> None:
    values = draw(np.random.default_rng(2), (1, PEEKS[3]))[0]  # type: ignore[operator]
    low, high = interval(values, LEVEL)
    needed = math.log(2 / LEVEL)
    for mean in np.linspace(0.005, 0.995, 100):
        above, below = Wealth(float(mean)), Wealth(float(1 - mean))
        above.update(values)
        below.update(1 - values)
        inside = above.log < needed and below.log < needed
        assert inside == (low < mean < high) or min(abs(mean - low), abs(mean - high)) < 1e-6


def test_wealth_equals_an_independent_computation_and_does_not_depend_on_chunks() -> None:
    values = np.random.default_rng(3).random(PEEKS[-1])
    whole, parts = Wealth(0.4), Wealth(0.4)
    whole.update(values)
    for part in np.array_split(values, 7):
        parts.update(part)
    assert whole.log == pytest.approx(float(log_wealths(values[None], 0.4)[0, -1]))
    assert parts.log == pytest.approx(whole.log)


def samples_to_decide(truth: float, threshold: float, level: float, runs: int, *, spread: float | None = None) -> tuple:
    """Mean samples until one side's wealth reaches 2/level, and how often the wrong side won."""
    chance = np.random.default_rng(4)
    horizon = 20_000
    counts, wrong = [], 0
    needed = math.log(2 / level)
    for _ in range(runs):
        if spread is None:
            values = (chance.random(horizon) < truth).astype(float)
        else:
            values = np.clip(chance.normal(truth, spread, horizon), 0, 1)
        grid = FRACTIONS[:, None]
        done = []
        for side, mean in ((values, threshold), (1 - values, 1 - threshold)):
            start, sums, first = 0, np.zeros(len(FRACTIONS)), horizon
            while start < horizon:
                block = side[start : start + 512]
                logs = sums[:, None] + np.cumsum(np.log1p(grid * (block / mean - 1)), axis=1)
                top = logs.max(0)
                mixture = top + np.log(np.exp(logs - top).mean(0))
                hit = np.flatnonzero(mixture >= needed)
                if len(hit):
                    first = start + int(hit[0]) + 1
                    break
                sums, start = logs[:, -1], start + 512
            done.append(first)
        counts.append(min(done))
        wrong += (done[0] < done[1]) != (truth > threshold)
    return float(np.mean(counts)), wrong


@pytest.mark.parametrize(
    ("threshold", "gap", "spread", "published"),
    [
        (0.1, 0.05, None, 723),
        (0.1, 0.2, None, 60),
        (0.5, 0.05, None, 1791),
        (0.3, 0.03, 0.02, 105),
        (0.3, 0.03, 0.15, 439),
    ],
)
def test_it_costs_what_was_published_for_the_mixture(
    threshold: float, gap: float, spread: float | None, published: float
) -> None:
    """alpha = beta = .001, so 2/level = 1000; 200 runs, within a fifth (about 5 standard errors)."""
    found, wrong = samples_to_decide(threshold + gap, threshold, 0.002, 200, spread=spread)
    assert found <= 1.2 * published
    assert wrong == 0


def test_a_clear_answer_costs_an_eighth_of_hoeffding() -> None:
    found, _ = samples_to_decide(0.005, 0.02, 0.01, 100)
    assert found <= hoeffding_samples(0.015, 0.005) / 8


def test_the_error_rate_at_the_boundary_holds_and_a_weaker_test_would_be_caught() -> None:
    """Mutation check: with half the logarithm of 2/level as the needed wealth, the same bound is broken."""
    values = bernoulli(np.random.default_rng(5), (REPEATS, 2048))
    every = tuple(range(8, 2049, 8))
    logs = np.maximum(log_wealths(values, 0.1, every), log_wealths(1 - values, 0.9, every)).max(1)
    allowed = LEVEL + 5 * math.sqrt(LEVEL * (1 - LEVEL) / REPEATS)
    assert (logs >= math.log(2 / LEVEL)).mean() <= allowed
    assert (logs >= math.log(2 / LEVEL) / 2).mean() > allowed


@pytest.mark.parametrize("values", [[0.0] * 50, [1.0] * 50, [0.5] * 50, [0.0], [1.0]])
def test_extreme_samples_have_sane_intervals(values: list[float]) -> None:
    low, high = interval(np.array(values), 0.01)
    assert 0 <= low <= np.mean(values) <= high <= 1
    assert lower_bound(np.array([]), 0.01) == 0.0


def test_a_mean_that_the_data_rules_out_is_rejected_at_once() -> None:
    wealth = Wealth(0.0)
    wealth.update(np.zeros(100))
    assert wealth.log == 0.0
    wealth.update(np.array([1e-9]))
    assert wealth.log == math.inf
    assert Wealth(-0.1).log == math.inf
