"""Every function's answers against exact enumeration, the specification's table and another library."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

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
        for n in (1, 2, 3, 8)
    ),
    *(family(n) for family in (functions.conjunction, functions.disjunction) for n in (1, 2, 7)),
    *(functions.hidden_weighted_bit(n) for n in (1, 2, 6)),
    functions.tribes(2, 3),
    functions.tribes(1, 4),
    functions.majority(11),
    functions.majority(12),
    functions.tribes(3, 1),
    functions.tribes(1, 1),
    functions.tribes(3, 4),
    functions.address(1),
    functions.address(2),
    functions.address(3),
    functions.recursive_majority(1),
    functions.recursive_majority(2),
    functions.random_function(7, seed=3),
    functions.sparse_parity([1, 4, 5], 9),
    functions.sparse_parity([], 3),
    functions.junta([4, 1], [1, -1, -1, -1], 7),
    functions.linear_threshold([3, -2, 1, 1], 0.5),
    functions.linear_threshold([1234567, -1234566, 0.1], 1),
    functions.dnf([{0: -1, 2: 1}, {3: -1}], 5),
    functions.decision_tree((2, 1, (0, -1, 1)), 4),
    functions.truth_table([1, -1, -1, 1]),
]


@pytest.mark.parametrize("function", MEMBERS, ids=repr)
def test_answers_equal_enumeration(function: functions.BooleanFunction) -> None:
    n, table = function.n, function.table()
    rows = np.arange(2**n)
    influences = np.array([((table - table[rows ^ (1 << i)]) ** 2).mean() / 4 for i in range(n)])
    degrees = np.array([row.bit_count() for row in range(2**n)])
    coefficients = (1.0 - 2.0 * (degrees[rows[:, None] & rows] % 2)) @ table / 2**n
    weights = np.bincount(degrees, coefficients**2)
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


def test_odd_majority_has_the_textbook_level_weights() -> None:
    # O'Donnell, Analysis of Boolean Functions, theorem 5.19.
    for n in (1, 3, 5, 9, 51, 257):
        half, middle = (n - 1) // 2, Fraction(2 * math.comb(n - 1, (n - 1) // 2), 2**n)
        expected = [
            math.comb(n, k) * (middle * math.comb(half, (k - 1) // 2) / math.comb(n - 1, k - 1)) ** 2 if k % 2 else 0
            for k in range(n + 1)
        ]
        assert functions.majority.level_weights(n) == pytest.approx([float(w) for w in expected], rel=1e-12)


def test_level_weights_of_long_functions_agree_with_their_other_answers() -> None:
    for function in (
        functions.majority(1024),
        functions.conjunction(60),
        functions.tribes(8, 20),
        functions.address(6),
        functions.recursive_majority(4),
    ):
        weights = function.level_weights()
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert weights @ np.arange(function.n + 1) == pytest.approx(function.average_sensitivity(), rel=1e-9)
        assert weights @ 0.8 ** np.arange(function.n + 1) == pytest.approx(function.noise_stability(0.8), abs=1e-12)


def test_recursive_majority_follows_the_map_of_one_node() -> None:
    # Maj3 has weight 3/4 at degree 1 and 1/4 at degree 3 (Li and Mossel 2025).
    expected = 0.9
    for depth in (1, 2, 3, 4):
        expected = 0.75 * expected + 0.25 * expected**3
        assert functions.recursive_majority.noise_stability(depth, 0.9) == pytest.approx(expected, abs=1e-15)


def test_another_library_agrees() -> None:
    for ours, theirs in (
        (functions.majority(5), boofun.majority(5)),
        (functions.parity(4), boofun.parity(4)),
        (functions.conjunction(3), boofun.AND(3)),
        (functions.disjunction(4), boofun.OR(4)),
        (functions.first(4), boofun.dictator(4, 0)),
        (functions.tribes(2, 3), boofun.tribes(2, 6)),
    ):
        assert ours.average_sensitivity() == pytest.approx(float(theirs.total_influence()), abs=1e-9)
        assert ours.influences() == pytest.approx(np.asarray(theirs.influences(), dtype=float), abs=1e-9)
        assert ours.noise_stability(0.6) == pytest.approx(float(theirs.noise_stability(0.6)), abs=1e-9)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: functions.parity(0), "n=0 is not a whole number"),
        (lambda: functions.majority(2.5), "n=2.5 is not a whole number"),
        (lambda: functions.mean(True), "n=True is not a whole number"),
        (lambda: functions.first("3"), "n='3' is not a whole number"),
        (lambda: functions.parity(), "missing a required argument: 'n'"),
        (lambda: functions.parity.average_sensitivity(3, 4), "too many positional arguments"),
        (lambda: functions.parity.noise_stability(), "needs rho"),
        (lambda: functions.tribes(0, 3), "width=0"),
        (lambda: functions.random_function(25), "above 20"),
        (lambda: functions.random_function(3, seed=-1), "seed=-1"),
        (lambda: functions.truth_table([1, -1, 1]), "not one of 2\\^n"),
        (lambda: functions.truth_table([1]), "not one of 2\\^n"),
        (lambda: functions.truth_table([1, 2]), "values in \\[-1, 1\\]"),
        (lambda: functions.truth_table([[1, -1], [1, 1]]), "one row"),
        (lambda: functions.truth_table("ab"), "not a list of numbers"),
        (lambda: functions.sparse_parity([0, 0]), "twice"),
        (lambda: functions.sparse_parity([5], 3), "too short"),
        (lambda: functions.sparse_parity([0], "3"), "n='3'"),
        (lambda: functions.sparse_parity(3), "not a list of coordinates"),
        (lambda: functions.sparse_parity([-1]), "coordinate=-1"),
        (lambda: functions.junta([0], [1, 1, 1, -1]), "does not fit"),
        (lambda: functions.linear_threshold([]), "at least one finite number"),
        (lambda: functions.linear_threshold([math.inf]), "at least one finite number"),
        (lambda: functions.linear_threshold([1], math.nan), "theta=nan"),
        (lambda: functions.dnf([{0: 2}]), "a literal is"),
        (lambda: functions.dnf([3]), "not a list of mappings"),
        (lambda: functions.decision_tree((0, 1)), "neither a leaf"),
        (lambda: functions.parity(4).noise_stability(2.0), "rho=2.0"),
        (lambda: functions.parity.noise_stability(4, "a"), "rho='a'"),
        (lambda: functions.parity(4).noise_stability(math.nan), "rho=nan"),
        (lambda: functions.hidden_weighted_bit(25).level_weights(), "no closed form"),
        (lambda: functions.parity(4)(torch.ones(2, 5)), "takes points \\(batch, 4\\)"),
        (lambda: functions.parity(4)(torch.ones(4)), "takes points \\(batch, 4\\)"),
        (lambda: functions.parity(4)(np.ones((2, 4))), "takes a torch tensor"),
        (lambda: functions.parity(2)(torch.tensor([[0, 1]])), "points of -1 and \\+1"),
    ],
)
def test_a_wrong_argument_is_named_in_the_error(make: Callable[[], object], said: str) -> None:
    with pytest.raises(mp.ArgumentError, match=said):
        make()


@pytest.mark.parametrize("function", MEMBERS, ids=repr)
def test_an_empty_batch_has_an_empty_answer_and_no_input_is_changed(function: functions.BooleanFunction) -> None:
    assert function(torch.ones(0, function.n)).shape == (0,)
    points = torch.ones(2, function.n, dtype=torch.float64)
    function(points).fill_(7)
    assert bool((points == 1).all())


def test_numpy_integers_are_sizes_and_descriptions_have_answers_too() -> None:
    assert functions.parity(np.int64(3)).average_sensitivity() == 3
    assert functions.sparse_parity.average_sensitivity([0, 3], 5) == 2
    assert functions.sparse_parity.noise_stability([0, 3], 5, 0.5) == 0.25
    assert functions.linear_threshold.influences([2, 0, 0]) == pytest.approx([1, 0, 0])


def test_a_long_description_does_not_fill_an_error() -> None:
    table = functions.truth_table(np.ones(2**10))
    with pytest.raises(mp.ArgumentError) as caught:
        table(torch.ones(1, 3))
    assert len(str(caught.value)) < 200


def test_any_dtype_of_points_is_taken() -> None:
    points = mp.BooleanCube(5).exhaustive()
    for dtype in (torch.int8, torch.int64, torch.float32, torch.float64):
        assert torch.equal(
            functions.majority(5)(points.to(dtype)).double(), torch.where(points.sum(1) > 0, 1.0, -1.0).double()
        )
