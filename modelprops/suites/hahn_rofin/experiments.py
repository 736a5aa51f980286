"""The suite's experiments by name: what each runs at a preset. Their modules hold findings, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from modelprops.suites.hahn_rofin import (
    dynamics,
    generalisation,
    handcrafted,
    initialisation,
    lengths,
    scratchpad,
    tradeoff,
)
from modelprops.suites.hahn_rofin.presets import Preset
from modelprops.suites.hahn_rofin.trained import kept

MODULES: Mapping[str, ModuleType] = MappingProxyType(
    {
        "handcrafted": handcrafted,
        "initialisation": initialisation,
        "lengths": lengths,
        "tradeoff": tradeoff,
        "dynamics": dynamics,
        "generalisation": generalisation,
        "scratchpad": scratchpad,
    }
)

_RUNS: Mapping[str, Callable[[Preset, Path], dict[str, Any]]] = MappingProxyType(
    {
        "handcrafted": lambda preset, cache: kept(
            cache / f"handcrafted-{preset.draws}.json", lambda: handcrafted.run(preset.draws)
        ),
        "initialisation": lambda preset, cache: kept(
            cache / f"profile-{'-'.join(map(str, preset.initial_lengths))}-{preset.draws}.json",
            lambda: initialisation.run(preset.initial_lengths, preset.draws),
        ),
        "lengths": lengths.run,
        "tradeoff": tradeoff.run,
        "dynamics": dynamics.run,
        "generalisation": generalisation.run,
        "scratchpad": scratchpad.run,
    }
)


def run(name: str, preset: Preset, cache: Path) -> dict[str, Any]:
    """Run one experiment, or load those of its runs that are in `cache`; plain JSON types.

    On one thread: for models this small a second one costs more than it gives, and xdist workers would fight for cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _RUNS[name](preset, cache)
    finally:
        torch.set_num_threads(threads)
