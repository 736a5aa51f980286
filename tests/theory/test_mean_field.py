"""Mean-field maps against closed forms for ReLU, erf and the identity."""

from __future__ import annotations

import math

import pytest

from modelprops.errors import ArgumentError
from modelprops.theory.mean_field import chi_1, variance_map


@pytest.mark.parametrize("gain", [1.0, 2.0, 3.0])
def test_relu_has_half_the_weight_variance(gain: float) -> None:
    assert chi_1(lambda z: float(z > 0), 0.7, gain) == pytest.approx(gain / 2, rel=1e-9)
    assert variance_map(lambda z: max(z, 0.0), 0.7, gain) == pytest.approx(gain * 0.35, rel=1e-9)


def test_erf_follows_the_arcsine_formula() -> None:
    q, weight, bias = 1.3, 1.7, 0.2
    expected = weight * (2 / math.pi) * math.asin(2 * q / (1 + 2 * q)) + bias
    assert variance_map(math.erf, q, weight, bias) == pytest.approx(expected, rel=1e-9)
    slope = chi_1(lambda z: 2 / math.sqrt(math.pi) * math.exp(-z * z), q, weight)
    assert slope == pytest.approx(weight * (4 / math.pi) / math.sqrt(1 + 4 * q), rel=1e-9)


def test_negative_variances_are_refused() -> None:
    with pytest.raises(ArgumentError, match="sw2 > 0"):
        chi_1(math.sin, 1.0, 0.0)
