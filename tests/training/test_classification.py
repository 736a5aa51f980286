"""Modular addition, noisy sparse parity, next-token prediction, and the known effect of the regulariser."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

import modelprops as mp
from modelprops.training import (
    ModularAddition,
    NextToken,
    NoisySparseParity,
    SmallTransformer,
    StabilityRegulariser,
    Stop,
    TrainingConfig,
    train,
)

# Spec C5 (c): K = 31, half of the pairs, x^2, 128 hidden units, learning rate .01, weight decay 1.
ADDITION = TrainingConfig(
    ModularAddition(31),
    steps=1000,
    learning_rate=0.01,
    weight_decay=1.0,
    betas=(0.9, 0.98),
    evaluate_every=20,
    stop=Stop("accuracy", above=0.99),
)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_discouraging_stability_speeds_modular_addition_up() -> None:
    # Known from an independent run (spec C5): about 660 steps to 99% without, about 300 with.
    term = StabilityRegulariser(0.75, direction="discourage", keep=0.625, resample_from=31)
    plain = train(ADDITION).steps_to("accuracy", above=0.99)
    discouraged = train(replace(ADDITION, regulariser=term)).steps_to("accuracy", above=0.99)
    assert plain is not None
    assert discouraged is not None
    assert 500 <= plain <= 900
    assert discouraged < 0.7 * plain


def test_encouraging_stability_keeps_modular_addition_from_generalising() -> None:
    term = StabilityRegulariser(0.75, direction="encourage", keep=0.625, resample_from=31)
    run = train(replace(ADDITION, steps=700, regulariser=term))
    assert run.stopped == "steps"
    assert run.final["accuracy"] < 0.6  # type: ignore[operator]  # known: .30 to .32 after 8,000 steps


def test_the_pairs_are_split_without_overlap_and_sums_are_right() -> None:
    problem = ModularAddition(7, train_fraction=0.4)
    known, held_out = problem.pairs()
    assert (len(known), len(held_out)) == (20, 29)
    assert len({tuple(pair) for pair in torch.cat([known, held_out]).tolist()}) == 49
    inputs, targets = problem.batch(generator())
    assert all((a + b) % 7 == c for (a, b), c in zip(inputs.tolist(), targets.tolist(), strict=True))


def test_a_perfect_adder_scores_one_and_a_constant_one_over_k() -> None:
    problem = ModularAddition(7)
    right = problem.evaluate(lambda pairs: 50.0 * torch.nn.functional.one_hot(pairs.sum(1) % 7, 7))
    assert right["accuracy"] == right["train_set_accuracy"] == 1
    assert problem.evaluate(lambda pairs: torch.zeros(len(pairs), 7))["loss"] == pytest.approx(log(7))


def test_sparse_parity_flips_the_stated_share_of_labels_in_training_only() -> None:
    problem = NoisySparseParity(n=9, support=(1, 4, 8), noise=0.2, batch_size=50_000)
    bits, labels = problem.batch(generator())
    truth = bits[:, 1] ^ bits[:, 4] ^ bits[:, 8]
    assert float((labels != truth).double().mean()) == pytest.approx(0.2, abs=0.011)  # 6 sd of 50,000 draws
    metrics = problem.evaluate(lambda x: 50.0 * torch.nn.functional.one_hot(x[:, 1] ^ x[:, 4] ^ x[:, 8], 2))
    assert metrics["accuracy"] == 1


def test_a_fixed_training_set_keeps_its_wrong_labels() -> None:
    problem = NoisySparseParity(n=12, noise=0.3, train_size=40, batch_size=400)
    known: dict[tuple[int, ...], int] = {}
    for seed in range(3):
        bits, labels = problem.batch(torch.Generator().manual_seed(seed))
        for row, label in zip(bits.tolist(), labels.tolist(), strict=True):
            assert known.setdefault(tuple(row), label) == label
    assert len(known) <= 40


def test_a_transformer_learns_a_sparse_parity() -> None:
    problem = NoisySparseParity(n=6, support=(0, 3), noise=0.0, network=SmallTransformer(d_model=16, heads=2))
    run = train(
        TrainingConfig(problem, steps=2000, learning_rate=3e-3, evaluate_every=50, stop=Stop("accuracy", above=0.99))
    )
    assert run.stopped == "threshold"


def test_a_causal_network_does_not_see_later_tokens() -> None:
    model = SmallTransformer(d_model=8, heads=2, layers=2, per_position=True).build(11, 6, 11)
    tokens = torch.randint(0, 11, (4, 6), generator=generator())
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_next_token_windows_are_the_text_and_targets_are_shifted(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "text.txt"
    path.write_text("a quick brown fox jumps over the lazy dog. " * 400, encoding="utf-8")
    problem = NextToken(str(path), vocabulary=300, length=8, train_items=40, validation_items=20, batch_size=16)
    inputs, targets = problem.batch(generator())
    assert inputs.shape == targets.shape == (16, 8)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    known, held_out = problem.windows()
    assert (len(known), len(held_out)) == (40, 20)
    run = train(TrainingConfig(problem, steps=60, learning_rate=1e-2, evaluate_every=60))
    losses = run.curve("loss")[1]
    assert losses[0] > 0.8 * log(300) * 0.9
    assert losses[-1] < 0.5 * losses[0]


def test_the_text_is_part_of_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    hashes = Counter()  # type: ignore[var-annotated]
    for text in ("one", "two", "one"):
        path.write_text(text, encoding="utf-8")
        hashes[TrainingConfig(NextToken(str(path))).hash()] += 1
    assert sorted(hashes.values()) == [1, 2]


def test_impossible_problems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mp.ArgumentError, match="held out"):
        ModularAddition(5, train_fraction=1.0)
    with pytest.raises(mp.ArgumentError, match="support"):
        NoisySparseParity(n=3, support=(1, 3))
    with pytest.raises(mp.ArgumentError, match="1/2"):
        NoisySparseParity(noise=0.5)
    with pytest.raises(mp.LoadError, match=r"gone\.txt"):
        NextToken(str(tmp_path / "gone.txt"))
    with pytest.raises(mp.ArgumentError, match="per_position"):
        NextToken(network=SmallTransformer())
    with pytest.raises(mp.ArgumentError, match="heads"):
        SmallTransformer(d_model=10, heads=4).build(5, 3, 5)
