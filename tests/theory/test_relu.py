"""Theorem 5.1 and the depth recursion, against the printed numbers, quadrature and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import dblquad

from modelprops.errors import ArgumentError
from modelprops.theory.relu import (
    c_map,
    c_map_iterates,
    relu_cross_moment,
    relu_fixed_point,
    relu_fixed_point_linearised,
    relu_fixed_point_quadratic,
    relu_layer_stability,
    relu_level_weight,
    relu_moments,
    relu_recursion,
    relu_stability,
    relu_stability_slope,
)


def test_the_ends_have_their_printed_values() -> None:
    assert relu_stability(0) == pytest.approx(0.159155, abs=5e-7)
    assert relu_stability(1) == 0.5
    assert relu_stability(-1) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("rho", [-0.7, 0.25, 0.9])
def test_the_closed_form_is_the_integral(rho: float) -> None:
    spread = math.sqrt(1 - rho * rho)

    def integrand(z: float, x: float) -> float:
        return x * (rho * x + spread * z) * math.exp(-(x * x + z * z) / 2) / (2 * math.pi)

    integral, _ = dblquad(integrand, 0, 9, lambda x: -rho * x / spread, 12, epsabs=1e-9)
    assert relu_stability(rho) == pytest.approx(integral, abs=1e-7)


def test_the_cross_moment_scales_and_increases_in_both_arguments() -> None:
    q, c, step = 2.0, 0.6, 1e-6
    assert relu_cross_moment(q, c) == pytest.approx(q * relu_stability(c / q), rel=1e-15)
    in_q = (relu_cross_moment(q + step, c) - relu_cross_moment(q - step, c)) / (2 * step)
    in_c = (relu_cross_moment(q, c + step) - relu_cross_moment(q, c - step)) / (2 * step)
    assert in_q == pytest.approx(math.sqrt(q * q - c * c) / (2 * math.pi * q), abs=1e-8)
    assert in_c == pytest.approx((math.pi - math.acos(c / q)) / (2 * math.pi), abs=1e-8)
    assert relu_cross_moment(0, 0) == 0


def test_level_weights_are_the_printed_ones_and_leave_the_printed_tail() -> None:
    low = [relu_level_weight(j) for j in range(3)]
    assert low == pytest.approx([1 / (2 * math.pi), 1 / 4, 1 / (4 * math.pi)], rel=1e-14)
    assert [relu_level_weight(j) for j in (3, 5, 7)] == [0, 0, 0]
    assert 0.5 - sum(low) == pytest.approx(0.0112676, abs=5e-8)
    rho = 0.6
    assert sum(relu_level_weight(j) * rho**j for j in range(200)) == pytest.approx(relu_stability(rho), rel=1e-13)


def test_the_quadratic_taylor_error_is_the_printed_one() -> None:
    taylor = sum(relu_level_weight(j) for j in range(3))
    assert relu_stability(1) - taylor == pytest.approx(0.0113, abs=5e-5)


def test_centred_correlations_of_one_neuron_are_the_printed_ones() -> None:
    mean = relu_stability(0)
    for rho, expected in ((0.5, 0.426), (0.25, 0.198)):
        assert (relu_stability(rho) - mean) / (0.5 - mean) == pytest.approx(expected, abs=5e-4)
    assert mean / relu_stability(1) == pytest.approx(0.32, abs=5e-3)


def test_a_layer_needs_its_cross_terms() -> None:
    # 400,000 pairs; five standard errors fail by chance with probability below 1e-6.
    generator = np.random.default_rng(0)
    weights, coefficients, rho = generator.normal(size=(5, 3)), np.array([1.0, -2.0, 0.5, 1.5, -1.0]), 0.7
    x = generator.normal(size=(400_000, 3))
    y = rho * x + math.sqrt(1 - rho * rho) * generator.normal(size=x.shape)
    values = np.prod([np.maximum(z @ weights.T, 0) @ coefficients for z in (x, y)], axis=0)
    error = values.std() / math.sqrt(len(values))
    stability = relu_layer_stability(weights, coefficients, rho)
    assert abs(stability - values.mean()) < 5 * error
    diagonal = sum(a * a * (w @ w) * relu_stability(rho) for a, w in zip(coefficients, weights, strict=True))
    assert abs(diagonal - values.mean()) > 20 * error


def test_the_three_fixed_points_differ_as_printed() -> None:
    assert relu_fixed_point() == pytest.approx(0.21723362821122, abs=1e-14)
    assert relu_fixed_point_linearised() == pytest.approx(0.212206590789, abs=5e-13)
    assert relu_fixed_point_quadratic() == pytest.approx(0.217212687685, abs=5e-13)
    assert relu_stability_slope(relu_fixed_point()) == pytest.approx(0.284852, abs=5e-7)
    assert 1 - relu_fixed_point_linearised() / relu_fixed_point() == pytest.approx(0.023, abs=5e-4)


def test_the_fixed_points_solve_their_own_equations() -> None:
    exact, linear, quadratic = relu_fixed_point(), relu_fixed_point_linearised(), relu_fixed_point_quadratic()
    assert relu_stability(exact) == pytest.approx(exact, rel=1e-15)
    assert 1 / (2 * math.pi) + linear / 4 == pytest.approx(linear, rel=1e-15)
    assert 1 / (2 * math.pi) + quadratic / 4 + quadratic**2 / (4 * math.pi) == pytest.approx(quadratic, rel=1e-14)


def test_the_recursion_sends_identical_inputs_to_the_fixed_point() -> None:
    printed = [(0.5, 1), (0.3045, 4), (0.2427, 4), (0.2245, 4), (0.2193, 4), (0.2178, 4), (0.2174, 4), (0.21728, 5)]
    for value, (expected, digits) in zip(relu_recursion(1.0, 8), printed, strict=True):
        assert value == pytest.approx(expected, abs=0.51 * 10**-digits)


def test_the_normalised_map_goes_to_one_polynomially() -> None:
    path = c_map_iterates(0.0, 10)
    for index, expected in ((0, 0.318), (1, 0.494), (9, 0.872)):
        assert path[index] == pytest.approx(expected, abs=5e-4)
    assert c_map(1.0) == 1
    assert (1 - c_map(1 - 1e-8)) / 1e-8 == pytest.approx(1, abs=1e-3)
    # 40-digit arithmetic gives 42.1038 from c = .9 (the printed 42.1) and 43.1297 from c = 0.
    assert (1 - c_map_iterates(0.9, 1000)[-1]) * 1e6 == pytest.approx(42.1038, abs=5e-4)
    assert (1 - c_map_iterates(0.0, 1000)[-1]) * 1e6 == pytest.approx(43.1297, abs=5e-4)
    assert 9 * math.pi**2 / 2 == pytest.approx(44.41, abs=5e-3)
    assert (1 - c_map_iterates(0.0, 10_000)[-1]) * 1e8 == pytest.approx(44.41, abs=0.3)


def test_without_gain_stability_vanishes_while_the_correlation_goes_to_one() -> None:
    path = relu_moments(1.0, 0.5, 60)
    assert [q for q, _ in path] == pytest.approx([2.0**-layer for layer in range(1, 61)])
    assert path[-1][1] < 1e-17
    assert path[-1][1] / path[-1][0] > 0.98


def test_with_the_he_gain_the_correlation_follows_the_normalised_map() -> None:
    path = relu_moments(3.0, 0.0, 10, gain=2.0)
    assert [q for q, _ in path] == pytest.approx([3.0] * 10)
    assert [c / q for q, c in path] == pytest.approx(c_map_iterates(0.0, 10))


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="not a correlation"):
        relu_stability(1.1)
    with pytest.raises(ArgumentError, match="not moments"):
        relu_cross_moment(1.0, 2.0)
    with pytest.raises(ArgumentError, match="do not match"):
        relu_layer_stability(np.eye(2), [1.0], 0.5)
    with pytest.raises(ArgumentError, match="not a depth"):
        relu_recursion(0.5, 0)
    with pytest.raises(ArgumentError, match="not positive"):
        relu_moments(1.0, 0.5, 1, gain=0.0)
    with pytest.raises(ArgumentError, match="negative"):
        relu_level_weight(-1)
