"""Measures what no claim speaks of, so that a first run shows numbers to choose thresholds from. Asserts nothing."""

from __future__ import annotations

import pytest

import modelprops as mp

MEASURES = ("average_sensitivity", "noise_stability(rho=0.9)", "sharpness(radius=0.1)")


def test_measure(subject: mp.Subject, modelprops_measure: str) -> None:
    """Record the measure with its interval; the verdict is `measured`."""
    try:
        mp.claim(modelprops_measure).check(subject, budget=50_000)
    except mp.NoParametersError as error:
        pytest.skip(str(error))
