"""Next-token prediction on a text: a file, or the prose that comes with every Python."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError, LoadError
from modelprops.training.classification import score
from modelprops.training.networks import SmallTransformer

PYTHON_TOPICS = "python-topics"
"""The language reference that `help()` shows, `pydoc_data.topics`: about 700 kB of English on every machine."""


def read_text(source: str) -> str:
    """The text of a UTF-8 file, or of `PYTHON_TOPICS`. Raises `LoadError` for a file that is not there."""
    if source == PYTHON_TOPICS:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(
            f"no text could be read from {source!r} ({error}); give a UTF-8 file or {PYTHON_TOPICS!r}"
        ) from None


@lru_cache(maxsize=4)
def token_ids(source: str, vocabulary: int) -> Tensor:
    """The text as ids of a byte-level BPE of `vocabulary` symbols, trained on itself; int64 (tokens,).

    Needs the package `tokenizers`.
    """
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    text = read_text(source)
    tokenizer.train_from_iterator([text], vocab_size=vocabulary, min_frequency=2, show_progress=False)
    return torch.tensor(tokenizer.encode(text).ids)


@dataclass(frozen=True)
class NextToken:
    """Predict each next token of a text with a causal network: 4 layers, d = 30, 6 heads, 500 symbols (spec C4).

    The text is cut into windows of `length` + 1 tokens; the first `train_items` of a shuffle by `split_seed` are the
    training set and the next `validation_items` are held out. A batch is `batch_size` training windows: inputs
    int64 (batch, length), targets the same shifted by one. Evaluation: `loss` (nats a token) and `accuracy`.

    `source`: a path or `PYTHON_TOPICS`; `digest` is filled in from its content, so that a run's hash depends on the
    text. Raises `ArgumentError` if the text has too few windows.
    """

    source: str = PYTHON_TOPICS
    vocabulary: int = 500
    length: int = 64
    train_items: int = 1000
    validation_items: int = 200
    split_seed: int = 0
    batch_size: int = 32
    network: SmallTransformer = field(
        default_factory=lambda: SmallTransformer(d_model=30, layers=4, heads=6, per_position=True)
    )
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if not self.network.per_position:
            raise ArgumentError("the network reads all positions at once; give one with per_position=True")
        if self.vocabulary < 257:
            raise ArgumentError(f"vocabulary={self.vocabulary}: the bytes alone are 256 symbols; give at least 257")
        digest = hashlib.sha256(read_text(self.source).encode()).hexdigest()[:16]
        object.__setattr__(self, "digest", digest)

    def build(self) -> nn.Module:
        """The untrained network."""
        return self.network.build(self.vocabulary, self.length, self.vocabulary)

    def windows(self) -> tuple[Tensor, Tensor]:
        """Training and held-out windows, each int64 (items, length + 1)."""
        ids = token_ids(self.source, self.vocabulary)
        whole = ids[: len(ids) // (self.length + 1) * (self.length + 1)].view(-1, self.length + 1)
        wanted = self.train_items + self.validation_items
        if len(whole) < wanted:
            raise ArgumentError(
                f"the text has {len(whole)} windows of {self.length + 1} tokens, fewer than {self.train_items} + "
                f"{self.validation_items}; ask for fewer or shorter ones"
            )
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(self.split_seed))
        return whole[order[: self.train_items]], whole[order[self.train_items : wanted]]

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Windows without their last and without their first token."""
        known = _windows(self)[0]
        chosen = known[torch.randint(0, len(known), (self.batch_size,), generator=generator)]
        return chosen[:, :-1], chosen[:, 1:]

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats a token."""
        return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The metrics named above."""
        held_out = _windows(self)[1]
        loss, accuracy = score(forward, held_out[:, :-1], held_out[:, 1:])
        return {"loss": loss, "accuracy": accuracy}


@lru_cache(maxsize=4)
def _windows(problem: NextToken) -> tuple[Tensor, Tensor]:
    return problem.windows()
