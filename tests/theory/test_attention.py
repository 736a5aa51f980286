"""Theorems 5.2 and 5.3 against simulation, the printed Monte-Carlo numbers and independent quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr

from modelprops.errors import ArgumentError
from modelprops.theory.attention import (
    argmax_agreement,
    distinct_columns,
    expected_maximum,
    identity_attention_stability,
    simulate_attention,
    unstructured_attention_stability,
    unstructured_excess,
)


def test_two_tokens_have_the_closed_form() -> None:
    for rho in (0.0, 0.5, -0.9):
        assert argmax_agreement(2, rho) == pytest.approx(1 - math.acos(rho**2) / math.pi, rel=1e-15)


@pytest.mark.parametrize("rho", [0.3, 0.9, 0.99])
def test_three_tokens_have_an_orthant_formula(rho: float) -> None:
    # Token 1 wins both times iff four Gaussians are positive. Their correlation matrix is a Kronecker product of
    # [1, 1/2; 1/2, 1] and [1, r; r, 1], whose orthant probability is (Cheng 1969)
    # 1/9 + (asin(r) + asin(r/2)) / (4 pi) + (asin(r)^2 - asin(r/2)^2) / (4 pi^2).
    r = rho * rho
    a, b = math.asin(r), math.asin(r / 2)
    orthant = 1 / 9 + (a + b) / (4 * math.pi) + (a * a - b * b) / (4 * math.pi**2)
    assert argmax_agreement(3, rho) == pytest.approx(3 * orthant, abs=1e-9)


def test_the_limits_are_chance_and_certainty() -> None:
    assert argmax_agreement(1, 0.3) == 1
    for n in (3, 17, 300):
        assert argmax_agreement(n, 0.0) == pytest.approx(1 / n, rel=1e-9)
        assert argmax_agreement(n, 1.0) == 1
        assert argmax_agreement(n, 0.9999) > 0.95


@pytest.mark.parametrize(
    ("rho", "printed"),
    [
        (0.5, {8: 0.205, 32: 0.082, 128: 0.034, 512: 0.013}),
        (0.9, {8: 0.559, 32: 0.411, 128: 0.320, 512: 0.250}),
        (0.95, {8: 0.677, 32: 0.555, 128: 0.468, 512: 0.410}),
    ],
)
def test_agreement_is_the_printed_one_within_its_monte_carlo_error(rho: float, printed: dict[int, float]) -> None:
    # The printed values are Monte Carlo too: four million draws give .20998(20), .55618(25), .67251(23) at n = 8.
    for n, value in printed.items():
        assert argmax_agreement(n, rho) == pytest.approx(value, abs=0.006)
    precise = {0.5: 0.20998, 0.9: 0.55618, 0.95: 0.67251}[rho]
    assert argmax_agreement(8, rho) == pytest.approx(precise, abs=0.0013)


def test_agreement_matches_a_fresh_simulation() -> None:
    # Five standard errors of 200,000 draws: chance below 1e-6.
    generator = np.random.default_rng(0)
    n, r, draws = 16, 0.6, 200_000
    x = generator.standard_normal((draws, n), dtype=np.float32)
    y = r * x + math.sqrt(1 - r * r) * generator.standard_normal((draws, n), dtype=np.float32)
    agree = float((x.argmax(1) == y.argmax(1)).mean())
    assert abs(argmax_agreement(n, math.sqrt(r)) - agree) < 5 * math.sqrt(agree * (1 - agree) / draws)


def test_agreement_falls_with_the_stated_power_of_n() -> None:
    r = 0.25
    slope = math.log(argmax_agreement(4096, 0.5) / argmax_agreement(512, 0.5)) / math.log(8)
    assert slope == pytest.approx(-(1 - r) / (1 + r), abs=0.1)


def test_the_expected_maximum_is_known_for_two_and_three_and_by_another_quadrature() -> None:
    assert expected_maximum(1) == pytest.approx(0, abs=1e-12)
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-8)
    assert expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-8)
    above, _ = quad(lambda t: 1 - ndtr(t) ** 64, 0, 12)
    below, _ = quad(lambda t: ndtr(t) ** 64, -12, 0)
    assert expected_maximum(64) == pytest.approx(above - below, rel=1e-7)


@pytest.mark.parametrize(("rho", "scale"), [(0.5, 1.0), (0.9, 1.0), (0.9, 512**-0.5)])
def test_identity_weights_keep_rho(rho: float, scale: float) -> None:
    run = simulate_attention("identity", n=64, width=512, rho=rho, draws=60, seed=1, logit_scale=scale)
    # 5 standard errors plus the o(1) of the theorem at this width.
    assert abs(run.stability - identity_attention_stability(rho)) < 5 * run.standard_error + 0.01
    assert run.agreement == 1


def test_low_rank_weights_keep_rho() -> None:
    run = simulate_attention("low_rank", n=32, width=256, rho=0.9, draws=60, seed=2, rank=32)
    assert abs(run.stability - identity_attention_stability(0.9)) < 5 * run.standard_error + 0.02


@pytest.mark.parametrize(
    ("n", "rho", "printed", "error", "limit", "agreement"),
    [
        (32, 0.5, 0.052, 0.008, 0.041, 0.081),
        (32, 0.9, 0.393, 0.015, 0.379, 0.421),
        (64, 0.5, 0.044, 0.006, 0.025, 0.051),
        (64, 0.9, 0.355, 0.010, 0.329, 0.366),
    ],
)
def test_unstructured_weights_lose_all_but_the_agreement(
    n: int, rho: float, printed: float, error: float, limit: float, agreement: float
) -> None:
    run = simulate_attention("unstructured", n=n, width=256, rho=rho, draws=150, seed=3)
    prediction = unstructured_attention_stability(rho, n, width=256)
    assert abs(run.stability - prediction) < 5 * run.standard_error + 0.01
    assert abs(run.agreement - argmax_agreement(n, rho)) < 5 * run.agreement_error + 0.01
    assert abs(prediction - printed) < 3 * error
    # The printed limit is rho times the printed agreement, and that is a simulation at finite width.
    assert limit == pytest.approx(rho * agreement, abs=1e-3)
    assert unstructured_attention_stability(rho, n) == pytest.approx(limit, abs=0.9 * 0.015)
    assert argmax_agreement(n, rho) == pytest.approx(agreement, abs=0.015)
    assert prediction - unstructured_attention_stability(rho, n) == pytest.approx(unstructured_excess(rho, n, 256))


def test_rows_collide_as_a_random_map_does() -> None:
    run = simulate_attention("unstructured", n=64, width=256, rho=0.9, draws=60, seed=4)
    assert distinct_columns(64) == pytest.approx(0.635, abs=5e-4)
    assert run.distinct == pytest.approx(0.617, abs=0.02)


def test_impossible_settings_are_refused() -> None:
    for call in (
        lambda: argmax_agreement(0, 0.5),
        lambda: argmax_agreement(4, 1.5),
        lambda: unstructured_excess(0.5, 4, 0),
        lambda: simulate_attention("low_rank", n=4, width=4, rho=0.5, draws=2, seed=0),
        lambda: simulate_attention("identity", n=4, width=4, rho=0.5, draws=1, seed=0),
    ):
        with pytest.raises(ArgumentError):
            call()
