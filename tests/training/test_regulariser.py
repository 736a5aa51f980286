"""The stability regulariser: its noise has the law it names, its value and gradient are those of Definition 6.1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import modelprops as mp
from modelprops.training import StabilityRegulariser

DRAWS = 200_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def encouraging(gamma: float = 1.0, **options: Any) -> StabilityRegulariser:
    return StabilityRegulariser(gamma, direction="encourage", **options)


class Classifier(nn.Module):
    def __init__(self, vocabulary: int = 5, per_position: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.table = nn.Embedding(vocabulary, 3)
        self.per_position = per_position

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens)
        logits: torch.Tensor = hidden if self.per_position else hidden.sum(1)
        return logits


@pytest.mark.parametrize("alphabet", [2, 50])
@pytest.mark.parametrize("keep", [0.525, 0.625, 0.95])
def test_tokens_stay_with_the_probability_of_the_closed_form(alphabet: int, keep: float) -> None:
    # P(Y = X) = keep + (1 - keep)/U; 6 standard deviations of a binomial: fails by chance below 1e-8.
    inputs = torch.randint(0, alphabet, (DRAWS, 1), generator=generator(1))
    same = (encouraging(keep=keep, resample_from=alphabet).partner(inputs, generator()) == inputs).double().mean()
    expected = keep + (1 - keep) / alphabet
    assert abs(float(same) - expected) < 6 * math.sqrt(expected * (1 - expected) / DRAWS)


def test_the_paper_setting_keeps_with_half_of_one_plus_rho() -> None:
    assert StabilityRegulariser.from_paper(0.75, 0.25, direction="encourage").correlation == 0.625
    assert StabilityRegulariser.from_paper(0.05, 0.05, direction="encourage").correlation == 0.525
    assert encouraging(rho=0.25).correlation == 0.25


def test_embeddings_get_a_partner_of_the_stated_correlation_and_the_same_law() -> None:
    inputs = 3 + 2 * torch.randn(1000, 20, 4, generator=generator(1))
    other = encouraging(rho=0.6).partner(inputs, generator())
    table = torch.stack([inputs.flatten(), other.flatten()]).double()
    # 80,000 pairs: the correlation's standard error is (1 - .36)/283 = .0023, mean .007, deviation .005; 6 of each.
    assert float(torch.corrcoef(table)[0, 1]) == pytest.approx(0.6, abs=0.014)
    assert float(table[1].mean()) == pytest.approx(3, abs=0.045)
    assert float(table[1].std()) == pytest.approx(2, abs=0.035)


def test_keeping_embeddings_replaces_whole_vectors_by_others_of_the_batch() -> None:
    inputs = torch.randn(50, 8, 4, generator=generator(1))
    other = encouraging(keep=0.5).partner(inputs, generator())
    assert torch.isin(other, inputs).all()
    changed = (other != inputs).any(-1)
    assert torch.equal(changed, (other != inputs).all(-1))
    assert 0.3 < float(changed.double().mean()) < 0.65  # 400 draws at .5 * 399/400: 6 sd is .15


def test_real_outputs_give_the_noise_stability_of_parity() -> None:
    # Stab of PARITY_5 at keep .8 is .8^5; products are +-1, so the mean of 200,000 has sd below .00224.
    inputs = torch.randint(0, 2, (DRAWS, 5), generator=generator(1))

    def parity(bits: torch.Tensor) -> torch.Tensor:
        return 1.0 - 2 * (bits.sum(1) % 2)

    term = encouraging(2.0, keep=0.8, resample_from=2, outputs="real")
    assert float(term.penalty(parity, inputs, parity(inputs), generator())) == pytest.approx(-2 * 0.8**5, abs=0.027)


@pytest.mark.parametrize(("modulus", "expected"), [(31, 0.410), (113, 0.396)])
def test_a_correct_adder_agrees_as_often_as_labels_do(modulus: int, expected: float) -> None:
    # Spec C5: p^2 + (1 - p)^2/(K - 1) with p = keep + (1 - keep)/K, printed .410 and .396; sd of the mean .0025.
    inputs = torch.randint(0, modulus, (40_000, 2), generator=generator(1))

    def adder(pairs: torch.Tensor) -> torch.Tensor:
        return 100.0 * nn.functional.one_hot(pairs.sum(1) % modulus, modulus)

    term = encouraging(keep=0.625, resample_from=modulus)
    assert -float(term.penalty(adder, inputs, adder(inputs), generator())) == pytest.approx(expected, abs=0.015)


def test_with_everything_kept_it_is_the_confidence() -> None:
    model, inputs = Classifier(), torch.tensor([[0, 1, 2], [3, 4, 0]])
    confidence = (model(inputs).softmax(-1) ** 2).sum(-1).mean()
    value = encouraging(0.5, keep=1.0).penalty(model, inputs, model(inputs))
    assert float(value) == pytest.approx(-0.5 * float(confidence))


def test_the_two_directions_are_opposite() -> None:
    model, inputs = Classifier(), torch.randint(0, 5, (8, 3), generator=generator(1))
    values = [
        float(
            StabilityRegulariser(1.0, direction=direction, keep=0.5).penalty(model, inputs, model(inputs), generator())
        )
        for direction in ("encourage", "discourage")
    ]
    assert values[0] == -values[1] < 0


@pytest.mark.parametrize("stop", [False, True])
def test_the_gradient_goes_through_the_outputs_that_it_should(stop: bool) -> None:
    model, inputs = Classifier(), torch.randint(0, 5, (8, 3), generator=generator(1))
    term = encouraging(keep=0.5, resample_from=5, stop_gradient=stop)
    term.penalty(model, inputs, model(inputs), generator()).backward()
    gradient = model.table.weight.grad

    other = term.partner(inputs, generator())
    noisy = model(other).softmax(-1)
    product = model(inputs).softmax(-1) * (noisy.detach() if stop else noisy)
    (expected,) = torch.autograd.grad(-product.sum(-1).mean(), model.table.weight)
    assert gradient is not None
    torch.testing.assert_close(gradient, expected)


def test_a_language_model_is_averaged_over_the_positions_that_are_no_padding() -> None:
    model, inputs = Classifier(per_position=True), torch.randint(0, 5, (4, 6), generator=generator(1))
    mask = torch.ones_like(inputs)
    mask[1, 2:] = 0
    term = encouraging(keep=0.5, resample_from=5)
    other = term.partner(inputs, generator(), mask)
    assert torch.equal(other[1, 2:], inputs[1, 2:])
    first, second = model(inputs).softmax(-1), model(other).softmax(-1)
    terms = [float(first[i, j] @ second[i, j]) for i in range(4) for j in range(6) if mask[i, j]]
    value = term.penalty(model, inputs, model(inputs), generator(), mask=mask)
    assert float(value) == pytest.approx(-sum(terms) / len(terms), rel=1e-5)


def test_only_the_named_positions_and_no_protected_token_change() -> None:
    inputs = torch.randint(0, 50, (2000, 6), generator=generator(1))
    inputs[:, 2] = 7
    other = encouraging(keep=0.0, resample_from=(40, 41), positions=(1, 2, -1), protected=(7,)).partner(
        inputs, generator()
    )
    assert torch.equal(other[:, [0, 2, 3, 4]], inputs[:, [0, 2, 3, 4]])
    kept = inputs == 7
    assert set(other[:, [1, 5]][~kept[:, [1, 5]]].tolist()) == {40, 41}
    assert torch.equal(other[kept], inputs[kept])


def test_a_batch_is_resampled_from_its_own_unprotected_tokens() -> None:
    inputs = torch.tensor([[101, 5, 6, 0], [101, 5, 9, 0]]).repeat(500, 1)
    other = encouraging(keep=0.0, protected=(101, 0)).partner(inputs, generator())
    assert torch.equal(other[:, [0, 3]], inputs[:, [0, 3]])
    assert set(other[:, 1:3].flatten().tolist()) == {5, 6, 9}
    # Token 5 is half of what may be drawn; 6 sd of 2,000 draws are .067.
    assert float((other[:, 1:3] == 5).double().mean()) == pytest.approx(0.5, abs=0.067)


def test_a_given_generator_leaves_the_global_one_alone() -> None:
    before = torch.get_rng_state()
    model, inputs = Classifier(), torch.randint(0, 5, (8, 3), generator=generator(1))
    encouraging(keep=0.5).penalty(model, inputs, model(inputs), generator())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of them"),
        ({"keep": 0.5, "rho": 0.5}, "give one of them"),
        ({"keep": 1.5}, "0, 1"),
        ({"rho": -0.1}, "0, 1"),
        ({"keep": 0.5, "resample_from": "corpus"}, "batch"),
        ({"keep": 0.5, "resample_from": ()}, "no token"),
        ({"keep": 0.5, "outputs": "sign"}, "logits"),
        ({"keep": 0.5, "gamma": -1.0}, "at least 0"),
        ({"keep": 0.5, "direction": "both"}, "discourage"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"gamma": 1.0, "direction": "encourage", **options}
    with pytest.raises(mp.ArgumentError, match=message):
        StabilityRegulariser(**arguments)


def test_an_output_without_classes_is_refused() -> None:
    inputs = torch.zeros(3, 2, dtype=torch.long)
    with pytest.raises(mp.OutputError, match="real"):
        encouraging(keep=0.5).penalty(lambda tokens: tokens.sum(1).float(), inputs, torch.zeros(3))
    with pytest.raises(mp.ArgumentError, match="token ids"):
        encouraging(keep=0.5).partner(torch.zeros(3, dtype=torch.long))
    with pytest.raises(mp.ArgumentError, match="outside"):
        encouraging(keep=0.5, positions=(2,)).partner(inputs)
