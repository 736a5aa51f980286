"""What the experiments need to train: tasks, one loop, the stability regulariser, a monitor; loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "BooleanTask": "tasks",
    "BooleanProblem": "tasks",
    "TrainingConfig": "configuration",
    "Stop": "configuration",
    "TrainingRun": "loop",
    "Moment": "loop",
    "train": "loop",
    "StabilityRegulariser": "regulariser",
    "EmbeddingNoise": "hidden_noise",
    "LayerNoise": "hidden_noise",
    "ModularAddition": "classification",
    "NoisySparseParity": "classification",
    "NextToken": "language",
    "ScratchpadParity": "scratchpad",
    "EmbeddingSum": "networks",
    "SmallTransformer": "networks",
    "Monitor": "monitor",
    "change_point": "monitor",
    "RegularisedTrainerMixin": "trainer",
    "monitor_callback": "trainer",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
