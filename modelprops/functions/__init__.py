"""Boolean functions with known answers, as torch modules on ±1 points: ground truth for every measure.

    parity(12)                          a module: (batch, 12) -> (batch,)
    parity(12).average_sensitivity()    12.0
    parity.noise_stability(12, 0.9)     0.9 ** 12

All follow one convention: -1 is True, +1 is False (O'Donnell, Analysis of Boolean Functions, 1.1), so that
`conjunction` is -1 only where every input is -1.
"""

from __future__ import annotations

from modelprops.functions.boolean import BooleanFunction, Family
from modelprops.functions.composed import decision_tree, dnf, junta, linear_threshold, sparse_parity, truth_table
from modelprops.functions.families import (
    address,
    conjunction,
    disjunction,
    first,
    hidden_weighted_bit,
    majority,
    mean,
    parity,
    random_function,
    recursive_majority,
    tribes,
)
from modelprops.functions.walsh import level_weights, walsh_hadamard

__all__ = [
    "BooleanFunction",
    "Family",
    "address",
    "conjunction",
    "decision_tree",
    "disjunction",
    "dnf",
    "first",
    "hidden_weighted_bit",
    "junta",
    "level_weights",
    "linear_threshold",
    "majority",
    "mean",
    "parity",
    "random_function",
    "recursive_majority",
    "sparse_parity",
    "tribes",
    "truth_table",
    "walsh_hadamard",
]
