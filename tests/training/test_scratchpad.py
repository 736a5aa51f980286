"""PARITY with a scratchpad: the data, the causal decoder, and that it is learned."""

from __future__ import annotations

import pytest
import torch

import modelprops as mp
from modelprops.training import ScratchpadParity, Stop, TrainingConfig, train
from modelprops.training.scratchpad import START, prefix_parities, with_scratchpad, written

BITS = torch.randint(0, 2, (50, 7), generator=torch.Generator().manual_seed(0))


def perfect(tokens: torch.Tensor) -> torch.Tensor:
    """The automaton: new state = old state xor new bit."""
    n = tokens.shape[1] // 2
    bits, state = tokens[:, :n], tokens[:, n:]
    return (bits ^ torch.where(state == START, 0, state)).float()


def test_the_scratchpad_holds_the_parity_of_every_prefix() -> None:
    assert prefix_parities(torch.tensor([[1, 0, 1, 1]])).tolist() == [[1, 1, 0, 1]]
    assert with_scratchpad(torch.tensor([[1, 0, 1, 1]])).tolist() == [[1, 0, 1, 1, START, 1, 1, 0]]


def test_an_automaton_of_one_step_writes_the_parity() -> None:
    assert torch.equal(perfect(with_scratchpad(BITS)), prefix_parities(BITS).float())
    assert torch.equal(written(perfect, BITS), prefix_parities(BITS))
    assert ScratchpadParity(9).evaluate(perfect) == {"loss": 0, "accuracy": 1}


def test_one_step_has_sensitivity_two() -> None:
    # Spec A.12: a step reads its own bit and the state before it, and nothing else.
    inputs = with_scratchpad(BITS)
    changes = torch.zeros(len(BITS), 7)
    for place in [*range(7), *range(8, 14)]:
        flipped = inputs.clone()
        flipped[:, place] = 1 - flipped[:, place]
        changes += (perfect(flipped) != perfect(inputs)).float()
    assert torch.equal(changes[:, 1:], torch.full((len(BITS), 6), 2.0))


def test_a_step_does_not_see_later_answers() -> None:
    model = ScratchpadParity(7, d_model=8).build().eval()
    inputs = with_scratchpad(BITS)
    changed = inputs.clone()
    changed[:, 7 + 4] = 1 - changed[:, 7 + 4]
    with torch.no_grad():
        before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_a_small_model_learns_it_and_reads_its_own_bits() -> None:
    problem = ScratchpadParity(5, d_model=16, layers=1, batch_size=64)
    config = TrainingConfig(
        problem, steps=3000, learning_rate=3e-3, weight_decay=0.0, evaluate_every=50, stop=Stop("accuracy", above=1.0)
    )
    assert train(config).stopped == "threshold"


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="14"):
        ScratchpadParity(7).build()(BITS)
    with pytest.raises(mp.ArgumentError, match="even"):
        ScratchpadParity(7, d_model=9).build()
    with pytest.raises(mp.ArgumentError, match="at least 1"):
        ScratchpadParity(0)
