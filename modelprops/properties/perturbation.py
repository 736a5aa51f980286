"""Directions in parameter space: which tensors are perturbed, and how a direction is drawn and scaled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, NoParametersError
from modelprops.subject import Subject

POSITIONAL = r"(?i)(^|[._])(wpe|pos|position|positions|positional)([._]|$)|pos(ition(al)?)?s?_?(enc|emb)"
"""Names of positional encodings, left out by default: their number grows with the length of the input."""

NORMALISATIONS = ("none", "filter", "relative")

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(outputs, points) -> one value an input, or their mean."""


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
    noise = _noise(parameters, seed)
    if normalisation == "filter":
        steps = shaped(noise, parameters)
        return {name: _filterwise(steps[name], weight.detach(), radius) for name, weight in parameters.items()}
    length = l2_norm({"all": noise})
    return shaped(noise * (_scaled(radius, parameters, normalisation) / length), parameters)


def displaced(
    parameters: dict[str, torch.nn.Parameter], radius: float, normalisation: str = "none"
) -> Callable[[int], dict[str, torch.Tensor]]:
    """Return a function from a direction's seed to the parameters moved by `direction`, in the parameters' dtypes.

    The parameters themselves are never written to, so they cannot drift.
    """
    own = {name: weight.detach() for name, weight in parameters.items()}
    if normalisation == "filter":
        return lambda seed: {
            name: (own[name] + step).to(own[name].dtype)
            for name, step in direction(parameters, radius, seed, normalisation).items()
        }
    origin = torch.cat([weight.flatten().to("cpu", _wide(parameters)) for weight in own.values()])
    length = _scaled(radius, parameters, normalisation)

    def move(seed: int) -> dict[str, torch.Tensor]:
        noise = _noise(parameters, seed)
        moved = torch.add(origin, noise, alpha=length / l2_norm({"all": noise}))
        return {name: tensor.to(own[name].dtype) for name, tensor in shaped(moved, parameters).items()}

    return move


def _scaled(radius: float, parameters: dict[str, torch.nn.Parameter], normalisation: str) -> float:
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} is unknown; use one of {', '.join(NORMALISATIONS)}")
    return radius * l2_norm(parameters) if normalisation == "relative" else radius


def _noise(parameters: dict[str, torch.nn.Parameter], seed: int) -> torch.Tensor:
    count = sum(weight.numel() for weight in parameters.values())
    return torch.randn(count, generator=generator_of(seed), dtype=_wide(parameters))


def _wide(parameters: dict[str, torch.nn.Parameter]) -> torch.dtype:
    return torch.float64 if any(weight.dtype == torch.float64 for weight in parameters.values()) else torch.float32


def shaped(flat: torch.Tensor, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Return the tensors that a flat vector stands for, by parameter name, on the parameters' devices."""
    pieces = torch.split(flat, [weight.numel() for weight in parameters.values()])
    return {
        name: piece.view(weight.shape).to(weight.device)
        for piece, (name, weight) in zip(pieces, parameters.items(), strict=True)
    }


def l2_norm(tensors: dict[str, torch.Tensor] | dict[str, torch.nn.Parameter]) -> float:
    """Euclidean norm of all entries together, accumulated in float64."""
    norms = [torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64) for tensor in tensors.values()]
    return math.sqrt(sum(float(norm) ** 2 for norm in norms))


def _filterwise(noise: torch.Tensor, weight: torch.Tensor, radius: float) -> torch.Tensor:
    rows = (noise.shape[0], -1) if noise.ndim > 1 else (1, -1)
    flat, own = noise.reshape(rows), weight.to(noise.dtype).reshape(rows)
    scale = own.norm(dim=1, keepdim=True) / flat.norm(dim=1, keepdim=True).clamp_min(torch.finfo(noise.dtype).tiny)
    scaled: torch.Tensor = flat * scale * radius
    return scaled.view_as(noise)
