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
    """Return the Walsh coefficients (2^-n sum_x f(x) chi_S(x))_S; a contiguous float64 input may be overwritten.

    Exact up to rounding, n 2^n additions. The lowest six levels are one product with the 64 x 64 Hadamard matrix; the
    next ones are done block by block in the cache, so that the table passes through memory a few times only. At most
    one second table of memory.
    """
    values = np.ascontiguousarray(table, dtype=np.float64).reshape(-1)
    size = len(values)
    n = size.bit_length() - 1
    if size != 1 << n or size == 0:
        raise ArgumentError(f"a table of {size} entries is not one of 2^n; give all 2^n values")
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
    """Return W^0..W^n: the squared coefficients summed by the number of coordinates in their mask."""
    squares = np.asarray(coefficients, dtype=np.float64) ** 2
    n = len(squares).bit_length() - 1
    # Adding one coordinate at a time: the sums by popcount of the low bits, folded from the top bit down.
    weights = squares.reshape(1, -1)
    for _ in range(n):
        half = weights.shape[1] // 2
        folded = np.zeros((weights.shape[0] + 1, half))
        folded[:-1] += weights[:, :half]
        folded[1:] += weights[:, half:]
        weights = folded
    return weights[:, 0]


def _hadamard(levels: int) -> Array:
    matrix = np.ones((1, 1))
    for _ in range(levels):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
