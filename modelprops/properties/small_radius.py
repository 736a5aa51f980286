"""The limit of sharpness at small radius: what L_rho tends to, in closed form, as the perturbation shrinks."""

from __future__ import annotations

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Array, Witness
from modelprops.inference.sequential import Chunk, Design
from modelprops.properties.claim import require_at_least_zero
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.perturbation import POSITIONAL, perturbed_parameters
from modelprops.properties.tables import is_enumerable
from modelprops.subject import Subject


@measure(version=1)
def small_radius_sharpness(subject: Subject, *, radius: float, exclude: str | None = POSITIONAL) -> Plan:
    """(rho^2 / p) E_x |grad_theta T_theta(x)|^2, summed over outputs: the leading term of sharpness L_rho as rho -> 0.

    p is the number of perturbed entries: a uniform direction D of norm rho has E (g'D)^2 = rho^2 |g|^2 / p. It checks
    `sharpness(radius=1e-3)` by another route, exact in the directions: one backward pass an input and output.

    The unit is one input. Guarantee: exact by enumeration; asymptotic otherwise. Raises `ArgumentError` for a readout
    without a gradient (`"sign"`, `"label"`). Source: Taylor expansion of Hahn and Rofin 2024, spec A.10.
    """
    radius = require_at_least_zero("radius", radius)
    parameters = perturbed_parameters(subject, exclude)
    scale = radius**2 / sum(weight.numel() for weight in parameters.values())

    def norms(points: torch.Tensor) -> Array:
        return scale * squared_gradients(subject, points, parameters)

    def draw(seed: int, size: int) -> Chunk:
        points = subject.domain.sample(size, generator_of(seed))
        values = norms(points)
        return Chunk(values[:, None], size * subject.outputs, *_extremes(points, values))

    def exact() -> Exact:
        points = subject.domain.exhaustive()  # type: ignore[attr-defined]  # enumerable implies it
        values = norms(points)
        return Exact(float(values.mean()), len(points) * subject.outputs, *_extremes(points, values))

    count = is_enumerable(subject.domain)
    design = Design(draw, ((0.0, np.inf),), subject.outputs)
    return Plan(design=design, exact=exact if count else None, exact_evaluations=count * subject.outputs)


def squared_gradients(subject: Subject, points: torch.Tensor, parameters: dict[str, torch.nn.Parameter]) -> Array:
    """Return sum over outputs of |grad_theta T(x)|^2 for every point, float64 (points,)."""
    found = np.zeros(len(points))
    for row, point in enumerate(points):
        leaves = {name: weight.detach() for name, weight in subject.module.named_parameters()}
        chosen = [leaves[name].requires_grad_() for name in parameters]
        values = subject.differentiable(point[None], leaves).flatten()
        if not values.requires_grad:
            raise ArgumentError(
                f"the readout {subject.readout.name!r} of {subject.name} has no gradient; use a differentiable one "
                'such as None or "probability"'
            )
        for value in values:
            gradients = torch.autograd.grad(value, chosen, retain_graph=True, allow_unused=True)
            found[row] += sum(float(part.double().square().sum()) for part in gradients if part is not None)
    return found


def _extremes(points: torch.Tensor, values: Array) -> tuple[Witness, Witness]:
    high, low = int(values.argmax()), int(values.argmin())
    return Witness(point=points[high], score=float(values[high])), Witness(point=points[low], score=float(values[low]))
