"""Problems whose output is a distribution over classes: modular addition and noisy sparse parity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError
from modelprops.training.networks import EmbeddingSum, Network, SmallTransformer

VALIDATION_SIZE = 2048


def score(forward: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Mean cross-entropy in nats, and accuracy; over positions as well where logits have them."""
    logits = forward(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2).double(), targets.flatten())
    return float(loss), float((logits.argmax(-1) == targets).double().mean())


@dataclass(frozen=True)
class ModularAddition:
    """Learn (a + b) mod `modulus` from a share of all pairs; `split_seed` chooses which. Source: spec C3, C5.

    A batch is the whole training set, or `batch_size` pairs of it. Inputs are int64 (batch, 2). Evaluation: `loss`
    and `accuracy` on the held-out pairs, `train_set_loss` and `train_set_accuracy` on the others.
    """

    modulus: int = 31
    train_fraction: float = 0.5
    split_seed: int = 0
    network: Network = field(default_factory=EmbeddingSum)
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.modulus < 2 or not 1 <= round(self.train_fraction * self.modulus**2) < self.modulus**2:
            raise ArgumentError(
                f"modulus={self.modulus}, train_fraction={self.train_fraction}: at least one pair must be trained on "
                "and one held out"
            )

    def build(self) -> nn.Module:
        """The untrained network."""
        return self.network.build(self.modulus, 2, self.modulus)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Training pairs and held-out pairs, each int64 (count, 2)."""
        return _split(self.modulus, self.train_fraction, self.split_seed)

    def sums(self, pairs: Tensor) -> Tensor:
        """(a + b) mod K."""
        return pairs.sum(1) % self.modulus

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pairs and their sums."""
        pairs = self.pairs()[0]
        if self.batch_size is not None:
            pairs = pairs[torch.randint(0, len(pairs), (self.batch_size,), generator=generator)]
        return pairs, self.sums(pairs)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(output, targets)

    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The metrics named above."""
        known, held_out = self.pairs()
        loss, accuracy = score(forward, held_out, self.sums(held_out))
        train_loss, train_accuracy = score(forward, known, self.sums(known))
        return {
            "loss": loss,
            "accuracy": accuracy,
            "train_set_loss": train_loss,
            "train_set_accuracy": train_accuracy,
        }


@lru_cache(maxsize=16)
def _split(modulus: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    numbers = torch.randperm(modulus**2, generator=torch.Generator().manual_seed(seed))
    pairs = torch.stack([numbers // modulus, numbers % modulus], 1)
    count = round(fraction * len(pairs))
    return pairs[:count], pairs[count:]


@dataclass(frozen=True)
class NoisySparseParity:
    """Learn the parity of the bits at `support` when a share `noise` of the training labels is flipped. Spec C4.

    A batch is `batch_size` fresh inputs int64 (batch, n), or ones drawn from `train_size` fixed inputs with fixed
    (partly wrong) labels. Evaluation on 2,048 fixed other inputs with right labels: `loss` and `accuracy`.
    """

    n: int = 20
    support: tuple[int, ...] = (0, 1, 2)
    noise: float = 0.05
    train_size: int | None = None
    data_seed: int = 0
    network: Network = field(default_factory=SmallTransformer)
    batch_size: int = 256

    def __post_init__(self) -> None:
        if (
            not self.support
            or len(set(self.support)) != len(self.support)
            or not all(0 <= i < self.n for i in self.support)
        ):
            raise ArgumentError(f"support={self.support!r} is no set of positions in 0..{self.n - 1}")
        if not 0 <= self.noise < 0.5:
            raise ArgumentError(f"noise={self.noise!r}: give the share of flipped labels, in [0, 1/2)")

    def build(self) -> nn.Module:
        """The untrained network, with two logits."""
        return self.network.build(2, self.n, 2)

    def labels(self, bits: Tensor) -> Tensor:
        """The right labels: 1 iff an odd number of the supported bits is one."""
        return bits[:, list(self.support)].sum(1) % 2

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Bits and labels, some flipped."""
        if self.train_size is None:
            return self._noisy(self.batch_size, generator)
        bits, labels = _known(self)
        rows = torch.randint(0, len(bits), (self.batch_size,), generator=generator)
        return bits[rows], labels[rows]

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(output, targets)

    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The metrics named above."""
        generator = torch.Generator().manual_seed(self.data_seed + 1)
        bits = torch.randint(0, 2, (VALIDATION_SIZE, self.n), generator=generator)
        loss, accuracy = score(forward, bits, self.labels(bits))
        return {"loss": loss, "accuracy": accuracy}

    def _noisy(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        bits = torch.randint(0, 2, (count, self.n), generator=generator)
        flipped = (torch.rand(count, generator=generator) < self.noise).long()
        return bits, (self.labels(bits) + flipped) % 2


@lru_cache(maxsize=8)
def _known(problem: NoisySparseParity) -> tuple[Tensor, Tensor]:
    return problem._noisy(problem.train_size or 0, torch.Generator().manual_seed(problem.data_seed))
