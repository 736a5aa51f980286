"""Directions in parameter space: which tensors are perturbed, and how a direction is drawn and scaled."""

from __future__ import annotations

import math
import re

import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, NoParametersError
from modelprops.subject import Subject

POSITIONAL = r"(?i)(^|[._])(wpe|pos|position|positions|positional)([._]|$)|pos(ition(al)?)?s?_?(enc|emb)"
"""Names of positional encodings, left out by default: their number grows with the length of the input."""

NORMALISATIONS = ("none", "filter", "relative")


def perturbed_parameters(subject: Subject, exclude: str | None = POSITIONAL) -> dict[str, torch.nn.Parameter]:
    """Return each distinct parameter once (tied weights have one name) that `exclude` does not match.

    Raises `NoParametersError` for a callable or when nothing is left, `ArgumentError` for quantised (integer) weights.
    """
    module = subject.module
    try:
        pattern = re.compile(exclude) if exclude else None
    except re.error as error:
        raise ArgumentError(f"exclude={exclude!r} is not a regular expression: {error}") from None
    chosen = {name: weight for name, weight in module.named_parameters() if not (pattern and pattern.search(name))}
    quantised = [name for name, weight in chosen.items() if not weight.is_floating_point()]
    if quantised:
        raise ArgumentError(
            f"{subject.name} has quantised weights ({', '.join(quantised[:3])}), which cannot be moved a little; "
            "properties of the input work, or exclude= them"
        )
    if not chosen:
        raise NoParametersError(f"{subject.name} has no parameters left to perturb (exclude={exclude!r})")
    return chosen


def direction(
    parameters: dict[str, torch.nn.Parameter], radius: float, seed: int, normalisation: str = "none"
) -> dict[str, torch.Tensor]:
    """Draw a perturbation of the parameters, float32 or wider.

    `"none"`: uniform on the sphere of L2 norm `radius`. `"relative"`: of norm `radius` times that of the parameters.
    `"filter"` (Li et al. 2018): each filter (first index of a matrix or kernel) has norm `radius` times that of its
    weights; a bias or gain counts as one filter.
    """
    generator = generator_of(seed)
    noise = {
        name: torch.randn(weight.shape, generator=generator, dtype=_wide(weight.dtype)).to(weight.device)
        for name, weight in parameters.items()
    }
    if normalisation == "filter":
        return {name: _filterwise(noise[name], weight.detach(), radius) for name, weight in parameters.items()}
    if normalisation == "relative":
        radius = radius * l2_norm(parameters)
    length = l2_norm(noise)
    return {name: part * (radius / length) for name, part in noise.items()}


def moved(parameters: dict[str, torch.nn.Parameter], step: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the parameters plus a step, in the parameters' own dtype; the parameters themselves are not written to."""
    return {
        name: (weight.detach().to(step[name].dtype) + step[name]).to(weight.dtype)
        for name, weight in parameters.items()
    }


def l2_norm(tensors: dict[str, torch.Tensor] | dict[str, torch.nn.Parameter]) -> float:
    """Euclidean norm of all entries together, accumulated in float64."""
    return math.sqrt(sum(float((tensor.detach().double() ** 2).sum()) for tensor in tensors.values()))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _filterwise(noise: torch.Tensor, weight: torch.Tensor, radius: float) -> torch.Tensor:
    rows = (noise.shape[0], -1) if noise.ndim > 1 else (1, -1)
    flat, own = noise.reshape(rows), weight.to(noise.dtype).reshape(rows)
    scale = own.norm(dim=1, keepdim=True) / flat.norm(dim=1, keepdim=True).clamp_min(torch.finfo(noise.dtype).tiny)
    scaled: torch.Tensor = flat * scale * radius
    return scaled.view_as(noise)
