"""How much the suite computes: `quick` under 3 minutes on 2 cores, `standard` the report, `full` the paper's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Preset:
    """Sizes of one preset. Budgets are forward passes of single inputs, limits are optimiser steps.

    `moduli` of modular addition with `seeds` runs an arm and at most `modular_steps`; `transformer` adds the one-layer
    Transformer. `parity_bits` bits for noisy sparse parity; `parity_steps` and `text_steps` of 0 leave those
    experiments out. `tail_budget` and `contexts`: (encoder, language model), of the tail columns and of the influences.
    """

    seeds: int
    moduli: tuple[int, ...]
    modular_steps: int
    parity_bits: int
    parity_steps: int
    text_steps: int
    length: int
    tail_budget: tuple[int, int]
    contexts: tuple[int, int]
    transformer: bool = False


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "quick": Preset(2, (31,), 1000, 10, 0, 0, 64, (1000, 65), (4, 1)),
        "standard": Preset(6, (31,), 8000, 10, 800, 300, 64, (1300, 195), (16, 3)),
        "full": Preset(
            10, (31, 47, 113), 40_000, 20, 20_000, 20_000, 256, (200_000, 20_000), (128, 32), transformer=True
        ),
    }
)
