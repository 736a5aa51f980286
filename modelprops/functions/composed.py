"""Boolean functions given by a description: a table, a subset, weights, clauses or a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.functions.boolean import Answers, BooleanFunction
from modelprops.functions.families import _lookup


def truth_table(values: Sequence[float]) -> BooleanFunction:
    """The function of a table of 2^n values in [-1, 1]; in row r coordinate i is -1 where bit i of r is set."""
    table = torch.as_tensor(values, dtype=torch.float64)
    n = len(table).bit_length() - 1
    if table.ndim != 1 or len(table) != 2**n or n < 1:
        raise ArgumentError(f"a table of {len(table)} values is not one of 2^n with n >= 1")
    if not bool((table.abs() <= 1).all()):
        raise ArgumentError("a truth table has values in [-1, 1]; -1 is True and +1 is False")
    return BooleanFunction(f"truth_table({_numbers(values)})", n, _lookup(table, n))


def sparse_parity(members: Sequence[int], n: int | None = None) -> BooleanFunction:
    """The product of the inputs in `members` (0-based): everything at degree |members|."""
    places = sorted({*members})
    length = _length(places, n, least=1)
    answers = Answers(
        level_weights=lambda: np.eye(length + 1)[len(places)],
        influences=lambda: np.isin(np.arange(length), places).astype(np.float64),
        average_sensitivity=lambda: float(len(places)),
        noise_stability=lambda rho: float(rho) ** len(places),
    )
    if len(places) != len(list(members)):
        raise ArgumentError(f"members={list(members)!r} names a coordinate twice; x_i^2 = 1 drops out")
    return BooleanFunction(f"sparse_parity({places}, n={length})", length, lambda x: x[:, places].prod(1), answers)


def junta(members: Sequence[int], values: Sequence[float], n: int | None = None) -> BooleanFunction:
    """A table over the inputs in `members` alone; the other inputs do not matter. Exact for any n."""
    places = list(members)
    length = _length(places, n, least=1)
    if len(set(places)) != len(places):
        raise ArgumentError(f"members={places!r} names a coordinate twice")
    inner = truth_table(values)
    if inner.n != len(places):
        raise ArgumentError(f"a table of {len(values)} values is not one over {len(places)} inputs")

    def influences() -> Array:
        all_of_them = np.zeros(length)
        all_of_them[places] = inner.influences()
        return all_of_them

    answers = Answers(level_weights=lambda: np.pad(inner.level_weights(), (0, length - inner.n)), influences=influences)
    text = f"junta({places}, {_numbers(values)}, n={length})"
    return BooleanFunction(text, length, lambda x: inner(x[:, places]), answers)


def linear_threshold(weights: Sequence[float], theta: float = 0.0) -> BooleanFunction:
    """+1 iff sum w_i x_i > theta, else -1. Answers by enumeration, n <= 20."""
    vector = torch.as_tensor(weights, dtype=torch.float64)
    if vector.ndim != 1 or not len(vector):
        raise ArgumentError(f"weights={weights!r} is not a nonempty list of numbers")

    def rule(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.double() @ vector.to(x.device) > theta, 1.0, -1.0)

    return BooleanFunction(f"linear_threshold({_numbers(weights)}, {theta!r})", len(vector), rule)


def dnf(terms: Sequence[Mapping[int, int]], n: int | None = None) -> BooleanFunction:
    """An OR of ANDs: -1 (True) iff some term holds; a term {i: s} holds where x_i = s (±1) for all its i.

    Answers by enumeration, n <= 20.
    """
    clauses = [dict(term) for term in terms]
    length = _length([i for term in clauses for i in term], n, least=1)
    if any(sign not in (1, -1) for term in clauses for sign in term.values()):
        raise ArgumentError(f"terms={clauses!r}: a literal is +1 or -1, the value the input must have")

    def rule(x: torch.Tensor) -> torch.Tensor:
        true = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for term in clauses:
            holds = torch.ones_like(true)
            for i, sign in term.items():
                holds &= x[:, i] == sign
            true |= holds
        return torch.where(true, -1.0, 1.0)

    return BooleanFunction(f"dnf({clauses!r}, n={length})", length, rule)


def decision_tree(tree: Any, n: int | None = None) -> BooleanFunction:
    """A tree of leaves ±1 and nodes (coordinate, subtree where it is +1, subtree where it is -1).

    Answers by enumeration, n <= 20.
    """
    length = _length(_asked(tree), n, least=1)
    return BooleanFunction(f"decision_tree({tree!r}, n={length})", length, _walk(tree))


def _walk(tree: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    if tree in (1, -1):
        return lambda x: torch.full((len(x),), float(tree), dtype=x.dtype, device=x.device)
    coordinate, plus, minus = tree[0], _walk(tree[1]), _walk(tree[2])
    return lambda x: torch.where(x[:, coordinate] > 0, plus(x), minus(x))


def _asked(tree: Any) -> list[int]:
    if tree in (1, -1):
        return []
    if not isinstance(tree, (tuple, list)) or len(tree) != 3 or not isinstance(tree[0], int):
        raise ArgumentError(f"{tree!r} is neither a leaf (1 or -1) nor (coordinate, if +1, if -1)")
    return [tree[0], *_asked(tree[1]), *_asked(tree[2])]


def _length(places: Sequence[int], n: int | None, least: int) -> int:
    if any(not isinstance(place, int) or place < 0 for place in places):
        raise ArgumentError(f"{list(places)!r}: coordinates are whole numbers from 0")
    needed = max([*(place + 1 for place in places), least])
    if n is None:
        return needed
    if n < needed:
        raise ArgumentError(f"n={n} is too short for coordinate {needed - 1}")
    return n


def _numbers(values: Sequence[float]) -> str:
    return (
        "["
        + ", ".join(f"{float(value):g}" if float(value).is_integer() else repr(float(value)) for value in values)
        + "]"
    )
