"""Symmetry and equivariance against enumeration by definition, closed forms and simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from random_tables import random_subject
from simulation import boxes, coverage

import modelprops as mp


def majority(n: int) -> mp.Subject:
    return mp.Subject(lambda x: x.sum(1), mp.BooleanCube(n), "sign")


def dictator(n: int) -> mp.Subject:
    return mp.Subject(lambda x: x[:, 0], mp.BooleanCube(n), "sign")


def slow_asymmetry(subject: mp.Subject, atol: float) -> float:
    """All points, all permutations."""
    points = subject.domain.exhaustive()
    values = subject(points).view(len(points), -1)
    orders = list(itertools.permutations(range(points.shape[1])))
    moved = [subject(points[:, list(order)]).view(len(points), -1) for order in orders]
    return float(np.mean([((other - values).norm(dim=1) > atol).double().mean() for other in moved]))


@pytest.mark.parametrize("real", [False, True])
def test_a_random_table_equals_all_permutations(real: bool) -> None:
    subject, _ = random_subject(5, seed=1, real=real)
    for atol in (0.0, 0.5):
        found = mp.symmetry_violation(subject, atol=atol).value
        assert found == pytest.approx(slow_asymmetry(subject, atol), abs=1e-9)


def test_tokens_and_vector_outputs_equal_all_permutations() -> None:
    embedding = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    subject = mp.Subject(lambda ids: embedding[ids[:, 0]] + embedding[ids[:, 1]] * 2, mp.Tokens(3, 4))
    assert mp.symmetry_violation(subject).value == pytest.approx(slow_asymmetry(subject, 1e-9), abs=1e-9)


def test_frozen_positions_stay() -> None:
    domain = mp.Tokens(3, 4, frozen={0: 2})
    subject = mp.Subject(lambda ids: (ids[:, 0] - 1) * ids[:, 1:].sum(1).double(), domain)
    for exact in (True, False):
        assert mp.symmetry_violation(subject, exact=exact, budget=2000, seed=0).value == 0


def test_a_dictator_changes_when_the_first_bit_does() -> None:
    # P[x_0 != x_pi(0)] = (1 - 1/n)/2.
    assert mp.symmetry_violation(dictator(8)).value == pytest.approx(7 / 16, abs=1e-12)


def test_sampled_intervals_cover_the_truth() -> None:
    for name, parameters in (("symmetry_violation", {}), ("equivariance_violation", {"group": "rotations"})):
        subject, _ = random_subject(5, seed=3)
        measure = getattr(mp, name)
        truth = measure(subject, **parameters).value
        found = boxes(measure.plan(subject, **parameters), repeats=2000, chunks=2, size=32, level=0.01)
        assert coverage(found, truth) >= 0.99


@pytest.mark.parametrize("n", [9, 40])
def test_a_majority_is_symmetric_and_a_dictator_is_not(n: int) -> None:
    assert mp.assert_symmetric(majority(n), seed=0).outcome == "pass"
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_symmetric(dictator(n), seed=0)
    witness = caught.value.verdict.witness
    changed = (witness.point != witness.partner).nonzero()[:, 0]
    assert len(changed) == 2
    assert 0 in changed
    assert int((witness.point < 0).sum()) == 1


def test_reversal_and_rotations_follow_their_definition() -> None:
    subject, _table = random_subject(4, seed=7)
    rows = subject.domain.exhaustive()
    values = subject(rows)
    reversal = float((subject(rows.flip(1)) != values).double().mean())
    assert mp.equivariance_violation(subject, group="reversal").value == pytest.approx(reversal)
    rotations = np.mean([float((subject(rows.roll(s, 1)) != values).double().mean()) for s in (1, 2, 3)])
    assert mp.equivariance_violation(subject, group="rotations").value == pytest.approx(rotations)


def test_an_odd_function_follows_negation() -> None:
    assert mp.assert_equivariant(majority(9), "odd").outcome == "pass"
    assert mp.claim("equivariance_violation(group='odd') <= 0").check(majority(31), seed=0, budget=10_000).outcome in (
        "pass",
        "inconclusive",
    )
    with pytest.raises(mp.PropertyViolation):
        mp.assert_equivariant(majority(9), "negation")


def test_a_convolution_is_equivariant_and_its_sum_invariant() -> None:
    conv = torch.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")

    def field(x: torch.Tensor) -> torch.Tensor:
        return conv(x[:, None])[:, 0]

    def shift(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.roll(1, 1)

    subject = mp.Subject(field, mp.Gaussian(6))
    assert mp.assert_equivariant(subject, (shift, shift), atol=1e-5, seed=0).outcome == "pass"
    with pytest.raises(mp.PropertyViolation):
        mp.assert_equivariant(subject, shift, atol=1e-5, seed=0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="no group"):
        mp.equivariance_violation(majority(3), group=[])
    with pytest.raises(mp.ArgumentError, match="unknown"):
        mp.equivariance_violation(majority(3), group="mirror")
    with pytest.raises(mp.ArgumentError, match="token ids"):
        mp.equivariance_violation(lambda ids: ids.sum(1), domain=mp.Tokens(3, 3), group="odd")
    with pytest.raises(mp.ArgumentError, match="shape"):
        mp.equivariance_violation(majority(3), group=lambda x: x[:, :2])
