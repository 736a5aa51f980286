"""Moments of a pair and what maps do to them, against exact sums and simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from modelprops.errors import ArgumentError
from modelprops.theory.interval_rules import gated
from modelprops.theory.moments import Interval, Moments, added, affine, normalised, pointwise, relu, scaled, weaker
from modelprops.theory.resampling import Resampling


def pairs(seed: int, count: int = 300, positions: int = 3, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, positions, width, generator=generator, dtype=torch.float64)
    return x, x + 0.3 * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def holds(bound: Moments, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the sample's own q, g and norms lie in the bounds, up to rounding."""
    exact = Moments.of_pairs(x, y)
    inside = [(exact.q, bound.q), (exact.g, bound.g), (exact.norm, bound.norm), (exact.spread, bound.spread)]
    return all(a.low >= b.low * (1 - 1e-9) - 1e-12 and a.high <= b.high * (1 + 1e-9) + 1e-12 for a, b in inside)


def test_a_linear_map_of_a_sample_stays_inside() -> None:
    x, y = pairs(0)
    for seed in range(20):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(4, 3 + seed % 3, bias=seed % 2 == 0).double()
        bound = affine(Moments.of_pairs(x, y), layer.weight, layer.bias)
        assert holds(bound, layer(x), layer(y))
        assert bound.width == 3 + seed % 3


def test_an_orthogonal_map_loses_nothing() -> None:
    x, y = pairs(1)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0))).Q.double()
    before, after = Moments.of_pairs(x, y), affine(Moments.of_pairs(x, y), rotation)
    assert after.g.low == pytest.approx(before.g.low, rel=1e-5)
    assert after.g.high == pytest.approx(before.g.high, rel=1e-5)


def test_gain_and_shift_stay_inside() -> None:
    x, y = pairs(2)
    gain, shift = torch.tensor([0.5, -2.0, 1.0, 3.0]).double(), torch.tensor([0.1, 0.0, -0.2, 1.0]).double()
    assert holds(scaled(Moments.of_pairs(x, y), gain, shift), gain * x + shift, gain * y + shift)


def test_a_gain_is_folded_into_the_next_weight() -> None:
    # diag(3, 1) after diag(1/3, 1) is the identity: folded the gap stays, unfolded it would grow by 9.
    x, y = pairs(2, width=2)
    state = Moments.of_pairs(x, y)
    gain = torch.tensor([1 / 3, 1.0]).double()
    assert affine(scaled(state, gain), torch.diag(1 / gain)).g.high == pytest.approx(state.g.high, rel=1e-8)


def test_folding_gain_and_shift_stays_inside_linear_and_gated_maps() -> None:
    x, y = pairs(6, width=6)
    for seed in range(10):
        torch.manual_seed(seed)
        gain, shift = torch.randn(6).double(), torch.randn(6).double() if seed % 2 else None
        first, second = (torch.nn.Linear(6, 10, bias=seed % 3 == 0).double() for _ in range(2))
        state = scaled(Moments.of_pairs(x, y), gain, shift)
        u, v = (gain * z + (0 if shift is None else shift) for z in (x, y))
        assert holds(affine(state, first.weight, first.bias), first(u), first(v))
        bound = gated(state, (first.weight, first.bias), (second.weight, second.bias), 1.1)
        assert holds(bound, *(torch.nn.functional.silu(first(z)) * second(z) for z in (u, v)))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_normalisation_stays_inside(centred: bool, eps: float) -> None:
    x, y = pairs(3, width=5)

    def norm(u: torch.Tensor) -> torch.Tensor:
        u = u - u.mean(-1, keepdim=True) if centred else u
        return u / (u.square().mean(-1, keepdim=True) + eps).sqrt()

    assert holds(normalised(Moments.of_pairs(x, y), eps=eps, centred=centred), norm(x), norm(y))


def test_normalisation_of_unbounded_input_is_bounded_by_its_output() -> None:
    bound = normalised(Moments.gaussian(6, 16, rho=0.5), eps=0.0, centred=False)
    assert bound.q.high == pytest.approx(6 * 16)
    assert bound.g.high == pytest.approx(2 * 6 * 16)


def test_the_lipschitz_constant_of_normalisation_is_attained_by_small_turns() -> None:
    # Two vectors of norm r at angle t: the gap ratio tends to d / (r^2 + d eps).
    r, t, eps = 0.7, 1e-4, 1e-2
    x, y = torch.tensor([[r, 0.0]]).double(), torch.tensor([[r * math.cos(t), r * math.sin(t)]]).double()
    bound = normalised(Moments.of_pairs(x, y), eps=eps, centred=False)
    turned = [u / (u.square().mean(-1, keepdim=True) + eps).sqrt() for u in (x, y)]
    assert Moments.of_pairs(*turned).g.high == pytest.approx(bound.g.high, rel=1e-6)


