"""Lemma 1 in its true direction, the two tail bounds, and Friedgut's number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelprops.errors import ArgumentError
from modelprops.theory.concentration import (
    concentration_degree,
    friedgut_number,
    gap_tail_bound,
    sensitivity_tail_bound,
    stability_tail_bound,
)
from modelprops.theory.resampling import GaussianNoise, Resampling

RHO = 0.9
NOISE = Resampling.from_rho(RHO)


def geometric(n: int) -> np.ndarray:
    weights = 2.0 ** -(np.arange(n + 1) + 1.0)
    return weights / weights.sum()


def bounds(weights: np.ndarray, k: int, rho: float) -> tuple[float, float, float]:
    degrees = np.arange(len(weights))
    stability = float((rho**degrees * weights).sum())
    sb = stability_tail_bound(float(weights.sum()), stability, GaussianNoise(rho), k)
    return sb, sensitivity_tail_bound(float((degrees * weights).sum()), k), float(weights[k:].sum())


def test_the_degree_has_the_right_sign_and_printed_size() -> None:
    degree = concentration_degree(0.05, 0.1, NOISE)
    assert degree == pytest.approx(6.579, abs=5e-4)
    assert degree == pytest.approx(math.log(0.1 / 0.05, 1 / RHO), rel=1e-12)


def test_the_worst_tail_obeys_the_lemma_just_above_the_degree_and_not_below() -> None:
    delta, eps = 0.05, 0.1
    tails = {k: gap_tail_bound(delta, NOISE, k) for k in (6, 7)}
    assert tails[7] == pytest.approx(0.0958, abs=5e-5)
    assert tails[6] == pytest.approx(0.1067, abs=5e-5)
    assert tails[7] <= eps < tails[6]


@pytest.mark.parametrize("degree", [1, 4, 7])
def test_the_lemma_is_sharp_for_mass_at_degree_zero_and_one_degree(degree: int) -> None:
    delta = 0.05
    mass = delta / (1 - RHO**degree)
    weights = np.zeros(degree + 1)
    weights[0], weights[degree] = 1 - mass, mass
    stability = float((RHO ** np.arange(degree + 1) * weights).sum())
    assert stability == pytest.approx(1 - delta, rel=1e-14)
    assert concentration_degree(delta, mass, NOISE) == pytest.approx(degree, rel=1e-12)
    assert stability_tail_bound(1.0, stability, NOISE, degree) == pytest.approx(mass, rel=1e-10)


def test_higher_stability_means_a_lower_degree() -> None:
    degrees = [concentration_degree(delta, 0.1, NOISE) for delta in (0.01, 0.03, 0.05, 0.09)]
    assert degrees == sorted(degrees)
    assert degrees[0] > 0


def test_neither_bound_dominates_as_printed() -> None:
    n, k = 256, 15
    sb, ab, tail = bounds(geometric(n), k, 0.99)
    assert ab == pytest.approx(0.0667, abs=5e-5)
    assert sb == pytest.approx(0.0707, abs=1e-4)
    assert tail == pytest.approx(0.00003, abs=5e-6)
    assert ab < sb

    top = 0.99 * np.pad(geometric(3), (0, n - 3))
    top[n] += 0.01
    sb, ab, tail = bounds(top, k, 0.9)
    assert tail == pytest.approx(0.01, rel=1e-12)
    assert sb < ab


def test_the_tail_never_exceeds_either_bound() -> None:
    generator = np.random.default_rng(0)
    for _ in range(1000):
        weights = generator.dirichlet(np.full(20, 0.2))
        k = int(generator.integers(1, 20))
        sb, ab, tail = bounds(weights, k, float(generator.uniform(0.05, 0.99)))
        assert tail <= min(sb, ab) + 1e-12


def test_the_stability_bound_becomes_the_sensitivity_bound_as_noise_vanishes() -> None:
    sb, ab, _ = bounds(geometric(64), 15, 1 - 1e-7)
    assert sb == pytest.approx(ab, rel=1e-4)
    for rho in (0.3, 0.9, 0.99):
        sb, ab, _ = bounds(geometric(256), 15, rho)
        assert ab / sb <= 256 / 15 + 1e-12


def test_using_rho_for_the_papers_sampler_would_break_the_bound() -> None:
    # A function of degree 1: with keep .625 its gap is .375, and dividing by 1 - .25 claims a tail of half its mass.
    noise = Resampling.from_paper(0.25)
    gap = 1 - noise.correlation
    assert gap_tail_bound(gap, noise, 1) == pytest.approx(1.0, rel=1e-14)
    assert gap / (1 - 0.25) == pytest.approx(0.5, rel=1e-14)


def test_friedguts_number_is_labelled_vacuous_beyond_the_coordinates() -> None:
    printed = friedgut_number(1.0, 0.1, 256)
    assert printed.size == pytest.approx(1024)
    assert printed.vacuous
    assert "vacuous" in str(printed)
    for influence, size in ((0.045, 1.37), (0.6, 64), (0.645, 87)):
        number = friedgut_number(influence, 0.1, 256)
        assert number.size == pytest.approx(size, rel=5e-3)
        assert not number.vacuous
    assert friedgut_number(2.85, 0.1, 256).size == pytest.approx(3.8e8, rel=5e-3)
    assert friedgut_number(1e6, 0.1, 256).size == math.inf


def test_empty_or_impossible_statements_are_refused() -> None:
    for call in (
        lambda: concentration_degree(0.1, 0.1, NOISE),
        lambda: concentration_degree(0.05, 0.1, Resampling(keep=1.0)),
        lambda: stability_tail_bound(1.0, 1.1, NOISE, 2),
        lambda: gap_tail_bound(-0.1, NOISE, 2),
        lambda: gap_tail_bound(0.1, NOISE, 0),
        lambda: sensitivity_tail_bound(-1.0, 2),
        lambda: friedgut_number(1.0, 0.0, 5),
    ):
        with pytest.raises(ArgumentError):
            call()
