"""How much the suite computes: `quick` under 3 minutes on 2 cores, `standard` the report, `full` the paper's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Preset:
    """Sizes of one preset. Budgets are forward passes of single inputs, limits are optimiser steps.

    `moduli`: (modulus, limit) of modular addition, `seeds` runs an arm; `transformer`: (modulus, limit, seeds) of it
    with the one-layer Transformer, or None. `parity_bits` bits for noisy sparse parity; `parity_steps` and `text_steps`
    of 0 leave those experiments out. `tail_budget`, `repeat_budget` and `contexts`: (encoder, language model), of a
    tail column, of the same with another seed (0: left out), and of the influences. `standard` stops the Transformer at
    600 steps and 3 seeds: a step takes 20 ms on a CPU, 40 ms with a regulariser.
    """

    seeds: int
    moduli: tuple[tuple[int, int], ...]
    transformer: tuple[int, int, int] | None
    parity_bits: int
    parity_steps: int
    text_steps: int
    length: int
    tail_budget: tuple[int, int]
    repeat_budget: tuple[int, int]
    contexts: tuple[int, int]


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "quick": Preset(2, ((31, 1000),), None, 10, 0, 0, 64, (1000, 60), (0, 0), (4, 1)),
        "standard": Preset(
            6, ((31, 8000), (47, 2000)), (31, 600, 3), 10, 800, 300, 64, (4500, 900), (1200, 200), (48, 8)
        ),
        "full": Preset(
            10,
            ((31, 40_000), (47, 40_000), (113, 40_000)),
            (113, 40_000, 10),
            20,
            20_000,
            20_000,
            256,
            (200_000, 20_000),
            (50_000, 5000),
            (128, 32),
        ),
    }
)
