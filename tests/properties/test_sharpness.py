"""Sharpness: closed forms of linear models, tied weights, excluded positions, weights that never drift."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import modelprops as mp
from modelprops.properties.perturbation import direction, perturbed_parameters

CUBE = mp.BooleanCube(5)


def linear(bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(5, 1, bias=bias)


def covered(module: nn.Module, truth: float, **parameters: object) -> mp.Estimate:
    """At confidence 1 - 1e-7."""
    found = mp.sharpness(mp.Subject(module, CUBE), confidence=1 - 1e-7, budget=200_000, seed=0, **parameters)
    assert found.low <= truth <= found.high
    return found


def test_a_linear_model_has_its_closed_form() -> None:
    """D uniform on the sphere in R^6: E (D·(x, 1))^2 = rho^2 |(x, 1)|^2 / 6 = rho^2."""
    found = covered(linear(), 0.09, radius=0.3)
    assert found.value == pytest.approx(0.09, rel=0.15)


def test_relative_and_filter_forms_scale_with_the_weights() -> None:
    module = linear(bias=False)
    norm = float(module.weight.detach().norm())
    covered(module, (0.3 * norm) ** 2, radius=0.3, normalisation="relative")
    covered(module, (0.3 * norm) ** 2, radius=0.3, normalisation="filter")


def test_rescaling_a_relu_pair_leaves_the_filter_form_unchanged() -> None:
    def pair(scale: float) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            module = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
        with torch.no_grad():
            module[0].weight *= scale
            module[2].weight /= scale
        return module

    values = [
        mp.sharpness(mp.Subject(pair(s), CUBE), radius=0.1, normalisation="filter", budget=20_000, seed=0).value
        for s in (1.0, 8.0)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_tied_weights_move_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 1, bias=False)
            self.second = nn.Linear(5, 1, bias=False)
            self.second.weight = self.first.weight

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            return self.first(points) + self.second(points)

    module = Tied()
    assert len(perturbed_parameters(mp.Subject(module, CUBE))) == 1
    # f = 2 w·x moves by 2 D·x, D on the sphere in R^5: 4 rho^2.
    covered(module, 4 * 0.04, radius=0.2)


def test_positional_encodings_stay_put_by_default() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positional_encoding = nn.Parameter(torch.zeros(5))
            self.weight = nn.Parameter(torch.zeros(5))

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            return points @ self.weight + points @ self.positional_encoding

    assert list(perturbed_parameters(mp.Subject(Positions(), CUBE))) == ["weight"]
    covered(Positions(), 0.04, radius=0.2)
    assert set(perturbed_parameters(mp.Subject(Positions(), CUBE), exclude=None)) == {"positional_encoding", "weight"}
    names = ["wpe.weight", "embeddings.position_embeddings.weight", "pos_embed", "decoder.embed_positions.weight"]
    module = nn.Module()
    for name in names:
        module.register_parameter(name.replace(".", "_"), nn.Parameter(torch.zeros(1)))
    module.register_parameter("proposal", nn.Parameter(torch.zeros(1)))
    module.forward = lambda points: points[:, 0] + module.proposal  # type: ignore[method-assign]
    assert list(perturbed_parameters(mp.Subject(module, CUBE))) == ["proposal"]


def test_a_loss_is_measured_as_its_increase() -> None:
    """Squared error against the unperturbed output: the same number as without a loss."""
    module = linear()
    target = mp.Subject(module, CUBE)

    def loss(output: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return (output - target(points)) ** 2

    covered(module, 0.09, radius=0.3, loss=loss)
    covered(module, 0.09, radius=0.3, loss=lambda output, points: loss(output, points).mean())


def test_inputs_that_are_not_all_of_the_domain_add_their_variance() -> None:
    """n = 40 linear model without bias whose change depends on |x|: inputs of two norms, by an encoding."""
    cube = mp.BooleanCube(40, encoding=lambda p: torch.where(p[:, :1] > 0, 3.0, 1.0) * p.float())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(40, 1, bias=False)
    found = mp.sharpness(mp.Subject(module, cube), radius=0.5, confidence=1 - 1e-7, inputs=32, budget=100_000, seed=0)
    truth = 0.25 * (9 + 1) / 2
    assert found.low <= truth <= found.high


def test_a_bounded_readout_gets_a_finite_sample_bound() -> None:
    found = mp.sharpness(mp.Subject(linear(), CUBE, "sign"), radius=0.5, budget=20_000)
    assert found.guarantee == "confidence bound"
    assert 0 <= found.low <= found.value <= found.high <= 4


def test_weights_are_bit_identical_afterwards_and_the_witness_rebuilds_its_direction() -> None:
    module = linear()
    before = module.weight.detach().clone()
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_flat_minimum(module, 0.001, radius=1.0, domain=CUBE)
    assert torch.equal(before, module.weight.detach())
    seed = caught.value.verdict.witness.direction_seed
    subject = mp.Subject(module, CUBE)
    step = direction(perturbed_parameters(subject), 1.0, seed)
    assert sum(float((part**2).sum()) for part in step.values()) == pytest.approx(1.0, rel=1e-5)
    points = CUBE.exhaustive()
    change = points.float() @ step["weight"][0] + step["bias"]
    assert float((change**2).mean()) == pytest.approx(caught.value.verdict.witness.score, rel=1e-4)


def test_what_has_no_direction_is_refused() -> None:
    with pytest.raises(mp.NoParametersError):
        mp.sharpness(lambda x: x[:, 0], domain=CUBE, radius=0.1)
    with pytest.raises(mp.NoParametersError, match="exclude"):
        mp.sharpness(linear(), domain=CUBE, radius=0.1, exclude=".")
    with pytest.raises(mp.ArgumentError, match="regular expression"):
        mp.sharpness(linear(), domain=CUBE, radius=0.1, exclude="(")
    for radius in (-1, float("nan"), float("inf")):
        with pytest.raises(mp.ArgumentError, match="radius="):
            mp.sharpness(linear(), domain=CUBE, radius=radius)
    module = linear()
    module.code = nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(mp.ArgumentError, match="quantised weights \\(code\\)"):
        mp.sharpness(module, domain=CUBE, radius=0.1)
