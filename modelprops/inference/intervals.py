"""Intervals for draws without a known range, for quantiles and for counts."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from modelprops.estimate import Array


def asymptotic_half_width(variance: float, count: float, level: float, *, tuned_to: float = 256.0) -> float:
    """Return the half-width of an asymptotic confidence sequence for a mean at time `count`.

    sqrt(2 (t r^2 + 1) / (t^2 r^2) * log(sqrt(t r^2 + 1) / level)) * sd, the two-sided Gaussian-mixture boundary of
    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (Annals of Statistics 2024, theorem 2.2). Asymptotic: it covers at
    all times at once as the start of the peeking grows. r^2 makes it narrowest near t = `tuned_to`.
    """
    if count < 2:
        return math.inf
    spread = (-2 * math.log(level) + math.log(-2 * math.log(level) + 1)) / tuned_to
    scaled = count * spread + 1
    boundary = math.sqrt(2 * scaled / (count**2 * spread) * math.log(math.sqrt(scaled) / level))
    # Student's quantile over the normal one: with few draws the estimated variance is itself uncertain.
    small_sample = float(stats.t.isf(level / 2, count - 1) / stats.norm.isf(level / 2))
    return math.sqrt(variance) * boundary * small_sample


def median_of_means(values: Array, level: float) -> tuple[float, float, float]:
    """Return (median of block means, low, high) for draws with finite variance only.

    The interval is the order-statistic interval of the block means' median at `level`, robust to heavy tails.
    Plain estimate: its centre is the median of the block means, which tends to the mean as blocks grow.
    """
    blocks = max(1, min(len(values), math.ceil(8 * math.log(2 / level))))
    means = np.sort([block.mean() for block in np.array_split(values, blocks)])
    low, high = order_statistic_ranks(blocks, 0.5, level)
    return (
        float(np.median(means)),
        float(means[low]) if low >= 0 else -math.inf,
        float(means[high]) if high < blocks else math.inf,
    )


def order_statistic_ranks(count: int, quantile: float, level: float) -> tuple[int, int]:
    """Return ranks (from 0; -1 and `count` mean unbounded) whose order statistics enclose a quantile.

    Exact confidence bound for independent draws: the number below the quantile is Binomial(count, quantile).
    """
    low = int(stats.binom.ppf(level / 2, count, quantile)) - 1
    high = int(stats.binom.isf(level / 2, count, quantile))
    return max(low, -1), min(high, count)


def clopper_pearson(successes: int, count: int, level: float) -> tuple[float, float]:
    """Return the exact interval for a probability: confidence bound for a fixed number of independent draws."""
    low = 0.0 if successes == 0 else float(stats.beta.ppf(level / 2, successes, count - successes + 1))
    high = 1.0 if successes == count else float(stats.beta.isf(level / 2, successes + 1, count - successes))
    return low, high


def hoeffding_samples(gap: float, level: float) -> int:
    """Return the fixed number of draws in [0, 1] that Hoeffding's inequality needs to tell a gap, one side."""
    return math.ceil(math.log(1 / level) / (2 * gap**2))
