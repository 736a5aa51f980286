"""Tasks: their values, their closed forms, and what they refuse."""

from __future__ import annotations

from math import comb

import pytest
import torch

import modelprops as mp
from modelprops.training.tasks import BooleanProblem, BooleanTask, all_bits, distinct_inputs, random_table, row_numbers


def flip_sensitivity(task: BooleanTask) -> float:
    """as(f) by the definition, one flip at a time."""
    bits = all_bits(task.n)
    total = torch.zeros(len(bits), dtype=torch.float64)
    for i in range(task.n):
        flipped = bits.clone()
        flipped[:, i] = 1 - flipped[:, i]
        total += ((task.targets(bits) - task.targets(flipped)).double() / 2) ** 2
    return float(total.mean())


@pytest.mark.parametrize(
    ("name", "n", "expected"),
    [
        ("parity", 7, 7.0),
        ("first", 7, 1.0),
        ("majority", 7, 7 * comb(6, 3) / 2**6),
        ("majority", 8, 8 * comb(8, 4) / 2**8),
        ("mean", 8, 1 / 8),
    ],
)
def test_average_sensitivity_of_the_signed_task_is_the_closed_form(name: str, n: int, expected: float) -> None:
    assert flip_sensitivity(BooleanTask(name, n, "pm1")) == pytest.approx(expected, abs=1e-6)
    assert BooleanTask(name, n, "01").scale * flip_sensitivity(BooleanTask(name, n, "01")) == pytest.approx(
        expected, abs=1e-6
    )


def test_values_are_those_of_the_definitions() -> None:
    bits = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert BooleanTask("parity", 4).targets(bits).tolist() == [0, 1, 0, 1]
    assert BooleanTask("majority", 4).targets(bits).tolist() == [0, 1, 0, 0]
    assert BooleanTask("first", 4).targets(bits).tolist() == [0, 1, 0, 1]
    assert BooleanTask("mean", 4, "pm1").targets(bits).tolist() == [0, 0.5, -1, -0.5]


def test_row_numbers_are_the_order_of_the_cube() -> None:
    assert torch.equal(row_numbers(all_bits(6)), torch.arange(64))


def test_a_random_table_is_balanced_and_sensitive_to_half_of_its_bits() -> None:
    # Of 2^12 fair bits the mean is .5 +- .0078 and the sensitivity 6 +- .07; 6 sd fails with chance below 1e-8.
    task = BooleanTask("table", 12, "pm1", random_table(12, seed=3))
    assert abs(float(task.targets(all_bits(12)).mean())) < 0.1
    assert abs(flip_sensitivity(task) - 6) < 0.4


def test_a_table_agrees_with_the_function_it_was_made_from() -> None:
    values = BooleanTask("majority", 5).targets(all_bits(5))
    table = BooleanTask("table", 5, table="".join(str(int(value)) for value in values))
    assert torch.equal(table.targets(all_bits(5)), values)


def test_restricted_training_draws_only_its_strings() -> None:
    known = distinct_inputs(8, 40, seed=1)
    assert len(torch.unique(row_numbers(known))) == 40
    problem = BooleanProblem(BooleanTask("parity", 8), train_size=40, train_seed=1, batch_size=500)
    bits, targets = problem.batch(torch.Generator().manual_seed(0))
    assert set(row_numbers(bits).tolist()) <= set(row_numbers(known).tolist())
    assert torch.equal(targets, (bits.sum(1) % 2).float())


def test_evaluation_is_over_the_whole_cube() -> None:
    problem = BooleanProblem(BooleanTask("majority", 4, "pm1"))
    metrics = problem.evaluate(lambda bits: bits[:, 0] * 2.0 - 1)
    # The first bit misses majority (ties -1) where it is 1 without majority: 4 of 16 inputs, and 0 with it: 1 of 16.
    assert metrics["accuracy"] == 11 / 16
    assert metrics["loss"] == pytest.approx(4 * 5 / 16)
    assert metrics["margin"] == -1


@pytest.mark.parametrize(
    "arguments",
    [
        ("xor", 4),
        ("parity", 0),
        ("parity", 4, "bits"),
        ("table", 2),
        ("table", 2, "01", "011"),
        ("parity", 1, "01", "01"),
    ],
)
def test_impossible_tasks_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(mp.ArgumentError):
        BooleanTask(*arguments)  # type: ignore[arg-type]


def test_more_strings_than_the_cube_has_are_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="1 to 8"):
        distinct_inputs(3, 9, seed=0)
