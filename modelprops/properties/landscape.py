"""Slices of the loss or function landscape along random directions: data for a report, no verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from modelprops.domains import Domain, generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.properties.perturbation import NORMALISATIONS, POSITIONAL, Loss, direction, perturbed_parameters
from modelprops.properties.sensitivity import squared_change
from modelprops.properties.tables import is_enumerable
from modelprops.seeds import derive
from modelprops.settings import seed_of
from modelprops.subject import as_subject


@dataclass(frozen=True)
class Landscape:
    """A slice through parameter space around the trained weights, which sit in the middle.

    `offsets` (points,): multiples of the directions, from -1 to 1. `values`, (points,) or (points, points) with the
    first direction along the rows: mean loss, or mean squared change of the output. `standard_errors`, of the same
    shape: over the inputs, zero where they are the whole domain. `direction_seeds` reproduce the directions by
    `perturbation.direction(parameters, radius, seed, normalisation)`.
    """

    quantity: str
    offsets: Array
    values: Array
    standard_errors: Array
    radius: float
    normalisation: str
    direction_seeds: tuple[int, ...]
    inputs: int
    evaluations: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in plain.items()}


def landscape(
    subject: Any,
    *,
    radius: float,
    dimensions: int = 1,
    points: int = 21,
    loss: Loss | None = None,
    normalisation: str = "filter",
    exclude: str | None = POSITIONAL,
    inputs: int = 256,
    seed: int | None = None,
    domain: Domain | None = None,
) -> Landscape:
    """Return E_x loss(T_{theta + a D1 + b D2}(x), x), a and b from -1 to 1, on one sample of inputs.

    Without `loss`, E_x |T_{theta + a D1 + b D2}(x) - T_theta(x)|^2. D1 and D2 are random directions of size `radius`,
    by default filter-normalised: each filter moves by `radius` times its own norm, so that slices of differently
    scaled networks compare. `points` is odd, so that the middle is the trained network itself. Costs
    points^dimensions passes over the inputs. Guarantee: plain estimate with standard error.

    Raises `ArgumentError` for another number of dimensions, an even number of points or an unknown normalisation.
    Source: Li, Xu, Taylor, Studer and Goldstein 2018.
    """
    if dimensions not in (1, 2):
        raise ArgumentError(f"dimensions={dimensions!r}: a slice has 1 or 2")
    if not isinstance(points, int) or points < 3 or points % 2 == 0:
        raise ArgumentError(f"points={points!r} is not an odd number of at least 3; the middle is the trained network")
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} is unknown; use one of {', '.join(NORMALISATIONS)}")
    if not isinstance(radius, (int, float)) or not 0 < radius < math.inf:
        raise ArgumentError(f"radius={radius!r} is not a positive number")
    target = as_subject(subject, domain)
    root = seed_of("landscape") if seed is None else int(seed)
    parameters = perturbed_parameters(target, exclude)
    seeds = tuple(derive(root, "direction", k) for k in range(dimensions))
    directions = [direction(parameters, radius, each, normalisation) for each in seeds]
    whole = 0 < is_enumerable(target.domain) <= inputs
    sample = (
        target.domain.exhaustive()  # type: ignore[attr-defined]  # enumerable implies it
        if whole
        else target.domain.sample(inputs, generator_of(derive(root, "inputs")))
    )
    offsets = np.linspace(-1.0, 1.0, points)
    values, errors = np.zeros((points,) * dimensions), np.zeros((points,) * dimensions)
    with target.steady():
        base = target.read(sample)
        for index in np.ndindex(values.shape):
            moved = _moved(parameters, directions, [float(offsets[k]) for k in index])
            reading = target.read(sample, moved)
            rows = squared_change(base, reading, 0.0)[0] if loss is None else loss(reading.values, sample).double()
            values[index] = float(rows.mean())
            errors[index] = 0.0 if whole else _standard_error(rows)
    return Landscape(
        "squared change" if loss is None else "loss",
        offsets,
        values,
        errors,
        float(radius),
        normalisation,
        seeds,
        len(sample),
        (values.size + 1) * len(sample),
        root,
    )


def _moved(
    parameters: dict[str, torch.nn.Parameter], directions: list[dict[str, torch.Tensor]], offsets: list[float]
) -> dict[str, torch.Tensor]:
    moved = {}
    for name, weight in parameters.items():
        place = weight.detach().to(directions[0][name].dtype)
        for step, offset in zip(directions, offsets, strict=True):
            place = place + offset * step[name]
        moved[name] = place.to(weight.dtype)
    return moved


def _standard_error(rows: torch.Tensor) -> float:
    return float(rows.std() / math.sqrt(len(rows))) if rows.ndim and len(rows) > 1 else math.nan
