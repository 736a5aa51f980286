"""Suffixes after a shared prefix give the values of full passes, and only for models where they do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import modelprops as mp
from modelprops import prefix

transformers = pytest.importorskip("transformers")
LENGTH = 56


def llama(**options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def neighbours(domain: mp.Tokens, size: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    points = domain.sample(size, generator)
    near = torch.stack([domain.resample(points, c, generator) for c in range(domain.coordinates)], 1)
    return points, near, torch.arange(domain.coordinates).expand(size, -1)


@contextmanager
def counted(module: torch.nn.Module) -> Iterator[list[int]]:
    """Numbers of tokens of each forward pass."""
    seen: list[int] = []

    def hook(_module: Any, _args: Any, keywords: dict[str, Any], _output: Any = None) -> None:
        seen.append(keywords["input_ids"].numel() if "input_ids" in keywords else _args[0].numel())

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.mark.parametrize("readout", [("next-token-probability", 3), "last-token", ("next-token-probability", "frozen")])
@pytest.mark.parametrize("frozen", [(), {0: 1, 7: 2}])
def test_a_random_llama_gives_the_values_of_full_passes(readout: Any, frozen: Any) -> None:
    subject = mp.Subject(llama().eval(), mp.Tokens(40, LENGTH, frozen=frozen), readout)
    points, near, places = neighbours(subject.domain)
    assert prefix.shares_prefixes(subject)
    whole = subject.read(torch.cat([points[:, None], near], 1).flatten(0, 1)).values
    found = prefix.read_neighbours(subject, points, near, places).values
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
    assert (whole[1:] - whole[0]).abs().max() > 1e-3  # the comparison is about something


def test_influences_run_half_of_the_tokens() -> None:
    model = llama().eval()
    subject = mp.Subject(model, mp.Tokens(40, 128), ("next-token-probability", 3))
    prefix.shares_prefixes(subject)
    with counted(model) as tokens:
        estimate = mp.influences(subject, budget=10 * 129 * 2, seed=0)
    assert estimate.value.shape == (128,)
    assert sum(tokens) < 0.62 * estimate.evaluations * 128


def test_influences_equal_those_of_full_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = mp.Subject(llama().eval(), mp.Tokens(40, LENGTH), ("next-token-probability", 3))
    fast = mp.influences(subject, budget=10 * 57 * 4, seed=0)
    monkeypatch.setattr(prefix, "shares_prefixes", lambda subject: False)
    slow = mp.influences(subject, budget=10 * 57 * 4, seed=0)
    assert abs(fast.value - slow.value).max() < 1e-6
    assert slow.value.max() > 1e-4


def test_the_model_is_left_as_found() -> None:
    model = llama(attention_dropout=0.5).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    subject = mp.Subject(model, mp.Tokens(40, LENGTH), ("next-token-probability", 3))
    mp.average_sensitivity(subject, budget=10 * 57, seed=0)
    assert prefix.shares_prefixes(subject)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_that_attends_both_ways_is_evaluated_in_full() -> None:
    class BothWays(type(llama())):  # type: ignore[misc]  # transformers has no stubs
        """Adds the mean of the embeddings of the whole input to the logits."""

        def forward(self, input_ids: torch.Tensor, cache: Any = None, use_cache: Any = None, logits_to_keep: int = 0):  # type: ignore[no-untyped-def]  # as transformers'
            name = prefix._cache_name(llama()) or ""
            output = super().forward(
                input_ids=input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep, **{name: cache}
            )
            output.logits = output.logits + self.model.embed_tokens(input_ids).mean((1, 2))[:, None, None]
            return output

    model = BothWays(llama().config).eval()
    subject = mp.Subject(model, mp.Tokens(40, LENGTH), "last-token")
    assert not prefix.shares_prefixes(subject)
    points, near, places = neighbours(subject.domain, 1)
    whole = subject.read(torch.cat([points[:, None], near], 1).flatten(0, 1)).values
    assert torch.equal(prefix.read_neighbours(subject, points, near, places).values, whole)


def test_what_is_no_causal_model_is_evaluated_in_full() -> None:
    table = torch.randn(40)
    assert not prefix.shares_prefixes(mp.Subject(lambda ids: table[ids].sum(1), mp.Tokens(40, LENGTH)))
    assert not prefix.shares_prefixes(mp.Subject(lambda x: x.sum(1), mp.BooleanCube(LENGTH)))
    assert not prefix.shares_prefixes(mp.Subject(llama(), mp.Tokens(40, 8), "last-token"))
    assert "transformers" in sys.modules
