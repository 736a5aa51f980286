"""Worst-case and limiting sharpness, and landscape slices, against quadratics with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.properties.perturbation import direction, perturbed_parameters
from modelprops.properties.worst_sharpness import ascend, unit


def linear(n: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(n, 1, bias=False).double()


def scaled(weights: tuple[float, ...]) -> torch.nn.Module:
    """T(x) = sum_i w_i s_i x_i, so that E (T' - T)^2 = sum_i s_i^2 D_i^2 on the cube."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(len(weights)).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.w * torch.tensor(weights)).sum(-1)

    return Scaled()


def test_worst_direction_of_a_quadratic_is_the_top_eigenvector() -> None:
    module, domain = scaled((1.0, 3.0, 2.0)), mp.BooleanCube(3)
    found = mp.worst_sharpness(module, domain=domain, radius=0.1, seed=0)
    assert found.value == pytest.approx(9 * 0.01, rel=1e-3)
    assert found.low == found.value
    assert found.high == math.inf
    assert (found.method, found.guarantee) == ("search", "one-sided bound")
    offset = mp.worst_direction(mp.Subject(module, domain), radius=0.1, seed=0)["w"]
    assert offset.abs().tolist() == pytest.approx([0, 0.1, 0], abs=0.005)
    assert torch.equal(module.w.detach(), torch.ones(3).double())


def test_witness_rebuilds_the_change_it_claims() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    subject = mp.Subject(module, mp.BooleanCube(4))
    verdict = mp.claim(mp.worst_sharpness, "<=", 1e-3, radius=0.5).check(subject, seed=4)
    assert verdict.outcome == "fail"
    assert verdict.witness is not None
    offset = mp.worst_direction(subject, radius=0.5, seed=verdict.witness.direction_seed)
    length = math.sqrt(sum(float(part.square().sum()) for part in offset.values()))
    assert length == pytest.approx(0.5, rel=1e-5)
    points = subject.domain.exhaustive().float()
    with torch.no_grad():
        before = module(points)
        moved = {name: weight + offset[name] for name, weight in module.named_parameters()}
        change = ((torch.func.functional_call(module, moved, (points,)) - before) ** 2).mean()
    assert float(change) == pytest.approx(verdict.witness.score, rel=1e-4)
    average = mp.sharpness(subject, radius=0.5, seed=0)
    assert verdict.witness.score > average.high


def test_loss_starts_like_sharpness_aware_minimisation() -> None:
    # A linear function of w: l(w + D) - l(w) = g'D, largest for D = rho g/|g|, value rho |g|.
    module = linear()
    found = mp.worst_sharpness(
        module, domain=mp.BooleanCube(3), radius=0.2, loss=lambda outputs, points: outputs * points[:, 1], seed=0
    )
    assert found.value == pytest.approx(0.2, rel=1e-9)  # g = E x x_1 = e_1


def test_fresh_inputs_judge_the_direction() -> None:
    module = linear(40)
    subject = mp.Subject(module, mp.BooleanCube(40))
    # E (D'x)^2 = |D|^2 for every D: the direction fits its 20 search inputs, and fresh ones are not fooled.
    found = mp.worst_sharpness(subject, radius=1.0, inputs=20, seed=0)
    assert found.details["value_on_search_inputs"] > 2
    assert found.low <= 1.0
    assert found.value < 2


def test_zero_gradient_gives_a_random_direction_and_no_nan() -> None:
    module = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    found = mp.worst_sharpness(
        module, domain=mp.BooleanCube(3), radius=0.1, loss=lambda outputs, points: outputs**2, seed=0
    )
    assert found.value == pytest.approx(0.01, rel=1e-3)  # E (d'x + b)^2 = |D|^2, whatever the direction


def test_infinite_and_huge_gradients_are_scaled_before_they_are_squared() -> None:
    def fresh() -> torch.Tensor:
        return torch.tensor([1.0, 0.0])

    assert unit(torch.tensor([math.inf, 2.0]), fresh).tolist() == [0.0, 1.0]
    assert unit(torch.tensor([math.nan, 0.0]), fresh).tolist() == [1.0, 0.0]
    assert unit(torch.tensor([3e38, 4e38 / 1.25]), fresh).norm() == pytest.approx(1.0)
    assert unit(torch.tensor([3e-42, 4e-42]), fresh).norm() == pytest.approx(1.0)


def test_ascent_survives_overflow() -> None:
    def climb(place: torch.Tensor) -> tuple[float, torch.Tensor]:
        if place[0] > 0.9:
            raise mp.NonFiniteOutputError("overflow")
        return float(place[0]), torch.tensor([math.inf, 0.0]) if place[0] < 0 else torch.tensor([1.0, 0.0])

    def fresh() -> torch.Tensor:
        return torch.tensor([0.6, 0.8])

    value, place, overflows = ascend(climb, torch.tensor([0.0, 1.0]), 1.0, 12, fresh)
    assert 0.6 < value <= 0.9
    assert overflows > 0
    assert float(place.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured(dtype: torch.dtype) -> None:
    module, domain = scaled((1.0, 3.0, 2.0)), mp.BooleanCube(3)
    module.w.data = module.w.data.to(dtype)
    found = mp.worst_sharpness(module, domain=domain, radius=0.5, seed=0)
    assert found.value == pytest.approx(9 * 0.25, rel=0.05)


def test_passing_claims_are_a_search_and_mistakes_are_named() -> None:
    module, domain = scaled((1.0, 3.0, 2.0)), mp.BooleanCube(3)
    verdict = mp.claim("worst_sharpness(radius=0.1) <= 0.1").check(module, domain=domain)
    assert verdict.outcome == "pass"
    assert verdict.estimate.guarantee == "one-sided bound"
    assert mp.claim("worst_sharpness(radius=0.1) >= 0.05").check(module, domain=domain).outcome == "pass"
    with pytest.raises(mp.ArgumentError, match="gradient"):
        mp.worst_sharpness(mp.Subject(module, domain, "sign"), radius=0.1)
    with pytest.raises(mp.ArgumentError, match="budget"):
        mp.worst_sharpness(module, domain=domain, radius=0.1, budget=10)


def test_small_radius_limit_of_a_linear_model_is_the_closed_form() -> None:
    # grad T = x, |x|^2 = n = p: the limit is rho^2, and sharpness of a linear model equals it at every radius.
    module, domain = linear(5), mp.BooleanCube(5)
    found = mp.small_radius_sharpness(module, domain=domain, radius=0.3)
    assert found.value == pytest.approx(0.09, rel=1e-12)
    assert found.method == "exact"


def test_sharpness_at_small_radius_agrees_with_its_limit() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
    ).double()
    subject = mp.Subject(module, mp.BooleanCube(4))
    limit = mp.small_radius_sharpness(subject, radius=1e-3)
    sampled = mp.sharpness(subject, radius=1e-3, width=0.05 * limit.value, seed=0)
    error = sampled.details["standard_error_over_directions"]
    assert sampled.value == pytest.approx(limit.value, abs=6 * error)  # P(beyond 6 standard errors) < 1e-8
    jacobian = torch.autograd.functional.jacobian(
        lambda w: torch.func.functional_call(module, {"3.weight": w}, (subject.domain.exhaustive().double(),)),
        module[3].weight.detach(),
    )
    only = mp.small_radius_sharpness(subject, radius=1e-3, exclude=r"^(?!3\.weight)")
    expected = 1e-6 / 12 * float((jacobian**2).sum()) / 16
    assert only.value == pytest.approx(expected, rel=1e-9)


def test_landscape_of_a_linear_model_is_a_parabola() -> None:
    subject = mp.Subject(linear(4), mp.BooleanCube(4))
    found = mp.landscape(subject, radius=0.5, points=5, normalisation="none", seed=0)
    assert found.values == pytest.approx(0.25 * found.offsets**2, rel=1e-9)  # E (a D'x)^2 = a^2 |D|^2
    assert (found.standard_errors == 0).all()
    assert found.evaluations == 6 * 16


def test_two_dimensional_slice_is_the_loss_at_the_moved_weights() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    subject = mp.Subject(module, mp.BooleanCube(3))

    def loss(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return (outputs - points[:, 0]) ** 2

    before = [weight.clone() for weight in module.parameters()]
    found = mp.landscape(subject, radius=0.3, dimensions=2, points=3, loss=loss, seed=1)
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
    first, second = (direction(perturbed_parameters(subject), 0.3, seed, "filter") for seed in found.direction_seeds)
    points = subject.domain.exhaustive()
    for (i, j), value in np.ndenumerate(found.values):
        moved = {
            name: weight + found.offsets[i] * first[name] + found.offsets[j] * second[name]
            for name, weight in module.named_parameters()
        }
        outputs = torch.func.functional_call(module, moved, (points.float(),))[:, 0].double()
        expected = float(loss(outputs, points.double()).mean().detach())
        assert value == pytest.approx(expected, rel=1e-5)
    filters, own = first["0.weight"].norm(dim=1), module[0].weight.norm(dim=1)
    assert torch.allclose(filters, 0.3 * own, rtol=1e-5)
    assert isinstance(found.to_dict()["values"], list)
    with pytest.raises(mp.ArgumentError, match="odd"):
        mp.landscape(subject, radius=0.3, points=4)
