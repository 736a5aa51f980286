"""The fast Walsh-Hadamard transform and level weights.

A table over {-1, +1}^n has 2^n entries; in entry r coordinate i is -1 where bit i of r is set. Coefficient S of the
transform is E f(x) prod_{i in S} x_i with S a bit mask, bit i = coordinate i.
"""

from __future__ import annotations

import numpy as np

from modelprops.errors import ArgumentError
from modelprops.estimate import Array

_FIRST_LEVELS = 6
_BLOCK = 2**15


def walsh_hadamard(table: Array) -> Array:
    """Return the Walsh coefficients (2^-n sum_x f(x) chi_S(x))_S of a real table of shape (2^n,); it is left as it was.

    Exact up to rounding, n 2^n additions. The lowest six levels are one product with the 64 x 64 Hadamard matrix; the
    next ones are done block by block in the cache, so that the table passes through memory a few times only. Memory:
    the result and a few blocks. Raises `ArgumentError` for a table that is not one row of 2^n entries.
    """
    values = np.asarray(table, dtype=np.float64)
    n, size = _dimension(values), len(values)
    first = min(_FIRST_LEVELS, n)
    values = (values.reshape(-1, 1 << first) @ (_hadamard(first) / size)).reshape(-1)
    block = min(_BLOCK, size)
    scratch = np.empty(block // 2)
    for start in range(0, size, block):
        _butterflies(values[start : start + block], 1 << first, scratch)
    if size > block:
        # Above a block, columns of entries that stand a block apart are independent: take them a strip at a time.
        columns = values.reshape(-1, block)
        width = max(64, block // len(columns))
        for left in range(0, block, width):
            strip = np.ascontiguousarray(columns[:, left : left + width])
            _butterflies(strip.reshape(-1), strip.shape[1], np.empty(strip.size // 2))
            columns[:, left : left + width] = strip
    return values


def _butterflies(values: Array, step: int, scratch: Array) -> None:
    """In place: all levels whose pairs stand `step`, 2 `step`, ... apart."""
    while step < len(values):
        pairs = values.reshape(-1, 2, step)
        upper, lower = pairs[:, 0], pairs[:, 1]
        difference = np.subtract(upper, lower, out=scratch.reshape(upper.shape))
        upper += lower
        lower[...] = difference
        step *= 2


def level_weights(coefficients: Array) -> Array:
    """Return W^0..W^n: the squared coefficients summed by the number of coordinates in their mask.

    The coefficients are taken a block at a time, so that no second table is needed.
    """
    values = np.asarray(coefficients, dtype=np.float64)
    n = _dimension(values)
    block = min(_BLOCK, len(values))
    weights = np.zeros(n + 1)
    for number, start in enumerate(range(0, len(values), block)):
        within = _by_popcount(values[start : start + block] ** 2)
        above = number.bit_count()
        weights[above : above + len(within)] += within
    return weights


def _by_popcount(squares: Array) -> Array:
    """Sums by the number of set bits: each fold moves the top bit of the index into the row number."""
    sums = squares.reshape(1, -1)
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        folded = np.zeros((sums.shape[0] + 1, half))
        folded[:-1] += sums[:, :half]
        folded[1:] += sums[:, half:]
        sums = folded
    return sums[:, 0]


def _dimension(table: Array) -> int:
    size = len(table) if table.ndim == 1 else 0
    if size == 0 or size & (size - 1):
        raise ArgumentError(f"a table of shape {table.shape} is not one of 2^n entries; give all 2^n values in one row")
    return size.bit_length() - 1


def _hadamard(levels: int) -> Array:
    matrix = np.ones((1, 1))
    for _ in range(levels):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
