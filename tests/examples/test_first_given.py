"""A first property test of a trained model with Hypothesis. Run with `pytest --modelprops tests/examples`."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import modelprops as mp
from modelprops.strategies import boolean_batches


@given(boolean_batches(12, size=32), st.permutations(range(12)))
def test_the_order_of_the_votes_does_not_matter(subject: mp.Subject, votes: torch.Tensor, order: list[int]) -> None:
    mp.metamorphic.assert_permutation(subject, votes, order)
