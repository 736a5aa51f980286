"""What a project writes once: the model under test as a session-scoped fixture."""

from __future__ import annotations

import pytest

import modelprops as mp


@pytest.fixture(scope="session")
def subject() -> mp.Subject:
    """A Transformer trained on MAJORITY of 12 bits (shipped with the package); the sign of its output is the answer."""
    return mp.load("demo:majority")
