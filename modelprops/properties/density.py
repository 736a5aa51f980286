"""Spectral density of a symmetric operator known by its products: stochastic Lanczos quadrature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelprops.estimate import Array
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.inference.sequential import Box
from modelprops.properties.lanczos import Ritz

GRID = 101
BROADENING = 0.02
"""Standard deviation of the Gaussian each eigenvalue is widened to, as a share of the spectrum's spread."""


@dataclass(frozen=True)
class Density:
    """The density at `grid`, with pointwise intervals, and the broadening's standard deviation."""

    box: Box
    grid: Array
    broadening: float


def estimate_density(probes: list[Ritz], level: float) -> Density:
    """Average sum_j w_j N(t; theta_j, sigma^2) over probes, w_j the squared first entry of Ritz vector j.

    It estimates the density of the p eigenvalues, each widened by sigma and weighted 1/p: the integral is 1. Intervals
    are pointwise, asymptotic in the number of probes. Source: Ubaru, Chen and Saad 2017; Ghorbani et al. 2019.
    """
    low = min(float(ritz.values[0]) for ritz in probes)
    high = max(float(ritz.values[-1]) for ritz in probes)
    spread = high - low or max(1.0, abs(high))
    sigma = BROADENING * spread
    grid = np.linspace(low - 3 * sigma, high + 3 * sigma, GRID)
    rows = np.stack([_smoothed(ritz, grid, sigma) for ritz in probes])
    mean = rows.mean(0)
    half = np.full(GRID, np.inf)
    if len(probes) > 1:
        half = np.array([asymptotic_half_width(float(column.var(ddof=1)), len(rows), level) for column in rows.T])
    return Density(Box(mean, np.maximum(mean - half, 0.0), mean + half), grid, sigma)


def _smoothed(ritz: Ritz, grid: Array, sigma: float) -> Array:
    weights = ritz.vectors[0] ** 2
    kernel = np.exp(-0.5 * ((grid[:, None] - ritz.values[None]) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    smoothed: Array = kernel @ weights
    return smoothed
