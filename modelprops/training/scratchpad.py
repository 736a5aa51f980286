"""PARITY with a scratchpad: an encoder-decoder that writes the parity of every prefix, one bit after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError

START = 2
"""The symbol the decoder begins with."""

EVALUATION_SIZE = 512


def prefix_parities(bits: Tensor) -> Tensor:
    """The number of ones mod 2 of the first 1, 2, ..., n bits, int64 (batch, n). The last is PARITY."""
    return bits.cumsum(1) % 2


def with_scratchpad(bits: Tensor) -> Tensor:
    """What the model takes under teacher forcing: bits, then START and the first n - 1 prefix parities, (batch, 2n)."""
    start = torch.full_like(bits[:, :1], START)
    return torch.cat([bits, start, prefix_parities(bits)[:, :-1]], 1)


@dataclass(frozen=True)
class ScratchpadParity:
    """Predict all prefix parities of n bits by squared error, with teacher forcing. Source: spec C.5.

    A batch is `batch_size` fresh uniform inputs as `with_scratchpad` gives them, int64 (batch, 2n); targets are the
    prefix parities, float (batch, n). Evaluation on 512 fixed inputs: `loss` (teacher-forced mean squared error) and
    `accuracy`, the share whose parity is right when the model reads its own rounded bits (the paper keeps runs above
    0.999). As a subject: `mp.BooleanCube(n, encoding=lambda x: with_scratchpad((x > 0).long()))`.
    """

    n: int
    d_model: int = 32
    layers: int = 2
    heads: int = 2
    batch_size: int = 128

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ArgumentError(f"n={self.n!r} is not a number of bits; give at least 1")

    def build(self) -> nn.Module:
        """The untrained model."""
        return ScratchpadTransformer(self.n, self.d_model, self.layers, self.heads)

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Bits with their scratchpad, and the prefix parities."""
        bits = torch.randint(0, 2, (self.batch_size, self.n), generator=generator)
        return with_scratchpad(bits), prefix_parities(bits).float()

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error over all steps."""
        return nn.functional.mse_loss(output, targets)

    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The metrics named above."""
        bits = torch.randint(0, 2, (EVALUATION_SIZE, self.n), generator=torch.Generator().manual_seed(self.n))
        truth = prefix_parities(bits)
        loss = ((forward(with_scratchpad(bits)) - truth) ** 2).double().mean()
        return {"loss": float(loss), "accuracy": float((written(forward, bits)[:, -1] == truth[:, -1]).double().mean())}


def written(forward: Callable[[Tensor], Tensor], bits: Tensor) -> Tensor:
    """What the model writes when it reads its own rounded bits, int64 (batch, n); n forward passes."""
    n = bits.shape[1]
    inputs = torch.cat([bits, torch.full_like(bits, START)], 1)
    answers = torch.zeros_like(bits)
    for step in range(n):
        answers[:, step] = (forward(inputs)[:, step] > 0.5).long()
        if step + 1 < n:
            inputs[:, n + step + 1] = answers[:, step]
    return answers


class ScratchpadTransformer(nn.Module):
    """`nn.Transformer` (post-LayerNorm, ReLU, no dropout, feed-forward width d_model), causal in the decoder.

    int64 (batch, 2n), the bits and the decoder's inputs -> (batch, n). Tokens and positions take half of the width
    each, as in `EncoderTransformer`; `positional_encoding` is shared by both sides. Raises `ArgumentError` for an odd
    d_model or heads that do not divide it.
    """

    def __init__(self, n: int, d_model: int, layers: int, heads: int) -> None:
        super().__init__()
        if d_model % 2 or d_model % heads:
            raise ArgumentError(f"d_model={d_model}, heads={heads}: give an even width that the heads divide")
        self.n = n
        self.token_embedding = nn.Embedding(START + 1, d_model // 2)
        self.positional_encoding = nn.Embedding(n, d_model // 2)
        self.transformer = nn.Transformer(d_model, heads, layers, layers, d_model, dropout=0.0, batch_first=True)
        self.head = nn.Linear(d_model, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """One real number a step; step t depends on the bits and on decoder inputs up to t."""
        if tokens.ndim != 2 or tokens.shape[1] != 2 * self.n:
            raise ArgumentError(
                f"tokens of shape {tuple(tokens.shape)}: give (batch, {2 * self.n}), as with_scratchpad"
            )
        mask = torch.full((self.n, self.n), -torch.inf, device=tokens.device).triu(1)
        read = self.transformer(
            self._embedded(tokens[:, : self.n]), self._embedded(tokens[:, self.n :]), tgt_mask=mask, tgt_is_causal=True
        )
        output: Tensor = self.head(read).squeeze(-1)
        return output

    def _embedded(self, tokens: Tensor) -> Tensor:
        positions = self.positional_encoding.weight.expand(len(tokens), -1, -1)
        return torch.cat([self.token_embedding(tokens), positions], -1)
