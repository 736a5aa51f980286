"""Stochastic trace of a symmetric operator known by its products: Hutchinson, and Hutch++ on a Krylov space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.estimate import Array
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.inference.sequential import Box
from modelprops.properties.lanczos import Krylov
from modelprops.seeds import derive

ESTIMATORS = ("hutch++", "hutchinson")
DEFLATION = 8
"""Products spent on the subspace whose share of the trace is computed and not estimated."""

_FIRST_LOOK = 4


@dataclass(frozen=True)
class Trace:
    """A trace with its interval, the standard error, the deflated share and the number of random probes."""

    box: Box
    standard_error: float
    deflated: float
    probes: int


def estimate_trace(
    krylov: Krylov, deflate: int, most: int, level: float, seed: int, enough: Callable[[Box], bool]
) -> Trace:
    """Estimate tr H from at most `most` products, until `enough(interval)`.

    tr H = tr Q'HQ + tr (I - QQ')H(I - QQ') for any orthonormal Q. The first term is the sum of the Lanczos diagonal
    after `deflate` steps (0: Hutchinson), the second the mean of z'(I - QQ')H(I - QQ')z over random signs z, unbiased
    since the signs are independent of Q. Plain estimate with standard error; the interval is asymptotic.

    Source: Meyer, Musco, Musco and Woodruff 2021 (Hutch++), with the Krylov space of Chen and Hallman 2023 as Q, which
    needs one product a vector where a sketch needs two; Hutchinson 1990.
    """
    while krylov.steps < min(deflate, most - 2) and not krylov.full:
        krylov.step()
    deflated = float(np.sum(krylov.diagonal))
    basis = krylov.basis
    samples: list[float] = []
    box = Box(deflated, -np.inf, np.inf)
    while krylov.steps + len(samples) < most:
        generator = generator_of(derive(seed, "probe", len(samples)))
        signs = torch.randint(0, 2, (len(krylov.start),), generator=generator).to(krylov.start) * 2 - 1
        signs = signs - basis.T @ (basis @ signs)
        samples.append(float(signs.double() @ krylov.product(signs).double()))
        if krylov.steps == len(krylov.start):
            samples[-1] = 0.0  # the space is everything: what is left is rounding
        if len(samples) >= _FIRST_LOOK or krylov.steps + len(samples) == most:
            box = _interval(deflated, np.array(samples), level)
            if enough(box):
                break
    error = float(np.std(samples, ddof=1) / np.sqrt(len(samples))) if len(samples) > 1 else float("inf")
    return Trace(box, error, deflated, len(samples))


def _interval(deflated: float, samples: Array, level: float) -> Box:
    value = deflated + float(samples.mean())
    variance = float(samples.var(ddof=1)) if len(samples) > 1 else float("inf")
    half = asymptotic_half_width(variance, len(samples), level) if variance else 0.0
    return Box(value, value - half, value + half)
