"""Monotonicity against enumeration by definition and simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_tables import random_subject
from simulation import boxes, coverage

import modelprops as mp


def slow_violation(table: np.ndarray) -> float:
    """Share of edges (row without bit i is +1, with bit i is -1) along which f falls as x_i rises."""
    n = len(table).bit_length() - 1
    rows = np.arange(len(table))
    return float(np.mean([(table[r] < table[r | 1 << i]) for i in range(n) for r in rows[rows >> i & 1 == 0]]))


@pytest.mark.parametrize(("n", "real"), [(1, True), (6, False), (10, True)])
def test_a_random_table_equals_the_definition(n: int, real: bool) -> None:
    subject, table = random_subject(n, seed=n, real=real)
    assert mp.monotonicity_violation(subject).value == pytest.approx(slow_violation(table), abs=1e-9)


def test_parity_falls_along_half_of_its_edges() -> None:
    parity = mp.Subject(lambda x: x.prod(1), mp.BooleanCube(8), "sign")
    assert mp.monotonicity_violation(parity).value == pytest.approx(0.5, abs=1e-12)


def test_sampled_intervals_cover_the_truth() -> None:
    subject, table = random_subject(6, seed=9)
    found = boxes(mp.monotonicity_violation.plan(subject), repeats=2000, chunks=2, size=16, level=0.01)
    assert coverage(found, slow_violation(table)) >= 0.99


@pytest.mark.parametrize("n", [8, 40])
def test_a_threshold_is_monotone_and_a_negated_bit_is_a_minimal_witness(n: int) -> None:
    rising = mp.Subject(lambda x: x.sum(1) - 2, mp.BooleanCube(n), "sign")
    assert mp.assert_monotone(rising, seed=0).outcome == "pass"
    falling = mp.Subject(lambda x: x[:, 0] + x[:, 1] - 3 * x[:, 2], mp.BooleanCube(n), "sign")
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_monotone(falling, seed=0)
    witness = caught.value.verdict.witness
    assert witness.coordinate == 2
    others = torch.cat([witness.point[:2], witness.point[3:]])
    assert bool((others == 1).all())


def test_a_rare_violation_is_tolerated_when_asked() -> None:
    subject = mp.Subject(lambda x: 1 - 2.0 * (x[:, :10] > 0).all(1), mp.BooleanCube(40), "sign")
    assert mp.assert_monotone(subject, at_most=0.02, seed=0).outcome == "pass"


def test_other_domains_are_refused() -> None:
    with pytest.raises(mp.DomainError, match="no order"):
        mp.monotonicity_violation(lambda x: x.sum(1), domain=mp.Gaussian(3))
    with pytest.raises(mp.ArgumentError, match="2 outputs"):
        mp.monotonicity_violation(lambda x: x[:, :2], domain=mp.BooleanCube(3))
