"""Metamorphic claims on functions of which they are known to hold or to fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import modelprops as mp
from modelprops import functions, metamorphic
from modelprops.settings import Run, running
from modelprops.strategies import boolean_batches, gaussian_inputs, token_inputs

QUICK = settings(database=None, deadline=None, derandomize=True, max_examples=30)
CUBE = mp.BooleanCube(7)


@QUICK
@given(boolean_batches(7, size=8), st.permutations(range(7)))
def test_majority_is_odd_and_symmetric(points: torch.Tensor, order: list[int]) -> None:
    majority = mp.Subject(functions.majority(7), CUBE, "sign")
    metamorphic.assert_negation(majority, points, sign=-1)
    metamorphic.assert_permutation(majority, points, order)


@QUICK
@given(boolean_batches(6, size=8))
def test_a_parity_of_even_length_is_even(points: torch.Tensor) -> None:
    metamorphic.assert_negation(functions.parity(6), points, sign=1, domain=mp.BooleanCube(6))


@QUICK
@given(gaussian_inputs((3, 2)))
def test_a_sum_of_cubes_is_odd_on_real_inputs(point: torch.Tensor) -> None:
    metamorphic.assert_negation(lambda x: (x**3).sum((1, 2)), point, domain=mp.Gaussian((3, 2)))


def test_the_failure_names_the_smallest_pair() -> None:
    # A conjunction is -1 at (-1, -1) only: f(-x) = -f(x) fails at (+1, -1) and (-1, +1).
    points = torch.tensor([[1, 1], [-1, 1], [1, -1]], dtype=torch.int8)
    with pytest.raises(mp.PropertyViolation) as caught:
        metamorphic.assert_negation(functions.conjunction(2), points, domain=mp.BooleanCube(2))
    witness = caught.value.verdict.witness
    assert witness is not None
    assert witness.point.tolist() == [-1, 1]
    assert witness.partner.tolist() == [1, -1]
    text = str(caught.value)
    assert "f(-x) = -f(x)" in text
    assert "f gave 1 at point and 1 at partner" in text


def test_hypothesis_shrinks_the_failing_batch() -> None:
    subject = mp.Subject(functions.first(9), mp.BooleanCube(9), name="first")

    @settings(QUICK, max_examples=200, print_blob=False)
    @given(boolean_batches(9, size=4))
    def claim(points: torch.Tensor) -> None:
        metamorphic.assert_permutation(subject, points, [*range(1, 9), 0])

    with pytest.raises(mp.PropertyViolation) as caught:
        claim()
    # One -1 in first place or second, whichever moved: no simpler input tells the two apart.
    assert int((caught.value.verdict.witness.point < 0).sum()) == 1


def test_padding_that_the_model_ignores_passes_and_padding_that_it_counts_fails() -> None:
    domain = mp.Tokens(6, 4, exclude=(0,))
    ids = torch.tensor([[1, 2, 3, 4], [5, 5, 1, 1]])
    masked = mp.Subject(lambda x: (x * (x > 0)).sum(1).double() / (x > 0).sum(1), domain, name="masked mean")
    metamorphic.assert_padding(masked, ids, token=0, count=3)
    metamorphic.assert_padding(masked, ids, token=0, side="left")
    with pytest.raises(mp.PropertyViolation, match="pad = 1 x 0"):
        metamorphic.assert_padding(mp.Subject(lambda x: x.double().mean(1), domain), ids, token=0)


@QUICK
@given(token_inputs(mp.Tokens(9, 5)), st.integers(1, 4))
def test_running_sums_are_causal_and_centred_ones_are_not(ids: torch.Tensor, length: int) -> None:
    domain = mp.Tokens(9, 5)
    metamorphic.assert_prefix(lambda x: x.double().cumsum(1), ids, length, domain=domain)
    if int(ids[-1]) != 0:
        with pytest.raises(mp.PropertyViolation):
            metamorphic.assert_prefix(
                lambda x: x.double().cumsum(1) - x.double().sum(1, True), ids, length, domain=domain
            )


def test_one_pass_an_example_and_one_verdict_a_test() -> None:
    passes: list[int] = []

    def majority(x: torch.Tensor) -> torch.Tensor:
        passes.append(len(x))
        return x.sum(1)

    subject = mp.Subject(majority, CUBE, "sign")
    subject.probe()
    passes.clear()
    run = Run()

    @settings(QUICK, max_examples=20)
    @given(boolean_batches(7, size=8))
    def claim(points: torch.Tensor) -> None:
        metamorphic.assert_negation(subject, points)

    with running(run):
        claim()
    assert passes == [16] * len(passes)
    (verdict,) = run.verdicts
    assert verdict.outcome == "pass"
    assert verdict.estimate.evaluations == sum(passes)
    assert verdict.estimate.samples == 8 * len(passes)


def test_the_recorded_verdict_is_the_shrunk_failure() -> None:
    run = Run()

    @settings(QUICK, print_blob=False)
    @given(boolean_batches(5, size=3))
    def claim(points: torch.Tensor) -> None:
        metamorphic.assert_negation(functions.conjunction(5), points, domain=mp.BooleanCube(5))

    with running(run), pytest.raises(mp.PropertyViolation):
        claim()
    (verdict,) = run.verdicts
    assert verdict.outcome == "fail"
    # f(1..1) = 1 and f(-1..-1) = -1 obey the claim, so the smallest failing x has one -1.
    assert int((verdict.witness.point < 0).sum()) == 1


def test_rounding_at_a_tie_of_a_sign_is_no_violation() -> None:
    subject = mp.Subject(lambda x: x.sum(1) * 0, mp.BooleanCube(4), "sign", name="always tied")
    metamorphic.assert_negation(subject, torch.ones(4, dtype=torch.int8))


POINTS = torch.ones(2, 7, dtype=torch.int8)
IDS = torch.ones(2, 3, dtype=torch.long)
TOKENS = mp.Tokens(5, 3, frozen={0: 1})
WRONG: list[tuple[Any, str]] = [
    (lambda: metamorphic.assert_negation(functions.parity(7), POINTS, sign=2, domain=CUBE), "sign=2"),
    (lambda: metamorphic.assert_negation(lambda x: x.sum(1), IDS, domain=TOKENS), "no negative"),
    (lambda: metamorphic.assert_negation(functions.parity(7), POINTS[None], domain=CUBE), r"shape \(1, 2, 7\)"),
    (lambda: metamorphic.assert_negation(functions.parity(7), POINTS[:0], domain=CUBE), "nonempty"),
    (lambda: metamorphic.assert_negation(functions.parity(7), [1] * 7, domain=CUBE), "not a tensor"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: metamorphic.assert_negation(functions.parity(7), POINTS), "pass domain="),
    (lambda: metamorphic.assert_negation(functions.parity(7), POINTS, domain=CUBE, atol=-1), "atol"),
    (lambda: metamorphic.assert_permutation(functions.parity(7), POINTS, [0, 1], domain=CUBE), "not a permutation"),
    (lambda: metamorphic.assert_permutation(lambda x: x.sum(1), IDS, [1, 0, 2], domain=TOKENS), "frozen"),
    (lambda: metamorphic.assert_padding(lambda x: x.sum(1), IDS, token=0, count=0, domain=TOKENS), "at least 1"),
    (lambda: metamorphic.assert_padding(lambda x: x.sum(1), IDS, token=0, side="top", domain=TOKENS), "top"),
    (lambda: metamorphic.assert_prefix(lambda x: x.sum(1), IDS, 3, domain=TOKENS), "length=3"),
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_argument_is_named(call: Any, says: str) -> None:
    with pytest.raises(mp.ArgumentError, match=says):
        call()
