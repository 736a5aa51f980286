"""The exact Walsh spectrum of a subject on the cube, and level weights on any enumerable product domain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, Domain
from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.functions.walsh import level_weights as walsh_level_weights
from modelprops.functions.walsh import walsh_hadamard
from modelprops.properties.tables import table_of
from modelprops.subject import Subject, as_subject

LARGEST = 24
_ROWS_AT_ONCE = 2**14


@dataclass(frozen=True)
class Spectrum:
    """Walsh coefficients f^(S) = E f(x) prod_{i in S} x_i; index S is a bit mask, bit i = coordinate i.

    Exact. f = sum_S f^(S) chi_S, sum f^(S)^2 = E f^2, and average sensitivity is sum |S| f^(S)^2.
    """

    n: int
    coefficients: Array

    @property
    def level_weights(self) -> Array:
        """W^j = sum over |S| = j of f^(S)^2, for j = 0..n."""
        return walsh_level_weights(self.coefficients)

    @property
    def average_sensitivity(self) -> float:
        """sum_j j W^j, equal to the average over inputs of the flip sensitivity."""
        return float(self.level_weights @ np.arange(self.n + 1))

    def heaviest(self, k: int = 10) -> list[tuple[int, float]]:
        """The k largest coefficients in absolute value as (mask, coefficient), largest first, ties by mask."""
        k = min(k, len(self.coefficients))
        size = np.abs(self.coefficients)
        chosen = np.argpartition(-size, k - 1)[:k] if k else np.array([], dtype=int)
        order = sorted((int(mask) for mask in chosen), key=lambda mask: (-round(float(size[mask]), 12), mask))
        return [(mask, float(self.coefficients[mask])) for mask in order]

    @staticmethod
    def members(mask: int) -> tuple[int, ...]:
        """The coordinates of a mask, in rising order."""
        return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def fourier_spectrum(subject: Any, *, domain: Domain | None = None) -> Spectrum:
    """Walsh spectrum of a scalar subject on `BooleanCube(n)`, n <= 24: 2^n evaluations, at most 3 tables in memory.

    Guarantee: exact. Raises `ArgumentError` for n > 24 (see `heavy_coefficients`), another domain or a vector readout.
    Source: O'Donnell, Analysis of Boolean Functions, 1.2-1.4; Hahn and Rofin 2024 (spec A.2).
    """
    target = as_subject(subject, domain)
    cube = target.domain
    if not isinstance(cube, BooleanCube):
        raise ArgumentError(
            f"the Walsh spectrum lives on mp.BooleanCube(n), not {type(cube).__name__}; for level weights on tokens "
            "use spectral_tail"
        )
    if cube.n > LARGEST:
        raise ArgumentError(
            f"n={cube.n} is above {LARGEST}: 2^{cube.n} values do not fit; heavy_coefficients finds the large ones"
        )
    if target.outputs != 1:
        raise ArgumentError(f"the readout has {target.outputs} outputs; choose one, such as readout=('logit', 0)")
    table = np.empty(2**cube.n)
    with target.steady():
        for start in range(0, len(table), _ROWS_AT_ONCE):
            rows = torch.arange(start, min(start + _ROWS_AT_ONCE, len(table)))
            table[start : start + len(rows)] = target(cube.points_of(rows)).numpy()
    return Spectrum(cube.n, walsh_hadamard(table))


def level_weights_of(subject: Subject) -> tuple[Array, int]:
    """Return level weights W^0..W^n summed over outputs, and the evaluations spent, by enumeration.

    On the cube by the Walsh transform; on other product domains by splitting each axis into mean and remainder
    (Efron-Stein): f_{=j} is the part with exactly j remainders.
    """
    table = table_of(subject)
    count = len(table.levels)
    if isinstance(subject.domain, BooleanCube):
        columns = [walsh_level_weights(walsh_hadamard(column.copy())) for column in table.values.T]
        return np.sum(columns, axis=0), len(table.values)
    parts = [table.grid()]
    for axis in range(count):
        zero = np.zeros_like(parts[0])
        means = [zero + part.mean(axis=axis, keepdims=True) for part in parts]
        rests = [part - mean for part, mean in zip(parts, means, strict=True)]
        parts = [kept + moved for kept, moved in zip([*means, zero], [zero, *rests], strict=True)]
    points = math.prod(table.levels)
    return np.array([float((part**2).sum()) / points for part in parts]), len(table.values)
