"""Test and interval for the mean of bounded draws by betting (Waudby-Smith and Ramdas, JRSS-B 2024, section 4).

For X_1, X_2, ... in [0, 1] with conditional mean m, and a fixed bet u in [0, 1/m], the wealth prod(1 + u (X_t - m))
is a nonnegative martingale that starts at 1, and so is any average over bets. By Ville's inequality it ever reaches
1/a with probability at most a. The wealth here is the average over a fixed grid of bets, each a fraction of the
largest admissible one: no tuning, no dependence on the order of the draws within a chunk.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from modelprops.estimate import Array

FRACTIONS: Array = np.concatenate([np.geomspace(0.002, 0.8, 13), [0.9, 0.97, 0.995]])
"""The bets, as fractions of the largest admissible bet."""

_LOG_GRID = math.log(len(FRACTIONS))


class Wealth:
    """The wealth of a bettor who bets that the mean exceeds `mean` (and is never wrong often: Ville).

    `update` takes draws in [0, 1]; `log` is the logarithm of the mixture wealth. For the opposite side, bet on 1 - X
    against 1 - mean.
    """

    def __init__(self, mean: float) -> None:
        self.mean = mean
        self._logs = np.zeros(len(FRACTIONS))
        self._ruled_out = mean < 0

    def update(self, values: Array) -> None:
        """Add a chunk of draws in [0, 1]."""
        if self.mean <= 0:
            self._ruled_out = self._ruled_out or bool((values > self.mean).any())
        else:
            unique, counts = np.unique(values, return_counts=True)
            self._logs += _log_factors(unique, self.mean) @ counts

    @property
    def log(self) -> float:
        """Logarithm of the wealth; infinite when the data cannot have this mean."""
        if self._ruled_out:
            return math.inf
        if self.mean <= 0:
            return 0.0
        return _log_mean(self._logs)


def _log_factors(values: Array, mean: float) -> Array:
    """(bets, values): log(1 + fraction/mean * (value - mean))."""
    return np.log1p(FRACTIONS[:, None] * (values / mean - 1.0)[None, :])


def _log_mean(logs: Array) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum())) - _LOG_GRID


def lower_bound(values: Array, level: float) -> float:
    """Return the least mean in [0, 1] that draws in [0, 1] do not reject at `level`.

    Confidence bound: P(mean < lower bound at any time) <= `level`. The wealth falls as the mean rises, so that the
    rejected means form an interval [0, bound).
    """
    if not len(values):
        return 0.0
    unique, counts = np.unique(values, return_counts=True)
    average = float(unique @ counts) / len(values)
    needed = math.log(1.0 / level)
    weights = counts.astype(np.float64)

    def surplus(mean: float) -> float:
        return _log_mean(_log_factors(unique, mean) @ weights) - needed

    tiny = 1e-12
    if average <= tiny or surplus(tiny) < 0:
        return 0.0
    # At the average itself no bet has grown, so the root lies between.
    if surplus(min(average, 1.0)) >= 0:
        return min(average, 1.0)
    return float(brentq(surplus, tiny, min(average, 1.0), xtol=1e-9, rtol=1e-7))


def interval(values: Array, level: float) -> tuple[float, float]:
    """Return the means in [0, 1] that draws in [0, 1] do not reject: coverage >= 1 - `level` at every time at once."""
    return lower_bound(values, level / 2), 1.0 - lower_bound(1.0 - values, level / 2)
