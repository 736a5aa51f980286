"""The control regularisers: noise on embeddings and on hidden layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import modelprops as mp
from modelprops.training import EmbeddingNoise, LayerNoise, SmallTransformer

TOKENS = torch.randint(0, 7, (64, 10), generator=torch.Generator().manual_seed(1))


class Linear(nn.Module):
    """Logits linear in the embeddings, so that the divergence has a closed form for small noise."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(7, features)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens).sum(1)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("distribution", "variance"), [("normal", 1.0), ("uniform", 1 / (3 * 10 * 6))])
def test_small_embedding_noise_costs_the_fisher_information(distribution: str, variance: float) -> None:
    # KL both ways = d^T (diag p - p p^T) d for a logit change d; E d_i^2 = 10 scale^2 variance, so the mean over
    # noise is 10 scale^2 variance sum_i p_i (1 - p_i). 20,000 terms, relative sd below 1: 6 sd are .05.
    model, scale = Linear(), 0.01
    tokens = TOKENS[:1].expand(20_000, -1)
    p = model(tokens[:1]).detach().softmax(-1)[0]
    expected = 10 * scale**2 * variance * float((p * (1 - p)).sum())
    term = EmbeddingNoise(2.0, scale=scale, distribution=distribution)
    model = model.double()
    value = float(term.penalty(model, tokens, model(tokens), generator()).detach())
    assert value == pytest.approx(2 * expected, rel=0.06)


def test_layer_noise_at_the_disturbed_layer_is_its_own_size() -> None:
    # A vector of norm h gets noise of norm .05 h: the squared difference per feature is .0025 h^2 / d, exactly.
    model = SmallTransformer(d_model=16, layers=2).build(7, 10, 7)
    seen: list[torch.Tensor] = []
    model.get_submodule("blocks.0").register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    value = LayerNoise(3.0, layers=("blocks.0",)).penalty(model, TOKENS, model(TOKENS), generator())
    assert float(value.detach()) == pytest.approx(3 * 0.05**2 * float((seen[0] ** 2).mean()), rel=1e-4)


def test_layer_noise_reaches_later_layers_and_sends_gradients() -> None:
    model = SmallTransformer(d_model=16, layers=2).build(7, 10, 7)
    one = LayerNoise(1.0, layers=("blocks.0",)).penalty(model, TOKENS, None, generator())
    two = LayerNoise(1.0, layers=("blocks.0", "blocks.1")).penalty(model, TOKENS, None, generator())
    assert float(two.detach()) > float(one.detach()) > 0
    two.backward()
    gradient = model.get_parameter("blocks.1.mlp.0.weight").grad
    assert gradient is not None
    assert math.isfinite(float(gradient.norm()))
    assert float(gradient.norm()) > 0


@pytest.mark.parametrize("term", [EmbeddingNoise(1.0, scale=0.1), LayerNoise(1.0, layers=("table",))])
def test_hooks_are_gone_afterwards(term: EmbeddingNoise | LayerNoise) -> None:
    model = Linear()
    term.penalty(model, TOKENS, model(TOKENS), generator())
    assert not model.table._forward_hooks
    assert torch.equal(model(TOKENS), model(TOKENS))


def test_a_missing_layer_is_named_with_those_there_are() -> None:
    with pytest.raises(mp.ArgumentError, match="it has table"):
        LayerNoise(1.0, layers=("encoder",)).penalty(Linear(), TOKENS, None)
    with pytest.raises(mp.ArgumentError, match=r"no nn\.Embedding"):
        EmbeddingNoise(1.0, scale=0.1).penalty(nn.Linear(2, 2), TOKENS, torch.zeros(64, 2))
    with pytest.raises(mp.ArgumentError, match="normal or uniform"):
        EmbeddingNoise(1.0, scale=0.1, distribution="cauchy")
    with pytest.raises(mp.ArgumentError, match="at least one"):
        LayerNoise(1.0, layers=())
