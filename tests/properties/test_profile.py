"""Sensitivity profile against enumeration by definition and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from random_tables import random_subject, slow_sensitivities
from scipy import stats
from simulation import boxes, coverage

import modelprops as mp
from modelprops.inference.sequential import Chunk, Sample, bounds
from modelprops.properties.profile import quantile_band


def majority(n: int) -> mp.Subject:
    return mp.Subject(lambda x: x.sum(1), mp.BooleanCube(n), "sign")


def test_parity_is_a_point_mass_at_n() -> None:
    profile = mp.sensitivity_profile(mp.Subject(lambda x: x.prod(1), mp.BooleanCube(7), "sign"))
    assert profile.value.tolist() == [0.0] * 7 + [1.0]
    assert profile.details["minimum"]["value"] == profile.details["maximum"]["value"] == 7


def test_majority_has_mass_at_zero_and_half_only() -> None:
    # C(n, (n+1)/2) + C(n, (n-1)/2) inputs lie next to the boundary, each with (n+1)/2 pivotal coordinates.
    n = 9
    expected = np.zeros(n + 1)
    expected[(n + 1) // 2] = 2 * math.comb(n, n // 2) / 2**n
    expected[0] = 1 - expected[(n + 1) // 2]
    np.testing.assert_allclose(mp.sensitivity_profile(majority(n)).value, expected, atol=1e-12)


@pytest.mark.parametrize("n", [1, 4, 10])
def test_a_random_table_equals_the_flip_count(n: int) -> None:
    subject, table = random_subject(n, seed=n)
    slow = slow_sensitivities(table)
    profile = mp.sensitivity_profile(subject)
    np.testing.assert_allclose(profile.value, np.bincount(slow.astype(int), minlength=n + 1) / 2**n, atol=1e-9)
    assert mp.sensitivity_profile(subject, quantity="minimum").value == slow.min()
    assert mp.sensitivity_profile(subject, quantity="maximum").value == slow.max()


def test_a_real_table_gives_quantiles() -> None:
    subject, table = random_subject(8, seed=3, real=True)
    levels = (0.0, 0.3, 0.5, 1.0)
    found = mp.sensitivity_profile(subject, quantiles=levels).value
    expected = np.quantile(slow_sensitivities(table), levels, method="inverted_cdf")
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_sampled_probabilities_cover_the_truth() -> None:
    # Coverage is at least .99; fewer than .98 of 2,000 repeats has probability below 1e-4, and Ville's bound is loose.
    subject = majority(5)
    plan = mp.sensitivity_profile.plan(subject)
    truth = mp.sensitivity_profile(subject).value
    found = boxes(plan, repeats=2000, chunks=2, size=16, level=0.01)
    assert coverage(found, truth) >= 0.99


def test_sampled_quantiles_cover_the_truth_at_every_look() -> None:
    # The band is conservative: misses at a level of .01 in 2,000 repeats stay below 1%.
    subject, table = random_subject(7, seed=5, real=True)
    plan = mp.sensitivity_profile.plan(subject)
    truth = np.quantile(slow_sensitivities(table), (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0), method="inverted_cdf")
    values = plan.design.draw(1, 2000 * 4 * 32).values.reshape(2000, 4, 32, 1)
    missed = 0
    for one in values:
        looks = [bounds(plan.design, Sample([Chunk(part, 32) for part in one[: k + 1]]), 0.01) for k in range(4)]
        missed += any((box.low > truth + 1e-9).any() or (box.high < truth - 1e-9).any() for box in looks)
    assert missed <= 20


def test_the_band_has_massarts_width() -> None:
    values = np.sort(np.random.default_rng(0).uniform(size=400))
    box = quantile_band(values, (0.5,), 0.05, 1, 1.0)
    reach = math.sqrt(math.log(2 / 0.025) / 800)  # level/2 is spent at the first look
    assert box.low[0] == pytest.approx(values[math.ceil((0.5 - reach) * 400) - 1])
    assert box.high[0] == pytest.approx(values[math.floor((0.5 + reach) * 400)])


def test_a_sampled_minimum_is_one_sided() -> None:
    estimate = mp.sensitivity_profile(majority(9), quantity="minimum", exact=False, budget=5000, seed=0)
    assert (estimate.low, estimate.value, estimate.high) == (0.0, 0.0, 0.0)
    most = mp.sensitivity_profile(majority(9), quantity="maximum", exact=False, budget=50000, seed=0)
    assert (most.low, most.value, most.high) == (5.0, 5.0, 9.0)


def test_claims_on_the_minimum_work_as_text() -> None:
    assert mp.claim("sensitivity_profile(quantity='minimum') <= 2").check(majority(5)).outcome == "pass"
    parity = mp.Subject(lambda x: x.prod(1), mp.BooleanCube(30), "sign")
    verdict = mp.claim("sensitivity_profile(quantity='maximum') <= 7").check(parity, budget=10_000, seed=0)
    assert verdict.outcome == "fail"
    assert verdict.witness is not None
    assert verdict.witness.score == 30


def test_a_random_function_is_binomial_on_average() -> None:
    # The mean profile of random functions is Binomial(n, 1/2); each of 40 tables of 2^10 rows adds 1,024 dependent
    # draws, whose average stays within .01 (more than 10 standard deviations).
    profiles = [mp.sensitivity_profile(random_subject(10, seed=s)[0]).value for s in range(40)]
    np.testing.assert_allclose(np.mean(profiles, axis=0), stats.binom.pmf(range(11), 10, 0.5), atol=0.01)


def test_tokens_are_enumerated_or_refused() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0])
    small = mp.Subject(lambda ids: weights[ids].sum(1), mp.Tokens(3, 4))
    # s(f, x) = 1/2 sum_i mean_b (w_{x_i} - w_b)^2; at all-0: 4/2 * (0 + 1 + 9)/3; at all-1: 4/2 * (1 + 0 + 4)/3.
    profile = mp.sensitivity_profile(small)
    assert profile.details["minimum"]["value"] == pytest.approx(10 / 3)
    assert profile.details["maximum"]["value"] == pytest.approx(2 * (9 + 4 + 0) / 3)
    with pytest.raises(mp.DomainError, match="cannot be enumerated"):
        mp.sensitivity_profile(lambda x: x.sum(1), domain=mp.Gaussian(4))


def test_nonsense_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="quantity"):
        mp.sensitivity_profile(majority(3), quantity="mode")
    with pytest.raises(mp.ArgumentError, match="quantiles"):
        mp.sensitivity_profile(majority(3), quantiles=(2.0,))
