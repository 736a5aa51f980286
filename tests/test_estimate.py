"""Estimates, verdicts and witnesses survive strict JSON, whatever numbers they hold."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import modelprops as mp


def through_json(record: Any) -> Any:
    """Rebuild from strict JSON, which has neither infinity nor NaN."""
    return type(record).from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False)))


def estimate(value: Any, low: Any, high: Any) -> mp.Estimate:
    return mp.Estimate("m", value, low, high, 0.99, 10, 20, "fixed", 0, 0.1)


@pytest.mark.parametrize(
    "numbers",
    [
        (1.5, -math.inf, math.inf),
        (math.nan, 0.0, 1.0),
        (np.array([1.0, math.nan]), np.array([0.0, -math.inf]), np.array([2.0, math.inf])),
        (np.zeros((2, 3)), np.zeros((2, 3)), np.ones((2, 3))),
        (np.array(1.0), np.array(0.0), np.array(2.0)),
    ],
    ids=["infinite", "nan", "vector", "matrix", "array of no dimension"],
)
def test_an_estimate_survives_json(numbers: tuple[Any, Any, Any]) -> None:
    back = through_json(estimate(*numbers))
    for found, given in zip((back.value, back.low, back.high), numbers, strict=True):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("number", [math.inf, -math.inf, 0.5])
def test_a_verdict_keeps_numbers_as_numbers(number: float) -> None:
    verdict = mp.Verdict("pass", "m <= 1", estimate(1.0, 0.0, 2.0), number, "<=", number, log_e=number)
    back = through_json(verdict)
    assert (back.threshold, back.tolerance, back.log_e) == (number, number, number)


def test_a_witness_with_infinite_entries_survives_json_and_its_repr() -> None:
    point = torch.tensor([1.0, math.inf, -math.inf, math.nan])
    witness = mp.Witness(point, coordinate=1, score=math.inf)
    for back in (through_json(witness), eval(repr(witness), {"mp": mp, "torch": torch})):
        assert torch.equal(back.point, point) or torch.allclose(back.point, point, equal_nan=True)
        assert back.score == math.inf
