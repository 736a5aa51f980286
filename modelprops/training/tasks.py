"""The functions that the experiments train on, and the problem of learning one of them from bits.

Bits are int64, shape (batch, n); bit b is x = 2b - 1. Targets are 0/1 as in the experiments' code (spec C.0), or the
same scaled to ±1, 2 t - 1. Squared differences of 0/1 outputs are 4 times smaller than those of ±1 outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from modelprops.domains import BooleanCube
from modelprops.errors import ArgumentError
from modelprops.theory.transformer import EncoderTransformer

LARGEST_CUBE = 14
"""Evaluation enumerates all 2^n inputs up to this n."""

SAMPLED_EVALUATION = 2**LARGEST_CUBE
OUTPUTS = ("01", "pm1")


def parity(bits: Tensor) -> Tensor:
    """1 iff the number of ones is odd. As ±1 it is -prod x_i for even n and prod x_i for odd n."""
    return (bits.sum(1) % 2).float()


def majority(bits: Tensor) -> Tensor:
    """1 iff more than half of the bits are one; a tie is 0."""
    return (2 * bits.sum(1) > bits.shape[1]).float()


def first(bits: Tensor) -> Tensor:
    """The first bit."""
    return bits[:, 0].float()


def mean(bits: Tensor) -> Tensor:
    """The fraction of ones."""
    return bits.float().mean(1)


RULES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"parity": parity, "majority": majority, "first": first, "mean": mean}
)


def all_bits(n: int) -> Tensor:
    """All 2^n inputs as bits (2^n, n), in the order of `BooleanCube(n).exhaustive()`: row 0 is all ones."""
    return (BooleanCube(n).exhaustive() > 0).long()


def row_numbers(bits: Tensor) -> Tensor:
    """The rows of `all_bits` that hold these inputs: sum_i (1 - b_i) 2^i, shape (batch,)."""
    return (1 - bits) @ (2 ** torch.arange(bits.shape[1]))


def random_table(n: int, seed: int) -> str:
    """A uniformly random truth table of n bits, as `BooleanTask.table` wants it."""
    return "".join(map(str, np.random.default_rng(seed).integers(0, 2, 2**n).tolist()))


def distinct_inputs(n: int, count: int, seed: int) -> Tensor:
    """`count` distinct inputs drawn uniformly, bits (count, n). Raises `ArgumentError` if the cube has fewer."""
    if not 0 < count <= 2**n:
        raise ArgumentError(f"{count} distinct inputs of {n} bits do not exist; ask for 1 to {2**n}")
    rows = torch.randperm(2**n, generator=torch.Generator().manual_seed(seed))[:count]
    return all_bits(n)[rows]


@dataclass(frozen=True)
class BooleanTask:
    """A function on n bits: `parity`, `majority`, `first`, `mean`, or `table` with its 2^n values.

    `table` is a string of 2^n characters 0/1 in the order of `all_bits(n)`; a random function is
    `BooleanTask("table", n, table=random_table(n, seed))`. `outputs`: `"01"` or `"pm1"`. Raises `ArgumentError` for an
    unknown name, a table of another length, or a table where the name has none.
    """

    name: str
    n: int
    outputs: str = "01"
    table: str | None = None

    def __post_init__(self) -> None:
        if self.name not in (*RULES, "table"):
            raise ArgumentError(f"task {self.name!r} is unknown; use one of {', '.join((*RULES, 'table'))}")
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise ArgumentError(f"n={self.n!r} is not a number of bits; give at least 1")
        if self.outputs not in OUTPUTS:
            raise ArgumentError(f"outputs={self.outputs!r} is unknown; use one of {', '.join(OUTPUTS)}")
        if (self.table is not None) != (self.name == "table"):
            raise ArgumentError(f"task {self.name!r}, table={self.table!r}: a table goes with the name 'table' only")
        if self.table is not None and (len(self.table) != 2**self.n or set(self.table) - {"0", "1"}):
            raise ArgumentError(
                f"a table of {self.n} bits is {2**self.n} characters 0 or 1, not {len(self.table)} of "
                f"{''.join(sorted(set(self.table)))}; see random_table"
            )

    @property
    def scale(self) -> float:
        """What squared differences of this task's outputs are multiplied by to speak of ±1 outputs: 4 or 1."""
        return 4.0 if self.outputs == "01" else 1.0

    def targets(self, bits: Tensor) -> Tensor:
        """The values at bits (batch, n), float32 (batch,)."""
        values = RULES[self.name](bits) if self.table is None else _values(self.table)[row_numbers(bits)]
        return values if self.outputs == "01" else 2 * values - 1


@lru_cache(maxsize=64)
def _values(table: str) -> Tensor:
    return torch.tensor([float(character) for character in table])


@lru_cache(maxsize=16)
def _evaluation_inputs(n: int) -> Tensor:
    if n <= LARGEST_CUBE:
        return all_bits(n)
    return torch.randint(0, 2, (SAMPLED_EVALUATION, n), generator=torch.Generator().manual_seed(n))


_training_inputs = lru_cache(maxsize=64)(distinct_inputs)


@dataclass(frozen=True)
class BooleanProblem:
    """Learn a `BooleanTask` with the experiments' encoder (spec C.0) by squared error.

    A batch is `batch_size` fresh uniform inputs; with `train_size` it is drawn from that many distinct strings, chosen
    by `train_seed` (spec C.4). Evaluation is over the whole cube for n <= 14, else over 16,384 fixed inputs: `loss`
    (mean squared error), `accuracy` (share of inputs on the right side of the middle), `margin` (the least distance
    to the middle on the right side, as a share of half the range); with `train_size` also `train_set_accuracy` and
    `train_set_loss`, on the training strings.
    """

    task: BooleanTask
    d_model: int = 32
    layers: int = 2
    heads: int = 2
    dim_feedforward: int | None = None
    batch_size: int = 256
    train_size: int | None = None
    train_seed: int = 0

    def build(self) -> nn.Module:
        """The untrained model, drawn from the global generator."""
        return EncoderTransformer(
            self.task.n, self.d_model, self.layers, self.heads, dim_feedforward=self.dim_feedforward
        )

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Bits (batch_size, n) and their targets (batch_size,)."""
        if self.train_size is None:
            bits = torch.randint(0, 2, (self.batch_size, self.task.n), generator=generator)
        else:
            known = self.training_inputs()
            bits = known[torch.randint(0, len(known), (self.batch_size,), generator=generator)]
        return bits, self.task.targets(bits)

    def training_inputs(self) -> Tensor:
        """The strings that training is restricted to, bits (train_size, n). Raises `ArgumentError` without them."""
        if self.train_size is None:
            raise ArgumentError("training is on fresh inputs (train_size=None), so there is no training set")
        return _training_inputs(self.task.n, self.train_size, self.train_seed)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(output, targets)

    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The metrics named above."""
        metrics = self._metrics(forward, _evaluation_inputs(self.task.n))
        if self.train_size is not None:
            known = self._metrics(forward, self.training_inputs())
            metrics |= {"train_set_accuracy": known["accuracy"], "train_set_loss": known["loss"]}
        return metrics

    def _metrics(self, forward: Callable[[Tensor], Tensor], bits: Tensor) -> dict[str, float]:
        output, targets = forward(bits), self.task.targets(bits)
        middle, half = (0.5, 0.5) if self.task.outputs == "01" else (0.0, 1.0)
        right = (output - middle) * torch.sign(targets - middle) / half
        return {
            "loss": float(((output - targets) ** 2).double().mean()),
            "accuracy": float(((output > middle) == (targets > middle)).double().mean()),
            "margin": float(right.min()),
        }
