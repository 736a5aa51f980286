"""Mean-field maps of a wide layer with any activation: variance map, chi_1 and the phase it puts a network in.

Source: Poole et al. 2016, Schoenholz et al. 2017; spec E3. The ReLU correlation map in closed form is
`theory.relu.c_map`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.integrate import quad

from modelprops.errors import ArgumentError

Scalar = Callable[[float], float]


def variance_map(activation: Scalar, q: float, weight_variance: float, bias_variance: float = 0.0) -> float:
    """q' = sw2 E[phi(sqrt(q) z)^2] + sb2, z ~ N(0, 1), by quadrature (about 1e-10 if phi has no kink but at 0)."""
    _require_variances(q, weight_variance, bias_variance)
    return weight_variance * _gaussian_mean(lambda z: activation(math.sqrt(q) * z) ** 2) + bias_variance


def chi_1(derivative: Scalar, q: float, weight_variance: float) -> float:
    """chi_1 = sw2 E[phi'(sqrt(q) z)^2]: slope of the correlation map at 1, by adaptive quadrature.

    Below 1 ordered (copies converge), 1 the edge, above 1 chaotic. `derivative` is phi'. For ReLU it is sw2/2 at
    every q.
    """
    _require_variances(q, weight_variance, 0.0)
    return weight_variance * _gaussian_mean(lambda z: derivative(math.sqrt(q) * z) ** 2)


def _gaussian_mean(function: Scalar) -> float:
    def density(z: float) -> float:
        return function(z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    # Activations have their kink at 0; beyond 12 standard deviations the density is below 1e-31.
    return sum(float(quad(density, low, high, epsabs=1e-12)[0]) for low, high in ((-12, 0), (0, 12)))


def _require_variances(q: float, weight_variance: float, bias_variance: float) -> None:
    if not (q >= 0 and weight_variance > 0 and bias_variance >= 0):
        raise ArgumentError(
            f"q={q!r}, weight_variance={weight_variance!r}, bias_variance={bias_variance!r}: "
            "give q >= 0, sw2 > 0, sb2 >= 0."
        )
