"""Intervals over runs and draws, all at 95%: descriptive, for the report; no verdict of the tool rests on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from modelprops.estimate import Array

CONFIDENCE = 0.95
RESAMPLES = 1000


def mean_interval(values: Sequence[float] | Array) -> dict[str, Any]:
    """Mean with Student's t interval; asymptotic in the count of values. One value has no interval (None)."""
    sample = np.asarray(values, dtype=np.float64)
    middle, count = float(sample.mean()) if len(sample) else float("nan"), len(sample)
    if count < 2:
        return {"value": middle, "low": None, "high": None, "count": count}
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * sample.std(ddof=1) / np.sqrt(count))
    return {"value": middle, "low": middle - half, "high": middle + half, "count": count}


def rank_correlation(first: Sequence[float] | Array, second: Sequence[float] | Array) -> dict[str, Any]:
    """Spearman's correlation with a percentile bootstrap interval over pairs; needs at least 4 pairs."""
    return _correlation(stats.spearmanr, first, second)


def correlation(first: Sequence[float] | Array, second: Sequence[float] | Array) -> dict[str, Any]:
    """Pearson's correlation with a percentile bootstrap interval over pairs; needs at least 4 pairs."""
    return _correlation(stats.pearsonr, first, second)


def slope(x: Sequence[float] | Array, y: Sequence[float] | Array) -> dict[str, Any]:
    """Least-squares slope of y on x with its interval and two-sided p-value (normal residuals of equal variance)."""
    if len(set(x)) < 2 or len(x) < 3:
        return {"value": None, "low": None, "high": None, "p_value": None, "count": len(x)}
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 2) * fit.stderr)
    value = float(fit.slope)
    return {"value": value, "low": value - half, "high": value + half, "p_value": float(fit.pvalue), "count": len(x)}


def shown(interval: Mapping[str, Any]) -> str:
    """`value [low, high]`, or the value alone."""
    if interval["value"] is None or not np.isfinite(interval["value"]):
        return "-"
    if interval["low"] is None:
        return f"{interval['value']:.3g} (one value)"
    return f"{interval['value']:.3g} [{interval['low']:.3g}, {interval['high']:.3g}]"


def _correlation(statistic: Any, first: Sequence[float] | Array, second: Sequence[float] | Array) -> dict[str, Any]:
    count = len(first)
    if count < 4 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return {"value": None, "low": None, "high": None, "count": count}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resamples that are constant have no correlation; they are left out below
        resampled = stats.bootstrap(
            (np.asarray(first), np.asarray(second)),
            lambda a, b: statistic(a, b).statistic,
            paired=True,
            vectorized=False,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(0),
        ).bootstrap_distribution
    low, high = np.nanquantile(resampled, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return {"value": float(statistic(first, second).statistic), "low": float(low), "high": float(high), "count": count}


def resampled_interval(statistic: Callable[..., float], *samples: Sequence[float] | Array) -> dict[str, Any]:
    """A statistic of independent samples with a percentile bootstrap interval; rough where a sample is small.

    None for the ends where a sample has only one value.
    """
    values = [np.asarray(sample, dtype=np.float64) for sample in samples]
    found = {"value": float(statistic(*values)), "low": None, "high": None, "count": sum(map(len, values))}
    if min(map(len, values)) > 1:
        generator = np.random.default_rng(0)
        draws = [statistic(*(generator.choice(value, len(value)) for value in values)) for _ in range(RESAMPLES)]
        low, high = np.quantile(draws, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
        found |= {"low": float(low), "high": float(high)}
    return found
