"""Embeddings: standardised, invertible, and a Gaussian domain for language models."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import modelprops as mp
from modelprops.domains import generator_of


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """A tiny random decoder with tied embeddings; one seed, so the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()


def test_points_and_embeddings_are_inverse_to_each_other(model: LlamaForCausalLM) -> None:
    domain = mp.Embeddings(model, length=5)
    points = domain.sample(3, generator_of(0))
    assert torch.allclose(domain.to_points(domain.to_embeddings(points)), points.double(), atol=1e-9)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    own = model.get_input_embeddings().weight.detach().double()[ids]
    assert torch.allclose(domain.to_embeddings(domain.tokens_to_points(ids)), own, atol=1e-9)


def test_embeddings_have_the_moments_of_a_random_token(model: LlamaForCausalLM) -> None:
    # 40,000 draws: each entry of mean and covariance is within 6 standard errors with probability above 1 - 1e-6.
    domain = mp.Embeddings(model, length=1)
    drawn = domain.to_embeddings(domain.sample(40_000, generator_of(1)))[:, 0]
    table = model.get_input_embeddings().weight.detach().double()
    scale = float(table.std())
    assert torch.allclose(drawn.mean(0), table.mean(0), atol=6 * scale / 200)
    assert torch.allclose(drawn.T.cov(), table.T.cov(correction=0), atol=12 * scale**2 / 200)


def test_gaussian_noise_runs_on_a_language_model_and_leaves_it_alone(model: LlamaForCausalLM) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    subject = mp.Subject(model, mp.Embeddings(model, length=6), ("next-token-probability", 7))
    same = mp.noise_stability(subject, rho=1.0, budget=2_000, normalisation="correlation")
    half = mp.noise_stability(subject, rho=0.5, budget=20_000)
    assert same.value == pytest.approx(1.0)
    assert half.details["raw"]["low"] <= half.value <= half.details["raw"]["high"]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_whole_vectors_are_kept_or_redrawn_with_resampling_noise(model: LlamaForCausalLM) -> None:
    domain = mp.Embeddings(model, length=4, noise="resample")
    points = domain.sample(2_000, generator_of(0))
    partners = domain.correlated(points, 0.7, generator_of(1))
    kept = (points == partners).all(2)
    assert torch.equal(kept, (points == partners).any(2))
    assert float(kept.double().mean()) == pytest.approx(0.7, abs=0.03)  # 8,000 coins: 6 standard errors
    assert domain.coordinates == 4
    moved = domain.resample(points, 2, generator_of(2))
    assert torch.equal(moved[:, :2], points[:, :2])
    assert not (moved[:, 2] == points[:, 2]).any()


def test_what_has_no_embedding_table_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="give layer="):
        mp.Embeddings(torch.nn.Linear(2, 2))
    with pytest.raises(mp.DomainError, match="no variance"):
        mp.Embeddings(torch.nn.Linear(2, 2), layer=torch.nn.Embedding.from_pretrained(torch.ones(5, 3)))
    with pytest.raises(mp.DomainError):
        mp.Embeddings(torch.nn.Linear(2, 2), length=0, layer=torch.nn.Embedding(5, 3))
