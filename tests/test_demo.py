"""The shipped demo models are what they claim to be."""

from __future__ import annotations

from math import comb
from pathlib import Path

import pytest
import torch

import modelprops as mp
from modelprops import demo


@pytest.mark.parametrize("name", demo.NAMES)
def test_the_demo_computes_its_function_at_every_input(name: str) -> None:
    subject = mp.load(f"demo:{name}")
    points = subject.domain.exhaustive()
    expected = torch.where(points.sum(1, dtype=torch.int) > 0, 1, -1) if name == "majority" else points.prod(1)
    assert torch.equal(subject(points), expected.double())


def test_average_sensitivities_have_their_closed_forms() -> None:
    assert mp.average_sensitivity(mp.load("demo:parity")).value == 12
    assert mp.average_sensitivity(mp.load("demo:majority")).value == 12 * comb(12, 6) / 2**12


def test_majority_keeps_the_card_and_parity_does_not() -> None:
    for text in demo.card_claims():
        assert mp.claim(text).check(mp.load("demo:majority"), seed=0).outcome == "pass"
    outcomes = [mp.claim(text).check(mp.load("demo:parity"), seed=0).outcome for text in demo.card_claims()]
    assert outcomes == ["fail", "fail", "fail"]


def test_loading_leaves_the_global_random_state_alone() -> None:
    state = torch.get_rng_state()
    demo.load("parity")
    assert torch.equal(torch.get_rng_state(), state)


def test_both_checkpoints_are_small_and_an_unknown_one_is_refused() -> None:
    files = list(Path(demo.__file__).parent.glob("*.safetensors"))
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 500_000
    with pytest.raises(mp.LoadError, match="demo:majority or demo:parity"):
        demo.load("address")
