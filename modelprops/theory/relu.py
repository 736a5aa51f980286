"""Noise stability of ReLU: closed forms for one neuron, one layer and a stack of layers.

With (X, Y) standard bivariate Gaussian of correlation rho,

    T(rho) = E[relu(X) relu(Y)] = (sqrt(1 - rho^2) + rho (pi - arccos rho)) / (2 pi).

Three different things are called "the depth limit" of this map, and they disagree:

- the recursion rho_L = T(rho_{L-1}) of the paper has the fixed point 0.2172336 (`relu_fixed_point`);
- its linearisation 1/(2 pi) + rho/4 has 2/(3 pi) = 0.2122066 (`relu_fixed_point_linearised`), 2.3% lower, because it
  drops the level-2 weight 1/(4 pi) and everything above;
- a network does neither. T returns a raw second moment of an output that is neither centred, nor Gaussian, nor of unit
  variance, and the recursion feeds it back as if it were a correlation of standard Gaussians: identical inputs
  (rho = 1) would drift to 0.217. It is a proxy. What a wide layer carries is the pair (q, c) of `relu_moments`: without
  weight gain q and c both halve per layer and go to 0, and with the He gain 2 the correlation c/q follows `c_map` to 1.

Source: Haris, Zhang & Yoshida 2026, Theorem 5.1 and section 5.2; spec A11, A13, B4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from modelprops.errors import ArgumentError


def relu_stability(rho: float) -> float:
    """T(rho) = E[relu(X) relu(Y)] for standard Gaussians of correlation `rho` in [-1, 1]. Exact.

    A neuron relu(w.x) with ||w|| = 1 has exactly this noise stability. T(0) = 1/(2 pi), T(1) = 1/2.
    Raises ArgumentError outside [-1, 1]. Source: Theorem 5.1; spec A11.
    """
    _require_correlation(rho)
    return float(_stability(np.asarray(rho, dtype=np.float64)))


def relu_stability_slope(rho: float) -> float:
    """T'(rho) = (pi - arccos rho) / (2 pi), in [0, 1/2]: the recursion rho -> T(rho) contracts. Exact. Spec A11."""
    _require_correlation(rho)
    return (math.pi - math.acos(rho)) / (2 * math.pi)


def relu_cross_moment(q: float, c: float) -> float:
    """T_q(c) = E[relu(U) relu(V)] = q T(c/q) for centred Gaussians with E U^2 = E V^2 = `q`, E U V = `c`. Exact.

    Increasing in c and in q. Raises ArgumentError unless q >= 0 and |c| <= q. Spec A11.
    """
    if not (q >= 0 and math.isfinite(q) and abs(c) <= q):
        raise ArgumentError(f"q={q!r} and c={c!r} are not moments of one pair. Give q >= 0 and -q <= c <= q.")
    return 0.0 if q == 0 else q * relu_stability(max(-1.0, min(1.0, c / q)))


def relu_level_weight(level: int) -> float:
    """W^j of relu: 1/(2 pi), 1/4, 1/(4 pi), then 0 at odd j and ((j-3)!!)^2 / (2 pi j!) at even j. Exact.

    The weights add up to E relu(X)^2 = 1/2; the Taylor polynomial of T is sum_j W^j rho^j. Raises ArgumentError for
    a negative level. Spec A11.
    """
    if level < 0:
        raise ArgumentError(f"level={level} is negative. A Hermite level is a degree: 0, 1, 2, ...")
    if level == 1:
        return 0.25
    if level % 2:
        return 0.0
    # W^j / W^(j-2) = (j-3)^2 / (j (j-1)) avoids factorials that overflow.
    weight = 1 / (2 * math.pi)
    for j in range(2, level + 1, 2):
        weight *= (j - 3) ** 2 / (j * (j - 1))
    return weight


def relu_layer_stability(weights: ArrayLike, coefficients: ArrayLike, rho: float) -> float:
    """Stab of sum_i a_i relu(w_i.x) under x ~ N(0, I_d): sum_ij a_i a_j |w_i| |w_j| T(rho cos(w_i, w_j)). Exact.

    `weights`: (m, d), rows w_i of any length; `coefficients`: (m,). The cross terms i != j are part of it: a layer is
    not a sum of independent neurons. Raises ArgumentError for other shapes. Spec A11.
    """
    _require_correlation(rho)
    w = np.asarray(weights, dtype=np.float64)
    a = np.asarray(coefficients, dtype=np.float64)
    if w.ndim != 2 or a.shape != (w.shape[0],):
        raise ArgumentError(f"weights {w.shape} and coefficients {a.shape} do not match. Give (m, d) and (m,).")
    norms = np.linalg.norm(w, axis=1)
    directions = w / np.where(norms > 0, norms, 1.0)[:, None]
    cosines = np.clip(directions @ directions.T, -1.0, 1.0)
    scaled = a * norms
    return float(scaled @ _stability(rho * cosines) @ scaled)


