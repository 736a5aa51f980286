"""The linearity test against all pairs, distances and simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_tables import random_subject
from simulation import boxes, coverage

import modelprops as mp


def slow_rejection(table: np.ndarray) -> float:
    """All pairs: the product of inputs is the exclusive or of rows."""
    rows = np.arange(len(table))
    return float(np.mean(table[:, None] * table[None] != table[rows[:, None] ^ rows[None]]))


def slow_distance(table: np.ndarray) -> float:
    """Least share of rows on which the table differs from a product of bits."""
    rows = np.arange(len(table))
    masks = rows[:, None] & rows[None]
    characters = (-1.0) ** np.array([[bin(m).count("1") for m in row] for row in masks])
    return float((characters != table).mean(axis=1).min())


@pytest.mark.parametrize("n", [1, 4, 7])
def test_a_random_table_equals_all_pairs_and_bounds_its_distance(n: int) -> None:
    subject, table = random_subject(n, seed=n)
    estimate = mp.linearity_violation(subject)
    assert estimate.value == pytest.approx(slow_rejection(table), abs=1e-9)
    assert estimate.details["distance"] == pytest.approx(slow_distance(table), abs=1e-9)
    assert slow_distance(table) <= estimate.value + 1e-9


def test_products_pass_and_negated_products_pass_the_affine_test_only() -> None:
    for n in (8, 40):
        product = mp.Subject(lambda x: x[:, 1] * x[:, 3] * x[:, 4], mp.BooleanCube(n), "sign")
        negated = mp.Subject(lambda x: -x[:, 1] * x[:, 3], mp.BooleanCube(n), "sign")
        assert mp.assert_linear(product, seed=0).outcome == "pass"
        assert mp.assert_linear(negated, affine=True, seed=0).outcome == "pass"
        with pytest.raises(mp.PropertyViolation):
            mp.assert_linear(negated, seed=0)


@pytest.mark.parametrize("n", [9, 33])
def test_the_witness_pair_is_rejected(n: int) -> None:
    subject = mp.Subject(lambda x: x.sum(1), mp.BooleanCube(n), "sign")
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_linear(subject, seed=0)
    witness = caught.value.verdict.witness
    points = torch.stack([witness.point, witness.partner, witness.point * witness.partner])
    assert subject(points).prod() == -1


def test_sampled_intervals_cover_the_truth() -> None:
    subject, table = random_subject(5, seed=5)
    found = boxes(mp.linearity_violation.plan(subject), repeats=2000, chunks=2, size=32, level=0.01)
    assert coverage(found, slow_rejection(table)) >= 0.99


def test_a_sampled_bound_on_the_distance_holds() -> None:
    # And of two bits, negated once: distance 1/4 from the nearest product, rejected with probability 3/8.
    subject = mp.Subject(lambda x: 1 - 2.0 * (x[:, :2] < 0).all(1), mp.BooleanCube(40), "sign")
    estimate = mp.linearity_violation(subject, confidence=1 - 1e-7, seed=0)
    assert estimate.low <= 3 / 8 <= estimate.high
    assert 0.25 <= estimate.details["distance_at_most"] <= estimate.high


def test_other_functions_are_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="not ±1"):
        mp.linearity_violation(lambda x: x.sum(1), domain=mp.BooleanCube(4))
    with pytest.raises(mp.ArgumentError, match="not ±1"):
        mp.linearity_violation(lambda x: x.sum(1), domain=mp.BooleanCube(40))
    with pytest.raises(mp.DomainError, match="BooleanCube"):
        mp.linearity_violation(lambda x: x.sum(1), domain=mp.Gaussian(4))
