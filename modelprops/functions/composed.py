"""Boolean functions given by a description: a table, a subset, weights, clauses or a tree."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.functions.boolean import Answers, BooleanFunction, Family, real, whole
from modelprops.functions.families import _lookup


@Family
def truth_table(values: Sequence[float]) -> BooleanFunction:
    """The function of a table of 2^n values in [-1, 1]; in row r coordinate i is -1 where bit i of r is set."""
    table = _vector(values, "values")
    n = len(table).bit_length() - 1
    if len(table) != 2**n or n < 1:
        raise ArgumentError(f"a table of {len(table)} values is not one of 2^n with n >= 1; give all 2^n values")
    if not bool((table.abs() <= 1).all()):
        raise ArgumentError("a truth table has values in [-1, 1]; -1 is True and +1 is False")
    return BooleanFunction(f"truth_table({_numbers(table)})", n, _lookup(table, n))


@Family
def sparse_parity(members: Sequence[int], n: int | None = None) -> BooleanFunction:
    """The product of the inputs in `members` (0-based): everything at degree |members|."""
    places = sorted(_places(members))
    length = _length(places, n, least=1)
    answers = Answers(
        level_weights=lambda: np.eye(length + 1)[len(places)],
        influences=lambda: np.isin(np.arange(length), places).astype(np.float64),
        average_sensitivity=lambda: float(len(places)),
        noise_stability=lambda rho: float(rho) ** len(places),
    )
    return BooleanFunction(f"sparse_parity({places}, n={length})", length, lambda x: x[:, places].prod(1), answers)


@Family
def junta(members: Sequence[int], values: Sequence[float], n: int | None = None) -> BooleanFunction:
    """A table over the inputs in `members` alone; the other inputs do not matter. Exact for any n."""
    places = _places(members)
    length = _length(places, n, least=1)
    inner = truth_table(values)
    if inner.n != len(places):
        raise ArgumentError(f"a table over {inner.n} inputs does not fit members={places}; give 2^{len(places)} values")

    def influences() -> Array:
        all_of_them = np.zeros(length)
        all_of_them[places] = inner.influences()
        return all_of_them

    answers = Answers(level_weights=lambda: np.pad(inner.level_weights(), (0, length - inner.n)), influences=influences)
    text = f"junta({places}, {_numbers(_vector(values, 'values'))}, n={length})"
    return BooleanFunction(text, length, lambda x: inner(x[:, places]), answers)


@Family
def linear_threshold(weights: Sequence[float], theta: float = 0.0) -> BooleanFunction:
    """+1 iff sum w_i x_i > theta, else -1. Answers by enumeration, n <= 20.

    The sum is taken in float64: where ties matter, give integers, for which it is exact.
    """
    vector = _vector(weights, "weights")
    theta = real(theta, "theta")
    if not len(vector) or not bool(vector.isfinite().all()):
        raise ArgumentError(
            f"weights={weights!r} is not a list of at least one finite number; give one weight an input"
        )

    def rule(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.double() @ vector.to(x.device) > theta, 1.0, -1.0)

    return BooleanFunction(f"linear_threshold({_numbers(vector)}, {theta!r})", len(vector), rule)


@Family
def dnf(terms: Sequence[Mapping[int, int]], n: int | None = None) -> BooleanFunction:
    """An OR of ANDs: -1 (True) iff some term holds; a term {i: s} holds where x_i = s (±1) for all its i.

    Answers by enumeration, n <= 20.
    """
    if not isinstance(terms, Sequence) or not all(isinstance(term, Mapping) for term in terms):
        raise ArgumentError(f"terms={terms!r} is not a list of mappings; write x_0 AND NOT x_2 as {{0: -1, 2: 1}}")
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


@Family
def decision_tree(tree: Any, n: int | None = None) -> BooleanFunction:
    """A tree of leaves ±1 and nodes (coordinate, subtree where it is +1, subtree where it is -1).

    Answers by enumeration, n <= 20.
    """
    length = _length(_asked(tree), n, least=1)
    return BooleanFunction(f"decision_tree({tree!r}, n={length})", length, _walk(tree))


def _leaf(tree: Any) -> bool:
    return isinstance(tree, numbers.Real) and tree in (1, -1)


def _walk(tree: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    if _leaf(tree):
        return lambda x: torch.full((len(x),), float(tree), dtype=x.dtype, device=x.device)
    coordinate, plus, minus = tree[0], _walk(tree[1]), _walk(tree[2])
    return lambda x: torch.where(x[:, coordinate] > 0, plus(x), minus(x))


def _asked(tree: Any) -> list[int]:
    if _leaf(tree):
        return []
    if not isinstance(tree, (tuple, list)) or len(tree) != 3 or not isinstance(tree[0], int):
        raise ArgumentError(f"{tree!r} is neither a leaf (1 or -1) nor (coordinate, if +1, if -1)")
    return [tree[0], *_asked(tree[1]), *_asked(tree[2])]


def _length(places: Sequence[int], n: int | None, least: int) -> int:
    needed = max([*(whole(place, "coordinate", least=0) + 1 for place in places), least])
    if n is None:
        return needed
    n = whole(n, "n")
    if n < needed:
        raise ArgumentError(f"n={n} is too short for coordinate {needed - 1}")
    return n


def _places(members: Sequence[int]) -> list[int]:
    if not isinstance(members, Iterable):
        raise ArgumentError(f"members={members!r} is not a list of coordinates; give one, such as [0, 3]")
    places = [whole(place, "coordinate", least=0) for place in members]
    if len(set(places)) != len(places):
        raise ArgumentError(f"members={places!r} names a coordinate twice; name it once")
    return places


def _vector(values: Sequence[float], name: str) -> torch.Tensor:
    try:
        vector = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"{name}={values!r} is not a list of numbers; give one") from None
    if vector.ndim != 1:
        raise ArgumentError(f"{name} has shape {tuple(vector.shape)}; give one row of numbers")
    return vector.detach().clone()


def _numbers(values: torch.Tensor) -> str:
    return "[" + ", ".join(str(int(v)) if v.is_integer() else repr(v) for v in values.tolist()) + "]"