def relu_recursion(rho: float, layers: int) -> tuple[float, ...]:
    """(rho_1, ..., rho_L) with rho_l = T(rho_{l-1}), the paper's recursion. A proxy for a network, not a theorem.

    Why a proxy: see the module docstring. Spec A13, B4.
    """
    _require_layers(layers)
    trajectory = []
    for _ in range(layers):
        rho = relu_stability(rho)
        trajectory.append(rho)
    return tuple(trajectory)


def relu_fixed_point() -> float:
    """The only fixed point of rho -> T(rho) in [0, 1], 0.2172336282..., to double precision.

    T is convex with T(0) > 0 and T(1) < 1, so there is one. It is not 2/(3 pi): that is the fixed point of the
    linearised map. It is the limit of the paper's recursion, not of a network. Spec A13, B4.
    """
    return float(brentq(lambda r: relu_stability(r) - r, 0.0, 1.0, xtol=1e-16, rtol=8.9e-16))


def relu_fixed_point_linearised() -> float:
    """2/(3 pi) = 0.2122..., the fixed point of 1/(2 pi) + rho/4, as the paper prints it. Exact. Spec A13, B4."""
    return 2 / (3 * math.pi)


def relu_fixed_point_quadratic() -> float:
    """0.2172127..., the fixed point of the second-order Taylor map 1/(2 pi) + rho/4 + rho^2/(4 pi). Exact. Spec A13."""
    # rho^2/(4 pi) - 3 rho/4 + 1/(2 pi) = 0, the smaller root.
    return 2 * math.pi * (0.75 - math.sqrt(0.5625 - 1 / (2 * math.pi**2)))


def c_map(c: float) -> float:
    """C(c) = (sqrt(1 - c^2) + c (pi - arccos c)) / pi: correlation after one ReLU layer with the He gain. Exact.

    C = 2 T. Fixed point 1, with C'(1) = 1, so the approach is polynomial: 1 - c_L ~ 9 pi^2 / (2 L^2). Spec A13, E3.
    """
    return min(1.0, 2 * relu_stability(c))


def c_map_iterates(c: float, layers: int) -> tuple[float, ...]:
    """(c_1, ..., c_L) with c_l = C(c_{l-1}): a wide bias-free ReLU network with the He gain. Exact; spec A13."""
    _require_layers(layers)
    trajectory = []
    for _ in range(layers):
        c = c_map(c)
        trajectory.append(c)
    return tuple(trajectory)


def relu_moments(q: float, c: float, layers: int, gain: float = 1.0) -> tuple[tuple[float, float], ...]:
    """((q_1, c_1), ..., (q_L, c_L)) with q' = s2 q / 2, c' = s2 T_q(c), s2 = `gain`. Exact for wide layers.

    s2 = 1: q_L = q_0 2^-L, the stability vanishes while c/q -> 1. s2 = 2: q stays and c/q follows `c_map`. Raises
    ArgumentError unless |c| <= q and gain > 0. Spec A13.
    """
    _require_layers(layers)
    if not gain > 0:
        raise ArgumentError(f"gain={gain!r} is not positive. The weight gain is s2 = width * Var(weight).")
    trajectory = []
    for _ in range(layers):
        cross = relu_cross_moment(q, c)
        q = gain * q / 2
        c = min(q, gain * cross)
        trajectory.append((q, c))
    return tuple(trajectory)


def _stability(rho: NDArray[np.float64]) -> NDArray[np.float64]:
    value = (np.sqrt(1 - rho**2) + rho * (math.pi - np.arccos(rho))) / (2 * math.pi)
    return np.asarray(value, dtype=np.float64)


def _require_correlation(rho: float) -> None:
    if not -1 <= rho <= 1:
        raise ArgumentError(f"rho={rho!r} is not a correlation. Give a number in [-1, 1].")


def _require_layers(layers: int) -> None:
    if layers < 1:
        raise ArgumentError(f"layers={layers} is not a depth. Give at least 1.")
