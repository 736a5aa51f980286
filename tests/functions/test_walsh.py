"""The Walsh transform against a plain butterfly, Parseval, popcounts and its limit of memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import modelprops as mp
from modelprops.functions import level_weights, walsh_hadamard


def butterfly(table: np.ndarray) -> np.ndarray:
    values, step = table.copy(), 1
    while step < len(values):
        pairs = values.reshape(-1, 2, step)
        upper = pairs[:, 0].copy()
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = upper - pairs[:, 1]
        step *= 2
    return values / len(values)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 6, 7, 14, 15, 16, 17, 19])
def test_the_transform_equals_a_plain_butterfly_and_keeps_its_input(n: int) -> None:
    table = np.random.default_rng(n).normal(size=2**n)
    before = table.copy()
    coefficients = walsh_hadamard(table)
    assert np.allclose(coefficients, butterfly(table), atol=1e-13)
    assert np.array_equal(table, before)
    assert (coefficients**2).sum() == pytest.approx((table**2).mean(), rel=1e-12)


@pytest.mark.parametrize("n", [0, 1, 6, 15, 16, 18])
def test_level_weights_are_sums_by_popcount(n: int) -> None:
    coefficients = np.random.default_rng(n).normal(size=2**n)
    expected = np.bincount([mask.bit_count() for mask in range(2**n)], coefficients**2)
    assert level_weights(coefficients) == pytest.approx(expected, rel=1e-12)


def test_average_sensitivity_is_the_mean_degree_of_the_spectrum() -> None:
    n = 10
    table = np.random.default_rng(0).choice([-1.0, 1.0], size=2**n)
    rows = np.arange(2**n)
    flips = sum((table != table[rows ^ (1 << i)]).mean() for i in range(n))
    assert level_weights(walsh_hadamard(table)) @ np.arange(n + 1) == pytest.approx(flips, abs=1e-12)


def test_table_coefficients_and_level_weights_stay_within_three_tables_of_memory() -> None:
    size = 2**20
    tracemalloc.start()
    try:
        table = np.random.default_rng(0).normal(size=size)
        level_weights(walsh_hadamard(table))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * table.nbytes


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 4), ()])
def test_what_is_not_a_row_of_a_power_of_two_is_refused(shape: tuple[int, ...]) -> None:
    for transform in (walsh_hadamard, level_weights):
        with pytest.raises(mp.ArgumentError, match="2\\^n"):
            transform(np.ones(shape))
