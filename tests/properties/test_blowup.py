"""Blowup against the definition, written out by hand on the layer inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.properties.blowup import magnification, norms_of


def tau(vectors: torch.Tensor, eps: float) -> torch.Tensor:
    """max over positions of 1 + N, (batch, positions, d) -> (batch,)."""
    centred = vectors.double() - vectors.double().mean(-1, keepdim=True)
    return (1 + 1 / ((centred**2).mean(-1) + eps).sqrt()).amax(-1)


class Two(torch.nn.Module):
    """Two norms with different eps on known inputs: embeddings, then twice the normalised embeddings."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(2, d)
        self.position = torch.nn.Parameter(torch.randn(4, d))
        self.first = torch.nn.LayerNorm(d, eps=1e-5)
        self.second = torch.nn.LayerNorm(d, eps=0.5)
        with torch.no_grad():
            self.second.weight.copy_(torch.tensor([1.0, -3.0, 0.5, 0, 0, 2.0]))

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        return self.second(2 * self.first(self.embedding(bits) + self.position)).sum((1, 2))


def by_hand(module: Two, domain: mp.BooleanCube) -> tuple[np.ndarray, np.ndarray]:
    bits = (domain.exhaustive() > 0).long()
    with torch.no_grad():
        inner = module.embedding(bits) + module.position
        return tau(inner, 1e-5).numpy(), tau(2 * module.first(inner), 0.5).numpy()


def test_blowup_is_the_product_of_the_worst_factors() -> None:
    module, domain = Two(), mp.BooleanCube(4, encoding="bits")
    first, second = by_hand(module, domain)
    values = np.sort(first * second)
    found = mp.layernorm_blowup(module, domain=domain)
    assert found.method == "exact"
    assert found.value == pytest.approx(values[7], rel=1e-6)  # the 8th of 16 is the median
    assert found.details["mean"] == pytest.approx(values.mean(), rel=1e-6)
    assert found.details["mean_square"] == pytest.approx((values**2).mean(), rel=1e-6)
    assert found.details["max"] == pytest.approx(values[-1], rel=1e-6)
    assert found.details["layers"]["first"]["max"] == pytest.approx(first.max(), rel=1e-6)
    assert found.details["layers"]["second"]["median"] == pytest.approx(np.median(second), rel=1e-6)


def test_gain_form_multiplies_by_the_largest_gain() -> None:
    module, domain = Two(), mp.BooleanCube(4, encoding="bits")
    first, second = by_hand(module, domain)
    expected = np.sort(first * (1 + 3.0 * (second - 1)))
    assert mp.layernorm_blowup(module, domain=domain, gain=True).value == pytest.approx(expected[7], rel=1e-6)


def test_root_mean_square_norms_use_the_mean_square() -> None:
    class LlamaLikeRMSNorm(torch.nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(d)), 0.25

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return hidden_states * (hidden_states.square().mean(-1, keepdim=True) + 0.25).rsqrt()

    x = mp.BooleanCube(3).exhaustive().double() * 2.0  # mean square 4 at every point
    for norm, eps in ((LlamaLikeRMSNorm(3), 0.25), (torch.nn.RMSNorm(3, eps=0.5), 0.5)):
        module = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), norm, torch.nn.Linear(3, 1)).double()
        torch.nn.init.eye_(module[0].weight)
        with torch.no_grad():
            module[0].weight *= 2
        found = mp.layernorm_blowup(module, domain=mp.BooleanCube(3))
        assert found.value == pytest.approx(1 + 1 / np.sqrt(float((x[0] ** 2).mean()) + eps), rel=1e-9)


class Fused(torch.nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batch_first = batch_first
        self.embedding = torch.nn.Embedding(2, 8)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=batch_first)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        y = self.embedding(bits)
        y = self.encoder(y if self.batch_first else y.transpose(0, 1))
        return (y if self.batch_first else y.transpose(0, 1))[:, -1, 0]


@pytest.mark.parametrize("points", [4, 5, 7])
def test_fused_encoder_is_seen_and_the_layout_of_the_batch_does_not_matter(points: int) -> None:
    # Five positions: with five points, guessing the batch axis by its size would fail.
    batched, positions_first = Fused(), Fused(batch_first=False)
    positions_first.load_state_dict(batched.state_dict())
    domain = mp.BooleanCube(5, encoding="bits")
    sample = domain.sample(points, torch.Generator().manual_seed(0))
    one = magnification(mp.Subject(batched, domain), sample, norms_of(batched))
    other = magnification(mp.Subject(positions_first, domain), sample, norms_of(positions_first))
    assert len(one) == 4
    for name in one:
        assert one[name].shape == (points,)
        assert np.allclose(one[name], other[name], rtol=1e-5)


