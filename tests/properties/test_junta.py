"""Junta size against closed forms, brute force and simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_tables import random_subject, slow_influences
from simulation import boxes, coverage

import modelprops as mp
from modelprops.properties.junta import counts


def slow_size(influences: np.ndarray, mass: float) -> int:
    """Try every set of coordinates."""
    total = influences.sum()
    for size in range(len(influences) + 1):
        if any(sum(part) >= mass * total - 1e-12 for part in itertools.combinations(influences, size)):
            return size
    raise AssertionError


def parity_of(k: int, n: int) -> mp.Subject:
    return mp.Subject(lambda x: x[:, :k].prod(1), mp.BooleanCube(n), "sign")


def test_a_sparse_parity_depends_on_its_members() -> None:
    assert mp.junta_size(parity_of(4, 10)).value == 4
    assert mp.junta_size(parity_of(4, 10), mass=0.5).value == 2
    assert mp.junta_size(parity_of(1, 10)).value == 1
    assert mp.junta_size(parity_of(10, 10), mass=1.0).value == 10
    assert mp.junta_size(mp.Subject(lambda x: 0 * x[:, 0] + 1, mp.BooleanCube(5), "sign")).value == 0


@pytest.mark.parametrize("mass", [0.3, 0.6, 0.9, 1.0])
def test_a_random_table_equals_brute_force(mass: float) -> None:
    for seed in range(5):
        subject, table = random_subject(7, seed=seed, real=True)
        assert mp.junta_size(subject, mass=mass).value == slow_size(slow_influences(table), mass)


def test_the_counts_enclose_every_vector_between_the_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.uniform(0, 1, 5)
        high = low + rng.uniform(0, 0.3, 5)
        least, greatest = counts(low, high, 0.8)
        sizes = {slow_size(rng.uniform(low, high), 0.8) for _ in range(20)}
        assert least <= min(sizes)
        assert max(sizes) <= greatest


def test_sampled_intervals_cover_the_size() -> None:
    # Simultaneous intervals at .99 imply it; Ville's bound is loose.
    subject, table = random_subject(3, seed=4)
    found = boxes(mp.junta_size.plan(subject), repeats=2000, chunks=2, size=32, level=0.01)
    assert coverage(found, slow_size(slow_influences(table), 0.9)) >= 0.99
    assert min(float(box.high) - float(box.low) for box in found) < 3


def test_sampling_finds_the_members_among_many() -> None:
    estimate = mp.junta_size(parity_of(3, 40), seed=0)
    assert (estimate.low, estimate.value, estimate.high) == (3, 3, 3)
    assert sorted(estimate.details["heaviest"]) == [0, 1, 2]


def test_the_claim_decides_both_ways() -> None:
    assert mp.assert_junta(parity_of(3, 40), 3, seed=0).outcome == "pass"
    assert mp.claim("junta_size(mass=0.9) <= 4").check(parity_of(4, 12)).outcome == "pass"
    with pytest.raises(mp.PropertyViolation, match="junta_size <= 3"):
        mp.assert_junta(parity_of(4, 40), 3, seed=0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match=r"mass=1\.5"):
        mp.junta_size(parity_of(1, 3), mass=1.5)
    with pytest.raises(mp.ArgumentError, match="size="):
        mp.assert_junta(parity_of(1, 3), 2.5)
