"""Every function's answers against exact enumeration, the specification's table and another library."""

from __future__ import annotations

import math

import boofun
import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops import functions

MEMBERS = [
    *(
        family(n)
        for family in (functions.parity, functions.first, functions.mean, functions.majority)
        for n in (1, 2, 3, 8, 11)
    ),
    *(family(n) for family in (functions.conjunction, functions.disjunction) for n in (1, 2, 7)),
    *(functions.hidden_weighted_bit(n) for n in (1, 2, 6)),
    functions.tribes(2, 3),
    functions.tribes(1, 4),
    functions.tribes(3, 1),
    functions.address(1),
    functions.address(3),
    functions.recursive_majority(1),
    functions.recursive_majority(2),
    functions.random_function(7, seed=3),
    functions.sparse_parity([1, 4, 5], 9),
    functions.sparse_parity([], 3),
    functions.junta([4, 1], [1, -1, -1, -1], 7),
    functions.linear_threshold([3, -2, 1, 1], 0.5),
    functions.dnf([{0: -1, 2: 1}, {3: -1}], 5),
    functions.decision_tree((2, 1, (0, -1, 1)), 4),
    functions.truth_table([1, -1, -1, 1]),
]


@pytest.mark.parametrize("function", MEMBERS, ids=repr)
def test_answers_equal_enumeration(function: functions.BooleanFunction) -> None:
    n, table = function.n, function.table()
    rows = np.arange(2**n)
    influences = np.array([((table - table[rows ^ (1 << i)]) ** 2).mean() / 4 for i in range(n)])
    signs = np.array([[1 - 2 * (row >> i & 1) for i in range(n)] for row in rows])
    weights = np.zeros(n + 1)
    for mask in range(2**n):
        members = [i for i in range(n) if mask >> i & 1]
        weights[len(members)] += (table * signs[:, members].prod(1)).mean() ** 2
    assert function.influences() == pytest.approx(influences, abs=1e-12)
    assert function.average_sensitivity() == pytest.approx(influences.sum(), abs=1e-12)
    assert function.level_weights() == pytest.approx(weights, abs=1e-12)
    for rho in (-0.5, 0.0, 0.3, 1.0):
        assert function.noise_stability(rho) == pytest.approx(weights @ rho ** np.arange(n + 1), abs=1e-12)


@pytest.mark.parametrize("function", MEMBERS, ids=repr)
def test_the_repr_rebuilds_the_function(function: functions.BooleanFunction) -> None:
    again = eval(repr(function), {"modelprops": mp})
    assert np.array_equal(again.table(), function.table())


@pytest.mark.parametrize("function", MEMBERS, ids=repr)
def test_each_is_a_subject_whose_measure_is_its_answer(function: functions.BooleanFunction) -> None:
    subject = mp.Subject(function, mp.BooleanCube(function.n))
    assert mp.average_sensitivity(subject).value == pytest.approx(function.average_sensitivity(), abs=1e-9)
    assert mp.noise_stability(subject, rho=0.7).value == pytest.approx(function.noise_stability(0.7), abs=1e-9)


@pytest.mark.parametrize(
    ("n", "printed"),
    [
        (4, "1.5"),
        (5, "1.875"),
        (10, "2.4609375"),
        (11, "2.70703"),
        (15, "3.14209"),
        (30, "4.33393"),
        (100, "7.95892"),
        (512, "18.04525"),
        (1024, "25.52607"),
    ],
)
def test_majority_has_the_specifications_average_sensitivity(n: int, printed: str) -> None:
    digits = len(printed.partition(".")[2])
    assert f"{functions.majority.average_sensitivity(n):.{digits}f}" == printed


def test_majority_follows_the_closed_forms_for_odd_and_even_lengths() -> None:
    for n in range(1, 60):
        expected = n * math.comb(n - 1, (n - 1) // 2) / 2 ** (n - 1) if n % 2 else n * math.comb(n, n // 2) / 2**n
        assert functions.majority.average_sensitivity(n) == pytest.approx(expected, rel=1e-12)


def test_large_members_have_answers_too() -> None:
    weights = functions.majority.level_weights(101)
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ np.arange(102) == pytest.approx(functions.majority.average_sensitivity(101))
    # Sheppard: Stab_rho(Maj_n) -> 2/pi arcsin(rho), from below at the rate 1/sqrt(n).
    assert functions.majority.noise_stability(301, 0.5) == pytest.approx(2 / math.pi * math.asin(0.5), abs=0.01)
    assert functions.parity.noise_stability(12, 0.9) == 0.9**12
    assert functions.recursive_majority.average_sensitivity(5) == 1.5**5


def test_another_library_agrees() -> None:
    for ours, theirs in (
        (functions.majority(5), boofun.majority(5)),
        (functions.parity(4), boofun.parity(4)),
        (functions.conjunction(3), boofun.AND(3)),
    ):
        assert ours.average_sensitivity() == pytest.approx(float(theirs.total_influence()), abs=1e-9)
        assert ours.influences() == pytest.approx(np.asarray(theirs.influences(), dtype=float), abs=1e-9)
        assert ours.noise_stability(0.6) == pytest.approx(float(theirs.noise_stability(0.6)), abs=1e-9)


def test_wrong_arguments_are_refused() -> None:
    for make in (
        lambda: functions.parity(0),
        lambda: functions.majority(2.5),
        lambda: functions.tribes(0, 3),
        lambda: functions.truth_table([1, -1, 1]),
        lambda: functions.truth_table([1, 2]),
        lambda: functions.sparse_parity([0, 0]),
        lambda: functions.sparse_parity([5], 3),
        lambda: functions.junta([0], [1, 1, 1, -1]),
        lambda: functions.dnf([{0: 2}]),
        lambda: functions.decision_tree((0, 1)),
        lambda: functions.parity(4).noise_stability(2.0),
        lambda: functions.hidden_weighted_bit(25).level_weights(),
        lambda: functions.random_function(25),
        lambda: functions.parity(4)(torch.ones(2, 5)),
    ):
        with pytest.raises(mp.ArgumentError):
            make()


def test_any_dtype_of_points_is_taken() -> None:
    points = mp.BooleanCube(5).exhaustive()
    for dtype in (torch.int8, torch.int64, torch.float32, torch.float64):
        assert torch.equal(
            functions.majority(5)(points.to(dtype)).double(), torch.where(points.sum(1) > 0, 1.0, -1.0).double()
        )
