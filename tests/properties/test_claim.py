"""Claims: built from parts or text, refused with the reason, recorded as JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops import functions
from modelprops.claimtext import parse_call, parse_claim
from modelprops.estimate import Estimate, Verdict, Witness
from modelprops.settings import Run, running

PARITY = mp.Subject(functions.parity(3), mp.BooleanCube(3))


def test_text_and_parts_build_the_same_claim() -> None:
    assert str(mp.claim("noise_stability(rho=0.9) >= 0.5")) == str(mp.claim(mp.noise_stability, ">=", 0.5, rho=0.9))
    parsed = parse_claim(" spectral_tail(degree=3, method='best')<=1e-2 ")
    assert (parsed.measure, parsed.comparison, parsed.threshold) == ("spectral_tail", "<=", 0.01)
    assert parsed.parameters == {"degree": 3, "method": "best"}
    assert parse_call("Tokens(50257, 64)").arguments == (50257, 64)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("average_sensitivity < 2", 20),
        ("average_sensitivity <= two", 23),
        ("average_sensitivity(n) <= 2", 20),
        ("__import__('os').system('true') <= 2", 0),
        ("noise_stability(rho=0.9) >= 0.5 >= 0.1", 32),
        ("noise_stability(rho=open('x')) >= 0.5", 20),
        ("average_sensitivity <= 2 2", 25),
    ],
)
def test_an_error_points_at_the_character(text: str, at: int) -> None:
    with pytest.raises(mp.ArgumentError) as caught:
        parse_claim(text)
    lines = str(caught.value).splitlines()
    assert lines[-2].strip() == text
    assert lines[-1].index("^") - 2 == at


@pytest.mark.parametrize(
    "text", ["", " ", "<= 2", "(" * 500, "x" * 10**5 + " <= ", "é <= 2", "average_sensitivity <= 1e999"]
)
def test_nonsense_is_an_argument_error(text: str) -> None:
    with pytest.raises(mp.ArgumentError):
        mp.claim(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mp.claim("average_sensivity <= 2"),
        lambda: mp.claim("average_sensitivity(colour=1) <= 2"),
        lambda: mp.claim("noise_stability >= 2", tolerance=-1.0),
        lambda: mp.claim(mp.average_sensitivity, "=", 2),
        lambda: mp.claim(mp.average_sensitivity, "<="),
        lambda: mp.claim(mp.average_sensitivity, "<=", float("nan")),
        lambda: mp.claim("average_sensitivity <= 2", "<=", 2),
        lambda: mp.claim(functions.parity, "<=", 2),
        lambda: mp.claim("average_sensitivity <= 2").check(
            functions.parity(3), domain=mp.BooleanCube(3), confidence=1.0
        ),
        lambda: mp.claim("average_sensitivity <= 2").check(functions.parity(3), domain=mp.BooleanCube(3), budget=0),
        lambda: mp.claim("average_sensitivity <= 2").check(functions.parity(3), domain=mp.BooleanCube(3), exact="yes"),
        lambda: mp.claim("average_sensitivity <= 2").check(functions.parity(3)),
    ],
)
def test_a_wrong_claim_is_refused(make: object) -> None:
    with pytest.raises(mp.ArgumentError):
        make()  # type: ignore[operator]


def test_a_claim_without_a_threshold_measures() -> None:
    verdict = mp.claim("average_sensitivity").check(functions.parity(4), domain=mp.BooleanCube(4))
    assert verdict.outcome == "measured"
    assert verdict.threshold is None


def test_an_exhausted_budget_is_inconclusive_and_says_what_to_do() -> None:
    with pytest.raises(mp.Inconclusive, match="raise budget=") as caught:
        mp.assert_low_sensitivity(
            functions.majority(25), 4.02, domain=mp.BooleanCube(25), tolerance=0, budget=500, exact=False
        )
    assert caught.value.verdict.outcome == "inconclusive"


def test_a_verdict_survives_json() -> None:
    verdict = mp.claim("average_sensitivity <= 2").check(functions.parity(5), domain=mp.BooleanCube(5))
    again = Verdict.from_dict(json.loads(json.dumps(verdict.to_dict())))
    assert torch.equal(again.witness.point, verdict.witness.point)
    assert again.estimate == verdict.estimate
    assert str(again) == str(verdict)


def test_vectors_and_infinities_survive_json() -> None:
    value = np.array([1.0, math.inf])
    estimate = Estimate("m", value, value - 1, value + 1, 0.99, 5, 10, "fixed", 1, 0.5, details={"x": np.float64(2)})
    again = Estimate.from_dict(json.loads(json.dumps(estimate.to_dict())))
    assert np.array_equal(again.value, value)
    assert again.details["x"] == 2.0
    infinite = Estimate("m", 1.0, -math.inf, math.inf, 0.99, 5, 10, "fixed", 1, 0.5)
    assert Estimate.from_dict(json.loads(json.dumps(infinite.to_dict()))).high == math.inf


def test_the_repr_of_a_witness_rebuilds_it() -> None:
    witness = Witness(torch.tensor([1, -1], dtype=torch.int8), 1, None, 2.0, torch.tensor([math.inf, 0.5]))
    again = eval(repr(witness), {"mp": mp, "torch": torch})
    assert torch.equal(again.point, witness.point)
    assert torch.equal(again.partner, witness.partner)
    assert (again.coordinate, again.score) == (1, 2.0)


def test_the_reproducing_call_repeats_the_estimate() -> None:
    subject = mp.Subject(functions.majority(25), mp.BooleanCube(25))
    with running(Run()):  # outside a test there is no command line to repeat
        verdict = mp.claim("average_sensitivity <= 3").check(subject, seed=12)
        again = eval(verdict.reproduce, {"mp": mp, "subject": subject})
    assert again.estimate.value == verdict.estimate.value
    assert again.outcome == verdict.outcome


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(mp.ModelpropsError, match="rho is given twice"):
        mp.claim("noise_stability(rho=0.9, rho=0.8) >= 0.5")


def test_a_readout_given_to_an_assertion_or_measure_is_sent_to_the_subject() -> None:
    for function in (lambda **k: mp.assert_low_sensitivity(torch.sign, at_most=2, **k), mp.average_sensitivity):
        arguments = () if function is not mp.average_sensitivity else (torch.sign,)
        with pytest.raises(mp.ModelpropsError, match=r"mp\.Subject"):
            function(*arguments, domain=mp.BooleanCube(3), readout="sign")
