"""Small networks on token sequences, and their frozen descriptions, which can be part of a run's configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError

ACTIVATIONS = ("relu", "square")


@dataclass(frozen=True)
class EmbeddingSum:
    """Describes `EmbeddingSumNetwork`: `hidden` units, `activation` `"relu"` or `"square"` (x^2)."""

    hidden: int = 128
    activation: str = "square"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ArgumentError(f"activation={self.activation!r} is unknown; use one of {', '.join(ACTIVATIONS)}")

    def build(self, vocabulary: int, length: int, classes: int) -> nn.Module:
        """The untrained network, drawn from torch's global generator."""
        return EmbeddingSumNetwork(vocabulary, length, classes, self.hidden, self.activation)


@dataclass(frozen=True)
class SmallTransformer:
    """Describes `TokenTransformer`; `mlp_width` defaults to 4 d_model.

    `per_position`: logits at every position behind a causal mask (a language model), else at a learned readout token
    that is appended to the input and sees all of it. `normalise=False` leaves all LayerNorms out.
    """

    d_model: int = 64
    layers: int = 1
    heads: int = 4
    mlp_width: int | None = None
    normalise: bool = True
    per_position: bool = False

    def build(self, vocabulary: int, length: int, classes: int) -> nn.Module:
        """The untrained network, drawn from torch's global generator."""
        return TokenTransformer(vocabulary, length, classes, self)


Network = EmbeddingSum | SmallTransformer


class EmbeddingSumNetwork(nn.Module):
    """One embedding table a position, their sum, an activation, a linear readout: tokens (batch, length) -> logits.

    With two positions and x^2 this is the smallest network that learns modular addition (spec C5). Logits are
    (batch, classes).
    """

    def __init__(self, vocabulary: int, length: int, classes: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(vocabulary, hidden) for _ in range(length))
        for table in self.tables:
            nn.init.normal_(table.weight, std=1 / math.sqrt(hidden))  # type: ignore[arg-type]  # an Embedding's weight
        self.head = nn.Linear(hidden, classes)
        self.activation = activation

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, classes) of tokens (batch, length)."""
        hidden = torch.stack([table(tokens[:, i]) for i, table in enumerate(self.tables)]).sum(0)
        logits: Tensor = self.head(hidden * hidden if self.activation == "square" else hidden.relu())
        return logits


class TokenTransformer(nn.Module):
    """A pre-LayerNorm Transformer with learned positions and ReLU: tokens (batch, length) -> logits.

    Logits are (batch, classes), or (batch, length, classes) with `per_position`. Raises `ArgumentError` if heads do
    not divide d_model.
    """

    def __init__(self, vocabulary: int, length: int, classes: int, network: SmallTransformer) -> None:
        super().__init__()
        d = network.d_model
        if d % network.heads:
            raise ArgumentError(f"d_model={d} is not divisible by heads={network.heads}; heads split the width evenly")
        self.per_position = network.per_position
        self.token_embedding = nn.Embedding(vocabulary, d)
        self.positional_encoding = nn.Parameter(torch.randn(length + (not network.per_position), d) / math.sqrt(d))
        nn.init.normal_(self.token_embedding.weight, std=1 / math.sqrt(d))
        self.blocks = nn.ModuleList(Block(network) for _ in range(network.layers))
        self.norm = nn.LayerNorm(d) if network.normalise else nn.Identity()
        self.head = nn.Linear(d, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens (batch, length)."""
        embedded = self.token_embedding(tokens)
        if not self.per_position:
            # The readout token is nothing but its position.
            embedded = torch.cat([embedded, embedded.new_zeros(len(tokens), 1, embedded.shape[-1])], 1)
        hidden = embedded + self.positional_encoding[: embedded.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        if not self.per_position:
            hidden = hidden[:, -1]
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention and a ReLU MLP, each with its skip and LayerNorm in front; causal for a language model."""

    def __init__(self, network: SmallTransformer) -> None:
        super().__init__()
        d, width = network.d_model, network.mlp_width or 4 * network.d_model
        self.heads, self.causal = network.heads, network.per_position
        self.norm_attention = nn.LayerNorm(d) if network.normalise else nn.Identity()
        self.norm_mlp = nn.LayerNorm(d) if network.normalise else nn.Identity()
        self.mixed = nn.Linear(d, 3 * d)
        self.joined = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, d))

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, length, d) -> (batch, length, d)."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.mixed(self.norm_attention(hidden)).chunk(3, -1)
        )
        read = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        hidden = hidden + self.joined(read.transpose(1, 2).flatten(-2))
        out: Tensor = hidden + self.mlp(self.norm_mlp(hidden))
        return out
