"""Hypothesis strategies for model inputs, flips and Boolean functions.

They shrink toward all +1, the fewest -1s, the lowest token and the shortest input, and what they draw prints as a line
that can be pasted into a test. Their inputs find counterexamples; they are not uniform, so no average is taken of them.

Importing this module registers the settings profile `modelprops` (see `modelprops.profile`); it is in force only when
asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import modelprops.profile  # noqa: F401  (registers the profile)
from modelprops.architectures import KINDS, Architecture, build
from modelprops.domains import BooleanCube, Domain, Gaussian, Tokens, generator_of
from modelprops.drawn import Drawn
from modelprops.errors import ArgumentError
from modelprops.subject import Subject

if TYPE_CHECKING:
    from modelprops.functions import BooleanFunction

Length = int | SearchStrategy[int]


def boolean_inputs(n: Length) -> SearchStrategy[torch.Tensor]:
    """One point of {-1, +1}^n, int8 of shape (n,). `n` may be a strategy, such as `lengths(1, 32)`."""
    return _lengths(n).flatmap(lambda size: _bits(size).map(_signs))


def boolean_batches(n: Length, size: int = 32) -> SearchStrategy[torch.Tensor]:
    """`size` points of {-1, +1}^n, int8 of shape (size, n): one forward pass an example."""
    if size < 1:
        raise ArgumentError(f"size={size!r} is not a positive number of points")

    def rows(length: int) -> SearchStrategy[torch.Tensor]:
        count = size * length
        if count <= 1024:
            return _bits(count).map(lambda bits: _signs(bits, (size, length)))
        # Hypothesis limits the choices of one example; bytes hold eight bits each.
        return st.binary(min_size=math.ceil(count / 8), max_size=math.ceil(count / 8)).map(
            lambda raw: _signs(np.unpackbits(np.frombuffer(raw, np.uint8), count=count), (size, length))
        )

    return _lengths(n).flatmap(rows)


def token_inputs(domain: Tokens) -> SearchStrategy[torch.Tensor]:
    """One sequence of a token domain, int64 of shape (length,); frozen tokens stand, excluded ones never appear."""
    if not isinstance(domain, Tokens):
        raise ArgumentError(f"token_inputs takes a mp.Tokens domain, not {domain!r}")
    allowed = st.sampled_from(domain.allowed.tolist())
    free = set(domain.free.tolist())
    if domain.corpus is not None:
        corpus = domain.corpus
        # A sequence of the corpus in which any of the free tokens may be another.
        changes = st.dictionaries(st.sampled_from(sorted(free)), allowed, max_size=len(free))
        return st.builds(lambda row, new: _changed(corpus[row], new), st.integers(0, len(corpus) - 1), changes)
    fixed = domain.frozen if isinstance(domain.frozen, dict) else {}
    positions = [st.just(fixed[place]) if place in fixed else allowed for place in range(domain.length)]
    return st.tuples(*positions).map(lambda ids: Drawn.of(torch.tensor(ids)))


def gaussian_inputs(shape: int | Sequence[int], *, bound: float = 6.0) -> SearchStrategy[torch.Tensor]:
    """A float32 tensor with entries in [-bound, bound]; shrinks toward 0. Not Gaussian: it looks for trouble."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(sizes)
    entries = st.floats(-bound, bound, width=32, allow_nan=False)
    return st.lists(entries, min_size=count, max_size=count).map(
        lambda values: Drawn.of(torch.tensor(values).view(sizes))
    )


def flips(n: int) -> SearchStrategy[int]:
    """A coordinate in 0..n-1; shrinks toward 0."""
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n={n!r} is not a number of coordinates of at least 1")
    return st.integers(0, n - 1)


def lengths(least: int = 1, most: int = 64) -> SearchStrategy[int]:
    """An input length; shrinks toward `least`."""
    if not 1 <= least <= most:
        raise ArgumentError(
            f"least={least!r}, most={most!r}: lengths are at least 1, and the least is not above the most"
        )
    return st.integers(least, most)