def test_relu_and_residuals_stay_inside() -> None:
    x, y = pairs(4)
    state = Moments.of_pairs(x, y)
    assert holds(relu(state), x.relu(), y.relu())
    assert holds(added(state, relu(state)), x + x.relu(), y + y.relu())
    assert holds(added(state, scaled(state, -torch.ones(4))), x - x, y - y)


def test_nonnegative_outputs_have_a_gap_of_at_most_q() -> None:
    bound = relu(Moments.gaussian(1, 8, rho=-1.0))
    assert bound.g.high == bound.q.high
    assert bound.stability[0] >= 0


def test_the_gaussian_rule_is_exact_for_gaussians_and_labelled() -> None:
    # E relu(u) relu(v) = (sqrt(3)/2 + pi/3) / (2 pi) at correlation 1/2, so the gap is 1/2 less that.
    state = affine(Moments.gaussian(1, 8, rho=0.5), torch.eye(8))
    bound = relu(state, gaussian=True)
    assert bound.kind == "gaussian"
    expected = 8 * (0.5 - (math.sqrt(3) / 2 + math.pi / 3) / (2 * math.pi))
    # The state's q comes through singular values, known to a relative 1e-9.
    assert bound.g.low == pytest.approx(expected, rel=1e-8)
    assert bound.g.high == pytest.approx(expected, rel=1e-8)
    assert relu(state).kind == "sound"
    shifted = affine(Moments.gaussian(1, 8, rho=0.5), torch.eye(8), torch.ones(8))
    assert relu(shifted, gaussian=True).kind == "sound"


@pytest.mark.parametrize("positions", [1, 5])
def test_token_moments_match_a_large_sample(positions: int) -> None:
    # 60,000 sequences; 2% is more than six standard errors of either moment, chance below 1e-6.
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(7, 3, generator=generator) + 0.5
    tokens, fresh = torch.randint(7, (2, 60_000, positions), generator=generator)
    partner = torch.where(torch.rand(tokens.shape, generator=generator) < 0.7, tokens, fresh)
    exact = Moments.of_tokens(table, Resampling(keep=0.7), positions)
    sample = Moments.of_pairs(table[tokens], table[partner])
    assert exact.q.low == pytest.approx(sample.q.low, rel=0.02)
    assert exact.g.low == pytest.approx(sample.g.low, rel=0.02)
    assert exact.norm.high == pytest.approx(sample.norm.high, rel=1e-6)


def test_sign_and_gaussian_inputs_have_their_closed_forms() -> None:
    signs = Moments.signs(9, Resampling(keep=0.8))
    assert signs.q == Interval(9, 9)
    assert signs.g.high == pytest.approx(1.8)
    assert signs.norm == Interval(3, 3)
    assert Moments.gaussian(2, 3, rho=-0.5).g == Interval(9, 9)


def test_a_gated_product_stays_inside_with_and_without_biases() -> None:
    x, y = pairs(5, width=6)
    for seed, bias in ((0, False), (1, True)):
        torch.manual_seed(seed)
        gate, up = torch.nn.Linear(6, 10, bias=bias).double(), torch.nn.Linear(6, 10, bias=bias).double()
        bound = gated(Moments.of_pairs(x, y), (gate.weight, gate.bias), (up.weight, up.bias), 1.1)
        outputs = [torch.nn.functional.silu(gate(u)) * up(u) for u in (x, y)]
        assert holds(bound, *outputs)


def test_a_gated_product_of_unbounded_input_says_nothing() -> None:
    bound = gated(Moments.gaussian(1, 6, rho=0.5), (torch.eye(6), None), (torch.eye(6), None), 1.1)
    assert math.isinf(bound.g.high)


def test_labels_only_weaken() -> None:
    sound = Moments.gaussian(1, 4, rho=0.5)
    assert added(sound, replace(sound, kind="heuristic")).kind == "heuristic"
    assert weaker("gaussian", "sound") == "gaussian"
    assert pointwise(replace(sound, kind="gaussian"), lipschitz=1.0).kind == "gaussian"


def test_impossible_states_are_refused() -> None:
    for call in (
        lambda: Interval(2.0, 1.0),
        lambda: Interval(-1.0, 1.0),
        lambda: Moments(Interval(), Interval(), 0, 3),
        lambda: Moments.of_pairs(torch.zeros(3), torch.zeros(3)),
    ):
        with pytest.raises(ArgumentError):
            call()
