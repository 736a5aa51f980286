"""Many claims in one run: which verdicts still stand when the error rate is to hold for all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(log_e: Sequence[float], level: float) -> list[bool]:
    """Return which hypotheses are rejected with family-wise error <= `level`, from natural-log e-values.

    Holm's step-down on the p-values 1/e (an e-value at a stopping time makes 1/e a valid p-value by Markov):
    sorted, the k-th smallest of K is compared with level / (K - k + 1), until one fails.
    """
    order = sorted(range(len(log_e)), key=lambda index: -log_e[index])
    rejected = [False] * len(log_e)
    for rank, index in enumerate(order):
        if -log_e[index] > math.log(level / (len(log_e) - rank)):
            break
        rejected[index] = True
    return rejected
