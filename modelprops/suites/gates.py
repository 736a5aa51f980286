"""The gate: one test for each measurement of a baseline (`--modelprops-compare`) and each rule that speaks of it."""

from __future__ import annotations

import modelprops as mp
from modelprops.paired import Comparison
from modelprops.regression import required_all, verdict_on


def test_not_regressed(subject: mp.Subject, modelprops_gate: Comparison) -> None:
    """The configured model is not worse than the baseline by more than the rule allows."""
    required_all([verdict_on(subject, modelprops_gate)])
