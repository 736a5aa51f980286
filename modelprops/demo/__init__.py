"""Two small trained Transformers, MAJORITY and PARITY on 12 bits, so that a first run has something real to test.

They were trained by `examples/train_demo.py`. Both carry the same card of claims: MAJORITY keeps them, PARITY does not.
Imports no torch until a model is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelprops.errors import LoadError

if TYPE_CHECKING:
    import torch

NAMES = ("majority", "parity")
LENGTH, WIDTH = 12, 32
_HERE = Path(__file__).parent


def card() -> dict[str, Any]:
    """The claims that the demo models are held to, and how the flatness bound was measured."""
    data: dict[str, Any] = json.loads((_HERE / "card.json").read_text(encoding="utf-8"))
    return data


def card_claims() -> tuple[str, ...]:
    """The claims of the card."""
    return tuple(card()["claims"])


def build() -> torch.nn.Module:
    """The untrained model: two layers, two heads, width 32; takes bits (batch, 12), returns a score (batch,)."""
    from modelprops.theory.transformer import EncoderTransformer

    return EncoderTransformer(LENGTH, WIDTH, layers=2, heads=2)


def load(name: str) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Return the trained model `majority` or `parity` and its claims. The sign of the output is the function."""
    if name not in NAMES:
        raise LoadError(f"demo:{name} is not shipped; use {' or '.join('demo:' + known for known in NAMES)}")
    import torch
    from safetensors.torch import load_file

    with torch.random.fork_rng():
        model = build()
    model.load_state_dict(load_file(_HERE / f"{name}.safetensors"), strict=True)
    return model.eval(), card_claims()
