"""How much the suite computes: `quick` under 2 minutes on 2 cores, `standard` under an hour, `full` near the paper.

`full` leaves out of the paper's sizes: the lengths up to 512 at d = 4 (C.1), MAJORITY and MEAN in the search (C.2), the
100,000-step runs (C.3; ours stop 15,000 steps after convergence), five seeds for each saved table (C.4) and 20 of 30
scratchpad lengths (C.5). It has not been run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from modelprops.settings import defaults


@dataclass(frozen=True)
class Encoder:
    """Model and optimiser of the trained experiments (spec C.0): width, batch, learning rate, weight decay, steps.

    `extra_steps`: how long a run goes on after its evaluation loss fell below the level that ends it; a run trains for
    at most `steps`. The paper trains every run for 10,000 steps.
    """

    d_model: int = 32
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    steps: int = 8000
    extra_steps: int = 200


@dataclass(frozen=True)
class Search:
    """C.2: random (weight decay, learning rate) from uniform ranges at each length.

    Until `runs` PARITY runs converged, with at most twice as many tried. `standard` learns faster than the paper and
    scales the decay down, so that learning rate times decay, what AdamW takes off a step, spans the paper's [0, 2e-4]
    (with the paper's decays at these rates half of the runs on 10 bits do not learn PARITY in 8,000 steps).
    """

    lengths: tuple[int, ...]
    runs: int
    weight_decay: tuple[float, float] = (0.0, 0.4)
    learning_rate: tuple[float, float] = (1e-4, 5e-4)


@dataclass(frozen=True)
class Dynamics:
    """C.3: PARITY on n bits, every `every` steps one row from `directions` draws, `after` steps beyond convergence."""

    n: int
    decays: tuple[float, ...]
    seeds: int
    every: int = 50
    directions: int = 20
    after: int = 1500


@dataclass(frozen=True)
class Generalisation:
    """C.4: training sets of `sizes` strings of n bits, `functions` random targets, `seeds` runs of each.

    `tables` learned and as many random tables of each size are then learned on the whole cube.
    """

    n: int
    sizes: tuple[int, ...]
    functions: int
    seeds: int
    tables: int
    steps: int = 3000


@dataclass(frozen=True)
class Scratchpad:
    """C.5: PARITY with a scratchpad on each length, `seeds` runs of at most `steps`."""

    lengths: tuple[int, ...]
    seeds: int
    steps: int = 3000


@dataclass(frozen=True)
class Preset:
    """Sizes of one preset; None leaves an experiment out.

    `lengths` and `seeds`: C.1. `directions`: draws of a sharpness. `draws`: random models for each initialisation and
    length `initial_lengths`, and noise draws of the handcrafted model's table. `device`: where models are trained.
    """

    encoder: Encoder
    lengths: tuple[int, ...]
    seeds: int
    directions: int
    initial_lengths: tuple[int, ...]
    draws: int
    search: Search | None
    dynamics: Dynamics
    generalisation: Generalisation
    scratchpad: Scratchpad
    device: str = "cpu"


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "quick": Preset(
            encoder=Encoder(),
            lengths=(4, 6),
            seeds=1,
            directions=64,
            initial_lengths=(4, 6, 8),
            draws=12,
            search=None,
            dynamics=Dynamics(6, (0.1,), seeds=1, after=1000),
            generalisation=Generalisation(6, (16, 40), functions=2, seeds=1, tables=2),
            scratchpad=Scratchpad((8, 12), seeds=1),
        ),
        "standard": Preset(
            encoder=Encoder(),
            lengths=(4, 6, 8, 10, 12),
            seeds=3,
            directions=64,
            initial_lengths=(6, 8, 10),
            draws=30,
            search=Search((5, 10), runs=30, weight_decay=(0.0, 0.1), learning_rate=(1e-3, 2e-3)),
            dynamics=Dynamics(10, (0.0, 0.1, 0.3), seeds=3, after=1000),
            generalisation=Generalisation(8, (32, 64, 128), functions=4, seeds=3, tables=6),
            scratchpad=Scratchpad((8, 16, 24, 40), seeds=2),
        ),
        "full": Preset(
            encoder=Encoder(128, 1024, 3e-4, 0.1, steps=10_000, extra_steps=10_000),
            lengths=tuple(range(4, 31)),
            seeds=10,
            directions=64,
            initial_lengths=(6, 8, 10, 12),
            draws=100,
            search=Search((5, 10, 15, 20), runs=500),
            dynamics=Dynamics(25, (0.0, 0.1, 0.2, 0.3), seeds=101, every=100, directions=500, after=15_000),
            generalisation=Generalisation(10, (128, 256, 512), functions=10, seeds=10, tables=100, steps=10_000),
            scratchpad=Scratchpad((4, 39, 74, 109, 144, 215, 320, 512, 742, 1024), seeds=10, steps=10_000),
        ),
    }
)


def preset_in_force() -> Preset:
    """The sizes that `--modelprops-preset` asks for."""
    return PRESETS[defaults().preset]