def test_batches_do_not_matter() -> None:
    module, domain = Two(), mp.BooleanCube(4, encoding="bits")
    whole = mp.layernorm_blowup(mp.Subject(module, domain))
    small = mp.layernorm_blowup(mp.Subject(module, domain, batch_size=3))
    assert small.value == pytest.approx(whole.value, rel=1e-6)


def test_unused_norm_is_an_error_and_hooks_are_removed() -> None:
    module, domain = Two(), mp.BooleanCube(4, encoding="bits")
    module.idle = torch.nn.LayerNorm(3)
    with pytest.raises(mp.ModelpropsError, match="'idle'"):
        mp.layernorm_blowup(module, domain=domain)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert torch.backends.mha.get_fastpath_enabled()
    assert mp.layernorm_blowup(module, domain=domain, exclude="idle").value > 1


def test_hooks_are_removed_after_an_exception_in_forward() -> None:
    class Breaks(Two):
        calls = 0

        def forward(self, bits: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 12:  # after the probe, in the measurement itself
                raise KeyboardInterrupt
            return super().forward(bits)

    module = Breaks()
    with pytest.raises(KeyboardInterrupt):
        mp.layernorm_blowup(module, domain=mp.BooleanCube(4, encoding="bits"))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_norm_called_twice_counts_twice() -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(2, elementwise_affine=False, eps=1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm(x) * 0)[:, 0] + x.sum(-1)

    # Second call: input 0, N = 1. First: variance 0 or 1 on {-1, 1}^2, N = 1 or 1/sqrt 2.
    found = mp.layernorm_blowup(Shared(), domain=mp.BooleanCube(2))
    assert found.details["max"] == pytest.approx(4.0)
    assert found.value == pytest.approx(2 * (1 + 1 / np.sqrt(2)))
    assert set(found.details["layers"]) == {"norm", "norm#2"}


def test_model_without_norm_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="no LayerNorm"):
        mp.layernorm_blowup(torch.nn.Linear(3, 1), domain=mp.BooleanCube(3))


class Heavy(torch.nn.Module):
    """One norm over (z, -z), z normal: N = 1 / sqrt(z^2 + eps), with known quantiles."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(2, eps=1e-8, elementwise_affine=False)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.cat([z, -z], 1))[:, 0]


def heavy_quantile(q: float) -> float:
    from scipy.stats import norm

    # Blowup > b iff |z| < 1/(b - 1): the q quantile has P(|z| < c) = 1 - q.
    return 1 + 1 / norm.ppf(0.5 + (1 - q) / 2)


def test_quantile_intervals_cover_a_heavy_tail() -> None:
    # 99% intervals, 60 repeats: P(more than 6 misses) < 1e-5; seeds fixed.
    truth, missed = heavy_quantile(0.9), 0
    subject = mp.Subject(Heavy().double(), mp.Gaussian(1))
    for seed in range(60):
        found = mp.layernorm_blowup(subject, quantile=0.9, budget=1000, seed=seed)
        missed += not found.low <= truth <= found.high
        assert found.guarantee == "confidence bound"
    assert missed <= 6


def test_claims_about_quantiles() -> None:
    subject = mp.Subject(Heavy().double(), mp.Gaussian(1))
    truth = heavy_quantile(0.9)
    verdict = mp.assert_blowup_below(subject, 2 * truth, quantile=0.9, seed=0)
    assert verdict.outcome == "pass"
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_blowup_below(subject, truth / 2, quantile=0.9, seed=0)
    witness = caught.value.verdict.witness
    assert witness is not None
    assert witness.score == pytest.approx(1 + 1 / np.sqrt(float(witness.point) ** 2 + 1e-8), rel=1e-6)
    with pytest.raises(mp.Inconclusive):
        mp.assert_blowup_below(subject, truth, quantile=0.9, tolerance=0, seed=0, budget=2000)


@pytest.mark.parametrize("architecture", ["bert", "llama", "t5"])
def test_hugging_face_norms_are_found(architecture: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if architecture == "bert":
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
        )
        module, readout, calls = transformers.BertModel(config, add_pooling_layer=False), "embedding", 5
    elif architecture == "llama":
        config = transformers.LlamaConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
        )
        module, readout, calls = transformers.LlamaForCausalLM(config), "last-token", 5
    else:
        config = transformers.T5Config(vocab_size=20, d_model=8, num_layers=2, num_heads=2, d_kv=4, d_ff=8)
        module, readout, calls = transformers.T5EncoderModel(config), "embedding", 5
    found = mp.layernorm_blowup(mp.Subject(module, mp.Tokens(20, 4), readout), budget=300, seed=0)
    assert len(found.details["layers"]) == calls
    assert found.value > 1
