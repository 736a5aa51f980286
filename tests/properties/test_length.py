"""Profiles over lengths against closed forms and least squares; agreement with a reference at every length."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.inference.sequential import Box
from modelprops.properties.length import slope_of


def parity(n: int) -> mp.Subject:
    return mp.Subject(lambda x: x.prod(1), mp.BooleanCube(n), "sign")


def majority(n: int) -> mp.Subject:
    return mp.Subject(lambda x: x.sum(1), mp.BooleanCube(n), "sign")


def test_parity_grows_with_slope_one() -> None:
    profile = mp.length_profile(parity, [3, 5, 8], mp.average_sensitivity)
    assert profile.value.tolist() == [3, 5, 8]
    assert profile.details["slope"] == {"value": pytest.approx(1), "low": pytest.approx(1), "high": pytest.approx(1)}
    assert profile.details["intercept"] == pytest.approx(0, abs=1e-9)
    assert profile.method == "exact"


def test_majority_grows_like_a_square_root() -> None:
    lengths = [5, 7, 9, 11, 13]
    exact = [n * math.comb(n - 1, (n - 1) // 2) / 2 ** (n - 1) for n in lengths]
    profile = mp.length_profile(majority, lengths, "average_sensitivity", scale="log-log")
    np.testing.assert_allclose(profile.value, exact, atol=1e-9)
    slope = np.polyfit(np.log(lengths), np.log(exact), 1)[0]
    assert profile.details["slope"]["value"] == pytest.approx(slope)
    assert 0.45 < slope < 0.5


def test_the_slope_interval_holds_every_line_through_the_boxes() -> None:
    rng = np.random.default_rng(0)
    lengths = [4, 5, 9, 16]
    value = rng.uniform(1, 2, 4)
    box = Box(value, value - 0.2, value + 0.3)
    slope, intercept = slope_of(lengths, box)
    np.testing.assert_allclose([slope.value, intercept], np.polyfit(lengths, value, 1), atol=1e-12)
    found = [np.polyfit(lengths, rng.uniform(box.low, box.high), 1)[0] for _ in range(500)]
    corners = [np.polyfit(lengths, [(box.low, box.high)[c >> k & 1][k] for k in range(4)], 1)[0] for c in range(16)]
    assert slope.low <= min(found)
    assert max(found) <= slope.high
    assert (slope.low, slope.high) == (pytest.approx(min(corners)), pytest.approx(max(corners)))


def test_a_sampled_profile_covers_all_lengths_and_the_slope() -> None:
    # Each run misses with probability below 1%; all 20 together at 1 - 1e-7 miss with probability below 1e-5.
    for seed in range(20):
        profile = mp.length_profile(
            majority, [5, 9], "average_sensitivity", exact=False, budget=10_000, seed=seed, confidence=1 - 1e-7
        )
        exact = np.array([1.875, 9 * math.comb(8, 4) / 2**8])
        assert ((profile.low <= exact) & (exact <= profile.high)).all()
        assert profile.details["slope"]["low"] <= (exact[1] - exact[0]) / 4 <= profile.details["slope"]["high"]


def test_growth_is_bounded_or_not() -> None:
    assert mp.assert_bounded_growth(majority, [5, 9, 13], "average_sensitivity", 0.2).outcome == "pass"
    with pytest.raises(mp.PropertyViolation, match="slope of"):
        mp.assert_bounded_growth(parity, [5, 9, 13], "average_sensitivity", 0.5)
    with pytest.raises(mp.Inconclusive):
        mp.assert_bounded_growth(majority, [5, 6], "average_sensitivity", 0.3, exact=False, budget=1000, seed=0)


def test_a_model_that_reads_eight_bits_fails_beyond_them() -> None:
    def short_sighted(n: int) -> mp.Subject:
        return mp.Subject(lambda x: x[:, :8].prod(1), mp.BooleanCube(n), "sign")

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.prod(1)

    assert mp.assert_length_generalises(short_sighted, reference, lengths=[4, 8]).outcome == "pass"
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_length_generalises(short_sighted, reference, lengths=[4, 8, 9, 40], seed=0)
    verdict = caught.value.verdict
    assert verdict.estimate.details["failed"] == [9, 40]
    np.testing.assert_allclose(verdict.estimate.value[:3], [0, 0, 0.5])
    point = verdict.witness.point
    assert len(point) == 9
    assert point.prod() != point[:8].prod()


def test_a_reference_may_depend_on_the_length() -> None:
    def first_or_last(n: int) -> object:
        return (lambda x: x[:, 0]) if n < 5 else (lambda x: x[:, -1])

    def model(n: int) -> mp.Subject:
        return mp.Subject(first_or_last(n), mp.BooleanCube(n), "sign")

    assert mp.assert_length_generalises(model, first_or_last, lengths=[3, 6, 50], seed=0).outcome == "pass"


def test_a_family_of_functions_is_a_reference_by_length() -> None:
    assert mp.assert_length_generalises(majority, mp.functions.majority, lengths=[3, 7, 41], seed=0).outcome == "pass"
    with pytest.raises(mp.PropertyViolation, match="disagreement with"):
        mp.assert_length_generalises(majority, mp.functions.parity, lengths=[3, 41], seed=0)


def test_a_failure_at_one_length_outweighs_doubt_at_another() -> None:
    def wrong_at_30(n: int) -> mp.Subject:
        return mp.Subject(lambda x: -x[:, 0] if n == 30 else x[:, 0], mp.BooleanCube(n), "sign")

    def first(x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]

    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_length_generalises(wrong_at_30, first, lengths=[20, 30], budget=64, seed=0, exact=False)
    assert caught.value.verdict.estimate.details == {"lengths": [20, 30], "failed": [30], "undecided": [20]}
    with pytest.raises(mp.Inconclusive, match=r"\[20\] are undecided"):
        mp.assert_length_generalises(wrong_at_30, first, lengths=[20], budget=64, seed=0, exact=False)


def test_disagreement_is_the_distance_of_two_functions() -> None:
    # Majority of three and its first bit differ on 2 of 8 inputs.
    subject = mp.Subject(lambda x: x[:, :3].sum(1), mp.BooleanCube(3))
    assert mp.disagreement(subject, reference=lambda x: x[:, 0]).value == 0.25
    assert mp.disagreement(subject, reference=lambda x: x[:, :3].sum(1).double()).value == 0


def test_nonsense_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="fewer than two"):
        mp.length_profile(parity, [4], "average_sensitivity")
    with pytest.raises(mp.ArgumentError, match="twice"):
        mp.length_profile(parity, [4, 4], "average_sensitivity")
    with pytest.raises(mp.ArgumentError, match="vector"):
        mp.length_profile(parity, [4, 5], "influences")
    with pytest.raises(mp.ArgumentError, match="has a threshold"):
        mp.length_profile(parity, [4, 5], "average_sensitivity <= 3")
    with pytest.raises(mp.ArgumentError, match="make_subject"):
        mp.length_profile(lambda n: torch.nn.Linear(n, 1), [4, 5], "average_sensitivity")
    with pytest.raises(mp.ArgumentError, match="not callable"):
        mp.disagreement(parity(3), reference=None)
