"""Recursive majority of three against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from modelprops.errors import ArgumentError
from modelprops.theory.majority import majority_map, recursive_majority_stability
from modelprops.theory.resampling import Resampling


def enumerated(depth: int, rho: float) -> float:
    """Stab by the Fourier transform of the whole table."""
    n = 3**depth
    cube = np.array(list(itertools.product([1, -1], repeat=n)))
    value = cube
    while value.shape[1] > 1:
        value = np.sign(value.reshape(len(cube), -1, 3).sum(2))
    table = value[:, 0].astype(float).reshape((2,) * n)
    for axis in range(n):
        even, odd = np.take(table, 0, axis), np.take(table, 1, axis)
        table = np.stack([(even + odd) / 2, (even - odd) / 2], axis)
    degrees = np.indices(table.shape).sum(0)
    return float((rho**degrees * table**2).sum())


@pytest.mark.parametrize("depth", [1, 2])
def test_the_recursion_is_the_enumerated_stability(depth: int) -> None:
    for rho in (0.2, 0.7, 0.95):
        stability = recursive_majority_stability(Resampling(keep=rho), depth)
        assert stability == pytest.approx(enumerated(depth, rho), rel=1e-12)


def test_stability_is_exponentially_small_in_depth() -> None:
    values = [recursive_majority_stability(Resampling(keep=0.5), depth) for depth in (20, 21)]
    assert values[1] / values[0] == pytest.approx(0.75, abs=1e-4)
    assert majority_map(1.0) == 1


def test_arguments_outside_the_definition_are_refused() -> None:
    with pytest.raises(ArgumentError, match="negative"):
        recursive_majority_stability(Resampling(keep=0.5), -1)
    with pytest.raises(ArgumentError, match="not a correlation"):
        majority_map(2.0)
