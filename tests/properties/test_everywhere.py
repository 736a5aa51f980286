"""Claims about every input: planted bugs are found and minimal, small domains are decided exactly."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import modelprops as mp
from modelprops import functions

sys.path.insert(0, str(Path(__file__).parent))
from planted import pattern


def violation(call: Any) -> mp.Verdict:
    with pytest.raises(mp.PropertyViolation) as caught:
        call()
    verdict: mp.Verdict = caught.value.verdict
    return verdict


def test_twenty_planted_bugs_are_found_and_their_counterexamples_are_minimal() -> None:
    for seed in range(20):
        n, k = 16 + 48 * seed // 19, 1 + seed % 6
        model = pattern(n, k, seed)
        verdict = violation(
            lambda model=model, n=n: mp.assert_agrees(model, model.right, domain=mp.BooleanCube(n), seed=0)
        )
        point = verdict.witness.point
        wrong = torch.sign(model(point[None])) != model.right(point[None])
        assert bool(wrong)
        for place in (point < 0).nonzero()[:, 0].tolist():
            mended = point.clone()
            mended[place] = 1
            assert torch.sign(model(mended[None])) == model.right(mended[None]), f"not minimal, bug {seed}"


def test_twenty_rare_bugs_are_found_with_a_twentieth_of_random_searchs_evaluations() -> None:
    # A pattern of 16 bits is met by a random input with probability 2^-16: 65,536 inputs on average.
    spent = []
    for seed in range(20):
        model = pattern(64, 16, seed, slope=0.05)
        verdict = violation(
            lambda model=model, seed=seed: mp.assert_agrees(model, model.right, domain=mp.BooleanCube(64), seed=seed)
        )
        spent.append(verdict.estimate.evaluations)
    assert statistics.median(spent) <= 2**16 / 20


def test_a_small_domain_is_decided_exactly() -> None:
    verdict = mp.assert_sensitivity_everywhere(functions.majority(9), 5, domain=mp.BooleanCube(9))
    # s(MAJORITY, x) is at most (n + 1) / 2, reached where the sum is 1 or -1.
    assert (verdict.estimate.method, verdict.estimate.value, verdict.estimate.samples) == ("exact", 5.0, 2**9)
    failed = violation(lambda: mp.assert_sensitivity_everywhere(functions.majority(9), 4.9, domain=mp.BooleanCube(9)))
    assert int((failed.witness.point < 0).sum()) == 4, "the fewest -1s with a majority of one"


@pytest.mark.parametrize("n", [10, 40])
def test_a_failing_parity_shrinks_to_all_plus_one_and_flip_zero(n: int) -> None:
    verdict = violation(lambda: mp.assert_sensitivity_everywhere(functions.parity(n), 2, domain=mp.BooleanCube(n)))
    assert verdict.witness.point.tolist() == [1] * n
    assert verdict.witness.coordinate == 0
    assert verdict.estimate.value == n


def test_a_pass_by_search_says_that_it_is_no_proof() -> None:
    verdict = mp.assert_sensitivity_everywhere(functions.first(40), 1, domain=mp.BooleanCube(40), budget=5000)
    assert verdict.outcome == "pass"
    assert verdict.estimate.high == float("inf")
    assert verdict.estimate.guarantee == "one-sided bound"
    assert "absence is not proof" in verdict.hint
    assert f"{verdict.estimate.samples:,}" in verdict.hint
    assert verdict.estimate.evaluations <= 5000


def test_the_largest_jump_of_a_linear_function_is_twice_its_largest_weight() -> None:
    weights = torch.tensor([0.5, -3.0, 1.0, 0.25] + [0.1] * 26)

    def linear(x: torch.Tensor) -> torch.Tensor:
        return x @ weights

    domain = mp.BooleanCube(30)
    assert mp.assert_stable_everywhere(linear, 6.0001, domain=domain, budget=4_000).outcome == "pass"
    failed = violation(lambda: mp.assert_stable_everywhere(linear, 5.9, domain=domain))
    assert failed.witness.coordinate == 1
    assert failed.estimate.value == pytest.approx(6.0, abs=1e-4)


def test_two_models_that_differ_at_one_input_are_told_apart() -> None:
    domain = mp.BooleanCube(8)
    odd = torch.tensor([1, -1, 1, 1, -1, 1, 1, 1], dtype=torch.int8)

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) + 1e-3 * (x == odd).all(1)

    assert mp.assert_same_function(lambda x: x.sum(1), lambda x: x.flip(1).sum(1), domain=domain).outcome == "pass"
    failed = violation(lambda: mp.assert_same_function(lambda x: x.sum(1), other, domain=domain))
    assert torch.equal(failed.witness.point, odd)


def test_a_real_reference_is_compared_within_atol() -> None:
    domain = mp.BooleanCube(6)
    mean = functions.mean(6)
    assert mp.assert_agrees(lambda x: x.sum(1) / 6 + 0.01, mean, domain=domain, atol=0.02).outcome == "pass"
    violation(lambda: mp.assert_agrees(lambda x: x.sum(1) / 6 + 0.03, mean, domain=domain, atol=0.02))


def test_token_counterexamples_have_the_lowest_ids() -> None:
    domain = mp.Tokens(30, 6)

    def reference(ids: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(ids))

    def model(ids: torch.Tensor) -> torch.Tensor:
        return 1 - 2.0 * (ids[:, 2] >= 7)

    point = violation(lambda: mp.assert_agrees(model, reference, domain=domain, seed=1)).witness.point
    assert point[[0, 1, 3, 4, 5]].tolist() == [0] * 5
    assert int(point[2]) >= 7


def test_the_same_seed_gives_the_same_search() -> None:
    model = pattern(40, 9, 5)
    runs = [
        violation(lambda: mp.assert_agrees(model, model.right, domain=mp.BooleanCube(40), seed=3)) for _ in range(2)
    ]
    assert torch.equal(runs[0].witness.point, runs[1].witness.point)
    assert runs[0].estimate.evaluations == runs[1].estimate.evaluations


WRONG: list[tuple[Any, str]] = [
    (lambda: mp.assert_sensitivity_everywhere(functions.first(4), -1, domain=mp.BooleanCube(4)), "at_most"),
    (lambda: mp.assert_agrees(functions.first(4), lambda x: 3, domain=mp.BooleanCube(4)), "reference"),  # type: ignore[arg-type,return-value]  # wrong on purpose
    (lambda: mp.assert_same_function(functions.first(4), lambda x: x, domain=mp.BooleanCube(4)), "shapes"),
    (lambda: mp.assert_agrees(functions.first(4), functions.first(4), domain=mp.BooleanCube(4), budget=0), "budget"),
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_argument_is_named(call: Any, says: str) -> None:
    with pytest.raises(mp.ArgumentError, match=says):
        call()
