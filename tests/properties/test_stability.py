"""Noise stability: closed forms, three numbers, both ways of drawing a partner."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import modelprops as mp
from modelprops import functions


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.3, 0.9, 1.0])
def test_parity_and_majority_of_three_have_their_closed_forms(rho: float) -> None:
    parity = mp.noise_stability(functions.parity(12), domain=mp.BooleanCube(12), rho=rho)
    assert parity.value == pytest.approx(rho**12)
    majority = mp.noise_stability(functions.majority(3), domain=mp.BooleanCube(3), rho=rho)
    assert majority.value == pytest.approx(0.75 * rho + 0.25 * rho**3)


def test_tokens_equal_a_sum_over_all_pairs() -> None:
    table = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keep = 0.625
    by_hand = 0.0
    for x in itertools.product(range(3), repeat=2):
        for y in itertools.product(range(3), repeat=2):
            chance = 1 / 9
            for a, b in zip(x, y, strict=True):
                chance *= keep * (a == b) + (1 - keep) / 3
            by_hand += chance * float(table[x] * table[y])
    subject = mp.Subject(lambda p: table[p[:, 0], p[:, 1]], mp.Tokens(3, 2), range=(0, 1))
    assert mp.noise_stability(subject, keep=keep).value == pytest.approx(by_hand)
    # Confidence 1 - 1e-7.
    found = mp.noise_stability(subject, keep=keep, exact=False, confidence=1 - 1e-7, budget=100_000, seed=0)
    assert found.low <= by_hand <= found.high


@pytest.mark.parametrize("normalisation", ["raw", "centred", "correlation"])
def test_the_three_numbers_cover_their_closed_forms(normalisation: str) -> None:
    """A biased function, f = .5 + .25 x_0 x_1: Stab = .25 + rho^2/16. Confidence 1 - 1e-7."""
    rho = 0.6
    truth = {"raw": 0.25 + rho**2 / 16, "centred": rho**2 / 16, "correlation": rho**2}
    subject = mp.Subject(lambda x: 0.5 + 0.25 * x[:, 0] * x[:, 1], mp.BooleanCube(4), range=(0, 1))
    assert mp.noise_stability(subject, rho=rho, normalisation=normalisation).value == pytest.approx(
        truth[normalisation]
    )
    found = mp.noise_stability(
        subject, rho=rho, normalisation=normalisation, exact=False, confidence=1 - 1e-7, budget=200_000, seed=0
    )
    assert found.low <= truth[normalisation] <= found.high
    for name, value in truth.items():
        assert found.details[name]["low"] <= value <= found.details[name]["high"]


def test_vector_readouts_are_summed_over_outputs() -> None:
    subject = mp.Subject(lambda x: x[:, :2], mp.BooleanCube(3), "sign")
    assert mp.noise_stability(subject, rho=0.4).value == pytest.approx(0.8)


def test_a_changed_label_counts_as_a_changed_sign() -> None:
    scores = mp.Subject(lambda x: torch.stack([x[:, 0], -x[:, 0]], 1), mp.BooleanCube(3), "label")
    assert mp.average_sensitivity(scores).value == pytest.approx(1.0)


def test_the_gaussian_relu_has_its_closed_form() -> None:
    """E relu(X) relu(Y) = (sqrt(1 - r^2) + r (pi - arccos r)) / (2 pi); the interval is asymptotic, at 1 - 1e-7."""
    rho = 0.5
    truth = (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)
    found = mp.noise_stability(
        lambda x: torch.relu(x[:, 0]), domain=mp.Gaussian(2), rho=rho, confidence=1 - 1e-7, budget=400_000, seed=0
    )
    assert found.guarantee == "asymptotic"
    assert found.low <= truth <= found.high


def test_a_violation_shows_a_minimal_pair() -> None:
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_stability_above(functions.parity(20), 0.9, domain=mp.BooleanCube(20), rho=0.9, exact=False, seed=0)
    witness = caught.value.verdict.witness
    assert int((witness.point != witness.partner).sum()) == 1
    assert witness.score == -1


def test_rho_and_keep_exclude_each_other_and_have_ranges() -> None:
    for wrong in ({}, {"rho": 0.5, "keep": 0.5}, {"rho": 1.1}, {"rho": float("nan")}, {"keep": -0.1}, {"rho": "0.9"}):
        with pytest.raises(mp.ArgumentError):
            mp.noise_stability(functions.parity(3), domain=mp.BooleanCube(3), **wrong)
    with pytest.raises(mp.ArgumentError, match="correlation"):
        mp.noise_stability(functions.parity(3), domain=mp.BooleanCube(3), rho=0.5, normalisation="pearson")
