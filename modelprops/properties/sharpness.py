"""Sharpness: how much the function changes when its parameters move a little in a random direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, OutputError
from modelprops.estimate import Array, Verdict, Witness
from modelprops.inference.intervals import median_of_means
from modelprops.inference.sequential import Chunk, Design
from modelprops.properties.claim import claim, require_at_least_zero
from modelprops.properties.measure import Plan, measure
from modelprops.properties.perturbation import (
    NORMALISATIONS,
    POSITIONAL,
    Loss,
    displaced,
    perturbed_parameters,
)
from modelprops.properties.sensitivity import squared_change
from modelprops.properties.tables import is_enumerable
from modelprops.seeds import derive
from modelprops.subject import Subject

DIRECTIONS_AT_ONCE = 64


@measure(version=1)
def sharpness(
    subject: Subject,
    *,
    radius: float,
    loss: Loss | None = None,
    normalisation: str = "none",
    exclude: str | None = POSITIONAL,
    inputs: int = 256,
) -> Plan:
    """Sharpness L_rho = E_x E_{|D| = rho} |T_{theta+D}(x) - T_theta(x)|^2, D uniform on the sphere of radius rho.

    With `loss=` (a function of (output, points), one value an input or their mean) it is E loss(theta + D) -
    loss(theta) instead. `exclude`: a regular expression of parameter names that stay put; by default positional
    encodings.
    `normalisation`: `"relative"` and `"filter"` scale the direction to the weights (see `perturbation.direction`).

    Each distinct parameter moves once (tied weights); the module's own weights are never written to. The unit is one
    direction with `inputs` inputs: all of the domain where it is that small. Guarantee: a confidence bound for a
    bounded readout (each direction then has inputs of its own, unless they are all of the domain); asymptotic
    otherwise, with the variance over directions and over the inputs that 64 directions share. `details` holds the
    standard error and, over directions, a median-of-means interval.

    Source: Hahn and Rofin 2024 (spec A.10; order of limits: at fixed length it vanishes with the radius).
    """
    radius = require_at_least_zero("radius", radius)
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} is unknown; use one of {', '.join(NORMALISATIONS)}")
    if not isinstance(inputs, int) or inputs < 1:
        raise ArgumentError(f"inputs={inputs!r} is not a positive number of inputs")
    parameters = perturbed_parameters(subject, exclude)
    whole = 0 < is_enumerable(subject.domain) <= inputs
    count = is_enumerable(subject.domain) if whole else inputs
    limits = (0.0, subject.diameter) if loss is None else (-math.inf, math.inf)
    shared = whole or (not math.isfinite(limits[1]) and _is_per_input(subject, loss))

    step = displaced(parameters, radius, normalisation)

    def draw(seed: int, size: int) -> Chunk:
        points = subject.domain.exhaustive() if whole else subject.domain.sample(count, generator_of(seed))  # type: ignore[attr-defined]  # `whole` implies `exhaustive`
        if shared:
            return _shared(subject, points, step, loss, seed, size, whole)
        return _fresh(subject, count, step, loss, seed, size)

    design = Design(
        draw,
        (limits,),
        count + math.ceil(count / DIRECTIONS_AT_ONCE) if shared else 2 * count,
        first=DIRECTIONS_AT_ONCE if shared else None,
        largest=DIRECTIONS_AT_ONCE if shared else 4096,
    )
    return Plan(
        design=design, details=_spread, hint="the direction above moves the function most; see perturbation.direction"
    )


def assert_flat_minimum(
    subject: Any,
    at_most: float,
    *,
    radius: float,
    loss: Loss | None = None,
    tolerance: float | None = None,
    normalisation: str = "none",
    exclude: str | None = POSITIONAL,
    inputs: int = 256,
    **options: Any,
) -> Verdict:
    """Require sharpness <= `at_most` at a perturbation of norm `radius`.

    Returns the `Verdict`; raises `PropertyViolation` with the worst direction, `Inconclusive` when the budget is spent.
    `options`: domain, confidence, budget, seed. See `sharpness` for the quantity.
    """
    __tracebackhide__ = True
    changed = {
        "loss": (loss, None),
        "normalisation": (normalisation, "none"),
        "exclude": (exclude, POSITIONAL),
        "inputs": (inputs, 256),
    }
    parameters = {name: value for name, (value, default) in changed.items() if value != default}
    at_most = require_at_least_zero("at_most", at_most) if loss is None else at_most
    return claim(sharpness, "<=", at_most, tolerance=tolerance, radius=radius, **parameters).require(subject, **options)


def _shared(
    subject: Subject,
    points: torch.Tensor,
    step: Callable[[int], dict[str, torch.Tensor]],
    loss: Loss | None,
    seed: int,
    size: int,
    whole: bool,
) -> Chunk:
    """Directions crossed with one set of inputs: size + 1 passes over them."""
    base = subject.read(points)
    before = None if loss is None else _per_input(loss(base.values, points), len(points))
    rows, columns, ties = [], torch.zeros(len(points), dtype=torch.float64), 0
    seeds = [derive(seed, "direction", k) for k in range(size)]
    for direction_seed in seeds:
        after = subject.read(points, step(direction_seed))
        if loss is None or before is None:
            change, tied = squared_change(base, after, subject.noise)
            ties += int(tied.sum())
        else:
            change = _per_input(loss(after.values, points), len(points)) - before
        rows.append(float(change.mean()))
        columns += change
    # Inputs common to all directions: their share of the variance does not fall with more directions.
    over_inputs = 0.0 if whole or len(points) < 2 else float((columns / size).var()) / len(points)
    return _chunk(rows, seeds, (size + 1) * len(points), ties, size * len(points), over_inputs)


def _fresh(
    subject: Subject,
    count: int,
    step: Callable[[int], dict[str, torch.Tensor]],
    loss: Loss | None,
    seed: int,
    size: int,
) -> Chunk:
    """Each direction with inputs of its own, so that units are independent: 2 passes a direction."""
    rows, ties = [], 0
    seeds = [derive(seed, "direction", k) for k in range(size)]
    for direction_seed in seeds:
        points = subject.domain.sample(count, generator_of(derive(direction_seed, "inputs")))
        base, after = subject.read(points), subject.read(points, step(direction_seed))
        if loss is None:
            change, tied = squared_change(base, after, subject.noise)
            ties += int(tied.sum())
            rows.append(float(change.mean()))
        else:
            rows.append(float(loss(after.values, points).mean() - loss(base.values, points).mean()))
    return _chunk(rows, seeds, 2 * size * count, ties, size * count, 0.0)


def _chunk(rows: list[float], seeds: list[int], spent: int, ties: int, compared: int, shared: float) -> Chunk:
    values = np.array(rows, dtype=np.float64)
    high, low = int(values.argmax()), int(values.argmin())
    return Chunk(
        values[:, None],
        spent,
        Witness(direction_seed=seeds[high], score=rows[high]),
        Witness(direction_seed=seeds[low], score=rows[low]),
        ties,
        compared,
        shared,
    )


def _is_per_input(subject: Subject, loss: Loss | None) -> bool:
    if loss is None:
        return True
    points = subject.domain.sample(2, generator_of(0))
    return loss(subject(points), points).ndim > 0


def _per_input(values: torch.Tensor, count: int) -> torch.Tensor:
    if values.ndim == 0:
        return values.double().expand(count)
    if values.shape != (count,):
        raise OutputError(
            f"loss returned shape {tuple(values.shape)}; return one value an input ({count},) or their mean"
        )
    return values.double()


def _spread(values: Array, level: float) -> Mapping[str, Any]:
    column = values[:, 0]
    error = float(column.std(ddof=1) / math.sqrt(len(column))) if len(column) > 1 else math.inf
    middle, low, high = median_of_means(column, level)
    return {
        "standard_error_over_directions": error,
        "median_of_means": {"value": middle, "low": low, "high": high},
    }
