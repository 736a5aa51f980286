"""Input spaces with their probability measures.

A domain is any object with `coordinates`, `sample`, `resample`, `correlated`, `encode` (points -> what the module
takes; left out, points are passed on) and, where feasible, `neighbours` and `exhaustive`. The classes here are product
measures: coordinates are independent, which the Fourier and Efron-Stein identities need (`product` is True), except
`Tokens.around`, whose points come from a corpus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from modelprops.drawn import refuse_drawn
from modelprops.errors import ArgumentError, DomainError

EXHAUSTIVE_LIMIT = 2**24


@runtime_checkable
class Domain(Protocol):
    """What every measure needs of a domain; a user's own class with these works everywhere."""

    @property
    def coordinates(self) -> int:
        """How many coordinates can be resampled."""

    def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Draw `size` independent points, first dimension `size`."""

    def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
        """Return a copy with one coordinate drawn afresh (it may come out the same)."""

    def correlated(self, points: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """Return partners with correlation `rho` in every coordinate."""


@dataclass(frozen=True)
class BooleanCube:
    """Uniform measure on {-1, +1}^n.

    `encoding` is what the module is given: `"pm1"` floats of ±1, `"bits"` int64 with -1 -> 0 and +1 -> 1 (what
    `nn.Embedding(2, d)` takes), or a callable on the int8 points of shape (batch, n).
    """

    n: int
    encoding: str | Callable[[torch.Tensor], Any] = "pm1"
    product = True

    def __post_init__(self) -> None:
        _require_count("BooleanCube", "n", self.n)
        if not callable(self.encoding) and self.encoding not in ("pm1", "bits"):
            raise ArgumentError(f'encoding={self.encoding!r} is unknown; use "pm1", "bits" or a callable')

    @property
    def coordinates(self) -> int:
        """n."""
        return self.n

    @property
    def levels(self) -> tuple[int, ...]:
        """How many values each coordinate takes: the shape of a table over `exhaustive()`, coordinate 0 fastest."""
        return (2,) * self.n

    def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Draw int8 points of shape (size, n)."""
        return 1 - 2 * torch.randint(0, 2, (size, self.n), generator=generator, dtype=torch.int8)

    def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
        """Draw one coordinate afresh: it flips with probability 1/2."""
        _require_coordinate(coordinate, self.n)
        changed = points.clone()
        changed[:, coordinate] = self.sample(len(points), generator)[:, 0]
        return changed

    def neighbours(self, points: torch.Tensor, coordinates: torch.Tensor | None = None) -> torch.Tensor:
        """Flip each coordinate in turn: (batch, n) -> (batch, n, n), or (batch, k, n) for `coordinates` (batch, k)."""
        if coordinates is None:
            signs = 1 - 2 * torch.eye(self.n, dtype=points.dtype)
            return points[:, None, :] * signs
        near = points[:, None, :].expand(-1, coordinates.shape[1], -1).clone()
        index = coordinates[:, :, None]
        return near.scatter_(2, index, -near.gather(2, index))

    def correlated(
        self, points: torch.Tensor, rho: float, generator: torch.Generator, keep: float | None = None
    ) -> torch.Tensor:
        """Keep each bit with probability |rho|, else redraw it (and negate the kept ones for rho < 0): E x_i y_i = rho.

        `keep=p` keeps with probability p and else redraws; its correlation is p. Note that keeping with probability
        (1 + rho)/2 and else *redrawing* has correlation (1 + rho)/2, not rho.
        """
        rho = _require_rho(rho if keep is None else keep, negative=keep is None)
        kept = torch.rand(points.shape, generator=generator) < abs(rho)
        fresh = self.sample(len(points), generator)
        return torch.where(kept, points if rho >= 0 else -points, fresh)

    def exhaustive(self) -> torch.Tensor:
        """All 2^n points; in row r coordinate i is -1 where bit i of r is set, so row 0 is all +1."""
        if 2**self.n > EXHAUSTIVE_LIMIT:
            raise DomainError(f"BooleanCube({self.n}) has 2^{self.n} points, too many to enumerate; sample instead")
        return self.points_of(torch.arange(2**self.n))

    def points_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the points of `exhaustive()` with the given row numbers, without building the rest."""
        return (1 - 2 * ((rows[:, None] >> torch.arange(self.n)) & 1)).to(torch.int8)

    def simpler(self, point: torch.Tensor) -> torch.Tensor:
        """Return the points nearest to all +1 that differ from `point` in one -1: candidates for a smaller witness."""
        minus = (point < 0).nonzero()[:, 0]
        near = point.repeat(len(minus), 1)
        near[torch.arange(len(minus)), minus] = 1
        return near

    def encode(self, points: torch.Tensor) -> Any:
        """Turn int8 points into what the module takes."""
        if callable(self.encoding):
            return self.encoding(points)
        return (points > 0).long() if self.encoding == "bits" else points.to(torch.get_default_dtype())


@dataclass(frozen=True)
class Tokens:
    """Independent uniform tokens: sequences in {0..vocab_size-1}^length, int64 of shape (batch, length).

    `frozen` names positions that are never resampled (BOS, CLS, SEP): positions, or a mapping position -> token id
    that fixes what stands there. `exclude` lists ids that are never drawn. Coordinate c is the c-th free position.

    With `Tokens.around(corpus_ids)` points are real sequences and only resampled tokens are drawn; that is not a
    product measure, so spectral quantities refuse it.
    """

    vocab_size: int
    length: int
    frozen: Iterable[int] | Mapping[int, int] = ()
    exclude: Iterable[int] = ()
    corpus: torch.Tensor | None = field(default=None, repr=False, compare=False)
    weights: torch.Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_count("Tokens", "vocab_size", self.vocab_size)
        _require_count("Tokens", "length", self.length)
        refuse_drawn("corpus", self.corpus)
        refuse_drawn("weights", self.weights)
        fixed = dict(self.frozen) if isinstance(self.frozen, Mapping) else dict.fromkeys(self.frozen)
        fixed = {p + self.length if p < 0 else p: token for p, token in fixed.items()}
        for position, token in fixed.items():
            if not 0 <= position < self.length:
                raise ArgumentError(f"frozen position {position} is outside 0..{self.length - 1}")
            if token is not None and not 0 <= token < self.vocab_size:
                raise ArgumentError(f"frozen token {token} is outside 0..{self.vocab_size - 1}")
        barred = frozenset(self.exclude)
        if wrong := [token for token in barred if not 0 <= token < self.vocab_size]:
            raise ArgumentError(f"exclude={sorted(wrong)} is outside 0..{self.vocab_size - 1}")
        if len(barred) >= self.vocab_size:
            raise DomainError(f"exclude leaves none of the {self.vocab_size} tokens; leave at least one")
        if len(fixed) >= self.length:
            raise DomainError(f"all {self.length} positions are frozen; leave at least one to resample")
        object.__setattr__(self, "frozen", fixed if isinstance(self.frozen, Mapping) else tuple(fixed))
        object.__setattr__(self, "exclude", tuple(sorted(barred)))

    @classmethod
    def around(
        cls,
        corpus_ids: torch.Tensor,
        vocab_size: int | None = None,
        *,
        frozen: Iterable[int] = (),
        exclude: Iterable[int] = (),
        resample_from: str = "uniform",
    ) -> Tokens:
        """Take points from `corpus_ids` (sequences, length); resample `"uniform"` or from the corpus `"unigram"`."""
        refuse_drawn("corpus_ids", corpus_ids)
        corpus = torch.as_tensor(corpus_ids)
        if corpus.ndim != 2 or corpus.is_floating_point() or not len(corpus):
            raise ArgumentError(
                f"corpus_ids of shape {tuple(corpus.shape)} and dtype {corpus.dtype} is not a nonempty integer table "
                "(sequences, length); cut the token ids into equal lengths"
            )
        corpus = corpus.long()
        size = int(corpus.max()) + 1 if vocab_size is None else vocab_size
        if int(corpus.min()) < 0 or int(corpus.max()) >= size:
            raise ArgumentError(f"corpus_ids holds ids outside 0..{size - 1}; give the model's vocab_size")
        if resample_from not in ("uniform", "unigram"):
            raise ArgumentError(f'resample_from={resample_from!r} is unknown; use "uniform" or "unigram"')
        weights = None
        if resample_from == "unigram":
            weights = torch.bincount(corpus.flatten(), minlength=size).double()
            weights[list(exclude)] = 0
            if weights.sum() == 0:
                raise DomainError("exclude removes every token of the corpus; leave at least one")
        return cls(size, corpus.shape[1], frozen, exclude, corpus, weights)

    @property
    def product(self) -> bool:
        """Whether coordinates are independent and identically treated (no corpus)."""
        return self.corpus is None

    @property
    def free(self) -> torch.Tensor:
        """The positions that can be resampled; coordinate c is `free[c]`."""
        return torch.tensor([p for p in range(self.length) if p not in self.frozen])

    @property
    def allowed(self) -> torch.Tensor:
        """The ids that can be drawn."""
        mask = torch.ones(self.vocab_size, dtype=torch.bool)
        mask[list(self.exclude)] = False
        return mask.nonzero()[:, 0]

    @property
    def coordinates(self) -> int:
        """How many positions are free."""
        return self.length - len(tuple(self.frozen))

    @property
    def levels(self) -> tuple[int, ...] | None:
        """The shape of a table over `exhaustive()`; None where points are not enumerable."""
        fixed_tokens = isinstance(self.frozen, Mapping) or not self.frozen
        return (len(self.allowed),) * self.coordinates if self.product and fixed_tokens else None

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Draw tokens of the resampling distribution."""
        if self.weights is not None:
            count = int(torch.tensor(shape).prod())
            return torch.multinomial(self.weights, count, replacement=True, generator=generator).view(shape)
        allowed = self.allowed
        return allowed[torch.randint(0, len(allowed), shape, generator=generator)]

    def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Draw int64 points of shape (size, length)."""
        if self.corpus is not None:
            return self.corpus[torch.randint(0, len(self.corpus), (size,), generator=generator)].clone()
        points = self.draw((size, self.length), generator)
        if isinstance(self.frozen, Mapping):
            for position, token in self.frozen.items():
                points[:, position] = token
        return points

    def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
        """Draw one free position afresh; it comes out the same with the token's own probability."""
        _require_coordinate(coordinate, self.coordinates)
        changed = points.clone()
        changed[:, int(self.free[coordinate])] = self.draw((len(points),), generator)
        return changed

    def neighbours(self, points: torch.Tensor) -> torch.Tensor:
        """All points that differ in one free position: (batch, coordinates * (allowed - 1), length)."""
        near = []
        for position in self.free.tolist():
            choices = self.allowed.repeat(len(points), 1)
            others = choices[choices != points[:, position : position + 1]].view(len(points), -1)
            block = points[:, None, :].repeat(1, others.shape[1], 1)
            block[:, :, position] = others
            near.append(block)
        return torch.cat(near, 1)

    def correlated(
        self, points: torch.Tensor, rho: float, generator: torch.Generator, keep: float | None = None
    ) -> torch.Tensor:
        """Keep each free token with probability rho, else redraw it. `keep=` states the probability by its own name."""
        rho = _require_rho(rho if keep is None else keep, negative=False)
        fresh = torch.rand(points.shape, generator=generator) >= rho
        fresh[:, list(self.frozen)] = False
        return torch.where(fresh, self.draw(tuple(points.shape), generator), points)

    def exhaustive(self) -> torch.Tensor:
        """All points, coordinate 0 running fastest over the allowed ids."""
        if self.levels is None:
            raise DomainError("this domain's points are not enumerable (a corpus, or frozen positions without a token)")
        base, count = len(self.allowed), len(self.allowed) ** self.coordinates
        if count > EXHAUSTIVE_LIMIT:
            raise DomainError(f"{base}^{self.coordinates} points are too many to enumerate; sample instead")
        digits = (torch.arange(count)[:, None] // base ** torch.arange(self.coordinates)) % base
        points = torch.zeros(count, self.length, dtype=torch.long)
        points[:, self.free] = self.allowed[digits]
        if isinstance(self.frozen, Mapping):
            for position, token in self.frozen.items():
                points[:, position] = token
        return points

    def simpler(self, point: torch.Tensor) -> torch.Tensor:
        """Return points with one free token replaced by the lowest allowed id: candidates for a smaller witness."""
        lowest = int(self.allowed[0])
        places = self.free[point[self.free] != lowest]
        near = point.repeat(len(places), 1)
        near[torch.arange(len(places)), places] = lowest
        return near

    def encode(self, points: torch.Tensor) -> torch.Tensor:
        """Token ids go to the module as they are."""
        return points


@dataclass(frozen=True)
class Gaussian:
    """Standard Gaussian measure on R^shape; coordinates are the flattened entries."""

    shape: int | tuple[int, ...]
    product = True

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        for size in shape:
            _require_count("Gaussian", "shape", size)
        if not shape:
            raise DomainError("Gaussian(()) has no coordinate; give at least one dimension")
        object.__setattr__(self, "shape", shape)

    @property
    def coordinates(self) -> int:
        """The product of the shape."""
        return int(torch.tensor(self.shape).prod())

    def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Draw float points of shape (size, *shape)."""
        return torch.randn((size, *self._shape), generator=generator)

    def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
        """Draw one flattened coordinate afresh."""
        _require_coordinate(coordinate, self.coordinates)
        changed = points.clone()
        changed.view(len(points), -1)[:, coordinate] = torch.randn(len(points), generator=generator)
        return changed

    def correlated(self, points: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """rho x + sqrt(1 - rho^2) z with fresh standard z."""
        rho = _require_rho(rho, negative=True)
        fresh = self.sample(len(points), generator)
        return points * rho + fresh * math.sqrt(1 - rho**2)

    def exhaustive(self) -> torch.Tensor:
        """Raise: R^n cannot be enumerated."""
        raise DomainError("a Gaussian domain cannot be enumerated; sample instead")

    def encode(self, points: torch.Tensor) -> torch.Tensor:
        """Points go to the module as they are."""
        return points

    @property
    def _shape(self) -> tuple[int, ...]:
        assert isinstance(self.shape, tuple)
        return self.shape


def generator_of(seed: int) -> torch.Generator:
    """Return a CPU generator of its own, so that the global state is neither read nor changed."""
    return torch.Generator().manual_seed(seed)


def _require_count(owner: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"{owner}: {name}={value!r} is not an integer; give a whole number of at least 1")
    if value < 1:
        raise DomainError(f"{owner}: {name}={value} leaves the domain empty; give at least 1")


def _require_coordinate(coordinate: int, count: int) -> None:
    if not 0 <= coordinate < count:
        raise ArgumentError(f"coordinate {coordinate} is outside 0..{count - 1}")


def _require_rho(rho: float, *, negative: bool) -> float:
    least = -1 if negative else 0
    if not isinstance(rho, (int, float)) or not least <= rho <= 1:
        raise ArgumentError(f"rho={rho!r} is not a correlation; give a number in [{least}, 1]")
    return float(rho)
