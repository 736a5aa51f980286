"""Small projects that the plugin's tests run as a user would."""

from __future__ import annotations

import numpy as np  # noqa: F401
import pytest
import scipy.optimize  # noqa: F401
import torch  # noqa: F401  pytester forgets modules that a run imported, and torch cannot be imported twice

import modelprops.properties.claim  # noqa: F401

PARITY = """
import pytest
import modelprops as mp

@pytest.fixture(scope="session")
def subject():
    return mp.Subject(lambda x: x.prod(1), mp.BooleanCube(20), readout="sign", name="parity")
"""


@pytest.fixture
def parity_project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose `subject` is PARITY on 20 bits: average sensitivity 20, stability rho^20."""
    pytester.makeconftest(PARITY)
    return pytester