def inputs_of(subject: Subject | Domain) -> SearchStrategy[torch.Tensor]:
    """One input of a subject's domain. A user's own domain is sampled by seed, and shrinks toward seed 0."""
    domain = subject.domain if isinstance(subject, Subject) else subject
    if isinstance(domain, BooleanCube):
        return boolean_inputs(domain.n)
    if isinstance(domain, Tokens):
        return token_inputs(domain)
    if isinstance(domain, Gaussian):
        assert isinstance(domain.shape, tuple)
        return gaussian_inputs(domain.shape)
    return st.integers(0, 2**32).map(lambda seed: Drawn.of(domain.sample(1, generator_of(seed))[0]))


def models(
    n: Length, *, kinds: Sequence[str] = KINDS, widths: Sequence[int] = (2, 4, 8, 16)
) -> SearchStrategy[Architecture]:
    """A small untrained network on {-1, +1}^n of one of several architectures (see `modelprops.architectures.build`).

    Shrinks toward the first kind, the first width and seed 0.
    """
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise ArgumentError(f"kinds={wrong!r} are unknown; use some of {', '.join(KINDS)}")
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(build, st.sampled_from(list(kinds)), _lengths(n), st.sampled_from(list(widths)), seeds)


def boolean_functions(n: Length) -> SearchStrategy[BooleanFunction]:
    """A Boolean function with known answers: parity of a subset, junta, threshold, decision tree, DNF or truth table.

    Each is a torch module on ±1 points with exact `average_sensitivity()`, `influences()`, `noise_stability(rho)` and
    `level_weights()`. n <= 12, since the answers of most are by enumeration.
    """
    return _lengths(n).flatmap(_functions)


def _functions(n: int) -> SearchStrategy[Any]:
    from modelprops import functions

    if not 1 <= n <= 12:
        raise ArgumentError(f"n={n} is outside 1..12, where every answer is known by enumeration")
    subsets = st.lists(flips(n), unique=True, max_size=n).map(sorted)
    small = st.lists(flips(n), unique=True, min_size=1, max_size=min(n, 4)).map(sorted)
    weights = st.lists(st.integers(-8, 8), min_size=n, max_size=n)
    term = st.dictionaries(flips(n), st.sampled_from([1, -1]), min_size=1, max_size=n)
    terms = st.lists(term, min_size=1, max_size=4)
    juntas = small.flatmap(lambda places: st.tuples(st.just(places), _bits(2 ** len(places))))
    kinds = [
        subsets.map(lambda places: functions.sparse_parity(places, n)),
        juntas.map(lambda drawn: functions.junta(drawn[0], _table(drawn[1]), n)),
        st.builds(lambda w, theta: functions.linear_threshold(w, theta + 0.5), weights, st.integers(-8, 8)),
        terms.map(lambda clauses: functions.dnf(clauses, n)),
        _trees(n, depth=min(n, 3)).map(lambda tree: functions.decision_tree(tree, n)),
    ]
    if n <= 6:
        kinds.append(_bits(2**n).map(lambda table: functions.truth_table(_table(table))))
    return st.one_of(kinds)


def _trees(n: int, depth: int) -> SearchStrategy[Any]:
    """A leaf (+1 or -1) or (coordinate, subtree where it is +1, subtree where it is -1)."""
    leaf = st.sampled_from([1, -1])
    if depth == 0:
        return leaf
    below = _trees(n, depth - 1)
    return st.one_of(leaf, st.tuples(flips(n), below, below))


def _table(bits: Sequence[bool]) -> list[int]:
    return [-1 if bit else 1 for bit in bits]


def _lengths(n: Length) -> SearchStrategy[int]:
    if isinstance(n, SearchStrategy):
        return n
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n={n!r} is not a length of at least 1, nor a strategy that draws one")
    return st.just(n)


def _bits(count: int) -> SearchStrategy[list[bool]]:
    return st.lists(st.booleans(), min_size=count, max_size=count)


def _signs(bits: Any, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    points = 1 - 2 * torch.from_numpy(np.array(bits, dtype=np.int8))
    return Drawn.of(points if shape is None else points.view(shape))


def _changed(row: torch.Tensor, new: dict[int, int]) -> torch.Tensor:
    changed = row.clone()
    for place, token in new.items():
        changed[place] = token
    return Drawn.of(changed)
