"""What measured noise gaps say about level weights: a linear programme (scipy's HiGHS).

Unknowns are W^0, ..., W^n >= 0. A measured gap at correlation rho obeys sum_j (1 - rho^j) W^j = E D_rho, total
influence sum_j j W^j = I, and the second moment sum_j W^j = E f^2; each is known up to an interval. The largest and the
least tail W^{>=k} that fit are sound bounds whenever all the intervals hold at once, and never worse than a single one.

Source: Haris, Zhang and Yoshida 2026 (spec A8, A9, D5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from modelprops.estimate import Array

MOST_LEVELS = 512


@dataclass(frozen=True)
class Row:
    """low <= sum_j coefficients[j] W^j <= high.

    `least` and `greatest` are coefficients valid for the last level if that one stands for all higher levels too.
    """

    coefficients: Array
    low: float
    high: float
    least: float
    greatest: float


def gap_row(rho: float, levels: int, low: float, high: float) -> Row:
    """The row of a noise gap E D_rho = sum_j (1 - rho^j) W^j."""
    coefficients = 1.0 - np.power(float(rho), np.arange(levels + 1))
    last = float(coefficients[-1])
    return Row(coefficients, low, high, min(last, 1.0), max(last, 1.0))


def moment_row(levels: int, low: float, high: float) -> Row:
    """The row of the second moment E f^2 = sum_j W^j."""
    return Row(np.ones(levels + 1), low, high, 1.0, 1.0)


def influence_row(levels: int, low: float, high: float) -> Row:
    """The row of total influence I = sum_j j W^j."""
    return Row(np.arange(levels + 1, dtype=np.float64), low, high, float(levels), float(levels))


def tail_bounds(degree: int, levels: int, rows: Sequence[Row], *, open_ended: bool = False) -> tuple[float, float]:
    """Return the least and the greatest W^{>=degree} that satisfy every row.

    `open_ended` says that levels above `levels` exist (Gaussian inputs, or more coordinates than `MOST_LEVELS`); the
    last level then stands for all of them, with the coefficient that loosens each side.
    """
    matrix, limits = [], []
    for row in rows:
        above, below = row.coefficients.copy(), row.coefficients.copy()
        if open_ended:
            above[-1], below[-1] = row.least, row.greatest
        matrix += [above, -below]
        limits += [row.high, -row.low]
    objective = (np.arange(levels + 1) >= degree).astype(np.float64)
    found = []
    for sign in (1.0, -1.0):
        result = linprog(sign * objective, A_ub=np.array(matrix), b_ub=np.array(limits), method="highs")
        if result.status == 3:  # unbounded: no row limits the tail
            found.append(np.inf)
        elif result.status != 0:
            # The intervals contradict each other, which happens with at most the stated error rate: claim nothing.
            return 0.0, max(0.0, min(row.high for row in rows if np.all(row.coefficients == 1.0)))
        else:
            found.append(sign * float(result.fun))
    return max(0.0, found[0]), found[1]
