"""Parameter norm: the Euclidean length of the weights, together and by group."""

from __future__ import annotations

import torch

from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.perturbation import l2_norm, perturbed_parameters
from modelprops.subject import Subject


@measure(version=1)
def parameter_norm(subject: Subject, *, exclude: str | None = None) -> Plan:
    """L2 norm |theta|_2 = (sum of the squares of all parameter entries)^(1/2), each distinct tensor once.

    `details["groups"]` has the norm of each group, whose squares add up to the square of the whole: a numbered block
    (`encoder.layers.0`), otherwise the submodule that owns the parameter, otherwise the parameter. `exclude`: a regular
    expression of parameter names left out. Frozen parameters count, buffers do not. Accumulated in float64.

    Guarantee: exact, without any model evaluation. Raises `NoParametersError` for a callable, `ArgumentError` for
    quantised weights. Source: Hahn and Rofin 2024 (spec C.2: weight norm against blowup).
    """
    parameters = perturbed_parameters(subject, exclude)

    def exact() -> Exact:
        groups: dict[str, dict[str, torch.nn.Parameter]] = {}
        for name, weight in parameters.items():
            groups.setdefault(group_of(name), {})[name] = weight
        norms = {group: l2_norm(members) for group, members in groups.items()}
        count = sum(weight.numel() for weight in parameters.values())
        return Exact(l2_norm(parameters), 0, details={"groups": norms, "parameters": count})

    return Plan(exact=exact)


def group_of(name: str) -> str:
    """Return the group of a parameter's name: up to its first number, else its owner, else itself."""
    parts = name.split(".")
    for index, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return ".".join(parts[:-1]) or name
