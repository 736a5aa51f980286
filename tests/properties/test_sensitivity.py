"""Average sensitivity: closed forms, units, error rates of the claim."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import modelprops as mp
from modelprops import functions


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (functions.parity(12), 12.0),
        (functions.first(9), 1.0),
        (functions.majority(11), 2.70703125),
        (functions.mean(10), 0.1),
    ],
)
def test_known_functions_have_their_closed_forms_exactly(function: torch.nn.Module, expected: float) -> None:
    found = mp.average_sensitivity(mp.Subject(function, mp.BooleanCube(function.n)))
    assert found.method == "exact"
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_a_0_1_model_has_a_quarter_of_its_pm1_form() -> None:
    plus = mp.average_sensitivity(functions.majority(7), domain=mp.BooleanCube(7)).value
    zero = mp.average_sensitivity(lambda x: (functions.majority(7)(x) + 1) / 2, domain=mp.BooleanCube(7)).value
    assert zero == pytest.approx(plus / 4)


def test_real_outputs_use_squares_and_a_quarter() -> None:
    table = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_hand = 0.0
    for row in range(8):
        by_hand += sum(float((table[row] - table[row ^ (1 << i)]) ** 2) / 4 for i in range(3)) / 8
    subject = mp.Subject(lambda x: table[((x < 0).long() * torch.tensor([1, 2, 4])).sum(1)], mp.BooleanCube(3))
    assert mp.average_sensitivity(subject).value == pytest.approx(by_hand)


def test_tokens_use_resampling_and_a_half() -> None:
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_hand = sum(
        float((table[a, b] - table[c, b]) ** 2 + (table[a, b] - table[a, c]) ** 2) / 2
        for a, b, c in itertools.product(range(4), repeat=3)
    ) / 64  # fmt: skip
    subject = mp.Subject(lambda x: table[x[:, 0], x[:, 1]], mp.Tokens(4, 2))
    assert mp.average_sensitivity(subject).value == pytest.approx(by_hand)


@pytest.mark.parametrize("neighbours", [1, 3, 8])
def test_sampling_some_of_the_neighbours_is_unbiased(neighbours: int) -> None:
    # Confidence 1 - 1e-7.
    function = functions.address(2)
    subject = mp.Subject(function, mp.BooleanCube(6))
    chosen = min(neighbours, 6)
    found = mp.average_sensitivity(subject, neighbours=chosen, exact=False, confidence=1 - 1e-7, budget=100_000, seed=0)
    assert found.low <= function.average_sensitivity() <= found.high
    assert found.evaluations == found.samples * (1 + chosen)


def test_relative_sensitivity_is_the_mean_degree() -> None:
    subject = mp.Subject(lambda x: 5 + 0.1 * x[:, :3].prod(1), mp.BooleanCube(6), range=(4, 6))
    assert mp.average_sensitivity(subject, relative=True).value == pytest.approx(3.0, rel=1e-5)
    sampled = mp.average_sensitivity(subject, relative=True, exact=False, confidence=1 - 1e-7, budget=400_000)
    assert sampled.low <= 3 <= sampled.high


def test_exact_and_sampled_agree_on_random_tables() -> None:
    """20 tables; each sampled interval misses with probability at most 1e-7."""
    for seed in range(20):
        subject = mp.Subject(functions.random_function(8, seed=seed), mp.BooleanCube(8))
        exact = mp.average_sensitivity(subject).value
        found = mp.average_sensitivity(subject, exact=False, confidence=1 - 1e-7, budget=20_000, seed=seed)
        assert found.low <= exact <= found.high


def test_the_verdict_does_not_depend_on_the_batch_size() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    texts = set()
    for size in (1, 7, 256, "auto"):
        subject = mp.Subject(module, mp.BooleanCube(24), "sign", batch_size=size)
        verdict = mp.claim("average_sensitivity <= 8").check(subject, exact=False, seed=5)
        texts.add((verdict.outcome, verdict.estimate.value, verdict.estimate.samples))
    assert len(texts) == 1


def test_at_the_boundary_without_tolerance_the_error_rate_holds() -> None:
    """as = .75 exactly, 2,000 seeds at confidence .95: at most 5% decided, plus 5 standard errors."""
    subject = mp.Subject(functions.junta([0, 1, 2], [1, 1, 1, 1, 1, 1, 1, -1], 8), mp.BooleanCube(8))
    claim = mp.claim("average_sensitivity <= 0.75", tolerance=0.0)
    decided = sum(
        claim.check(subject, exact=False, confidence=0.95, budget=1_400, seed=seed).outcome != "inconclusive"
        for seed in range(2000)
    )
    assert decided / 2000 <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / 2000)


def test_with_the_default_tolerance_every_run_ends_and_off_it_every_run_is_right() -> None:
    """At the threshold either verdict is true; at a gap of 20% each of 40 runs errs with probability below .005."""
    subject = mp.Subject(functions.junta([0, 1, 2], [1, 1, 1, 1, 1, 1, 1, -1], 8), mp.BooleanCube(8))
    at = [mp.claim("average_sensitivity <= 0.75").check(subject, exact=False, seed=seed).outcome for seed in range(20)]
    assert set(at) <= {"pass", "fail"}
    above = {mp.claim("average_sensitivity <= 0.625").check(subject, exact=False, seed=s).outcome for s in range(20)}
    below = {mp.claim("average_sensitivity <= 0.9").check(subject, exact=False, seed=s).outcome for s in range(20)}
    assert above == {"fail"}
    assert below == {"pass"}


def test_a_failure_says_everything_in_order_and_its_witness_is_minimal() -> None:
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_low_sensitivity(functions.parity(30), 2, domain=mp.BooleanCube(30), seed=1)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "violated", "measured", "spent", "worst found", "reproduce", "hint",
    ]  # fmt: skip
    verdict = caught.value.verdict
    assert verdict.witness.point.tolist() == [1] * 30
    assert verdict.witness.coordinate == 0
    assert verdict.witness.score == 30
    again = eval(repr(verdict.witness), {"mp": mp, "torch": torch})
    assert torch.equal(again.point, verdict.witness.point)


def test_an_unbounded_readout_says_that_its_interval_is_asymptotic() -> None:
    found = mp.average_sensitivity(lambda x: x.sum(1), domain=mp.BooleanCube(40), budget=10_000)
    assert found.guarantee == "asymptotic"
    assert found.value == pytest.approx(40.0)
    assert found.samples >= 64


def test_equality_passes_and_negative_or_unordered_thresholds_are_refused() -> None:
    assert mp.assert_low_sensitivity(functions.parity(5), 5, domain=mp.BooleanCube(5)).outcome == "pass"
    for wrong in (-1, float("nan"), float("inf"), "2", True):
        with pytest.raises(mp.ArgumentError, match="at_most="):
            mp.assert_low_sensitivity(functions.parity(5), wrong, domain=mp.BooleanCube(5))
