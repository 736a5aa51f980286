"""Claims without code: one test for each of `--modelprops-claim`, the ini key `modelprops_claims` or a demo's card."""

from __future__ import annotations

import modelprops as mp


def test_claim(subject: mp.Subject, modelprops_claim: str) -> None:
    """The claim holds for the configured model."""
    mp.claim(modelprops_claim).require(subject)
