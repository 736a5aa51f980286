"""What a training run is: the problem, the optimiser's numbers, when to stop, what is added and what is observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError
from modelprops.training.storage import configuration_hash

VERSION = 1
"""Part of every configuration's hash; raised when the loop computes something else."""


class Problem(Protocol):
    """What is learned: a frozen dataclass with these methods, so that it can be part of a configuration's hash."""

    def build(self) -> nn.Module:
        """The untrained model, drawn from torch's global generator (which the loop seeds and restores)."""

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step; all randomness from `generator`."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """The scalar that is minimised."""

    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> Mapping[str, float]:
        """Metrics of the model as a function of inputs; `forward` runs in eval mode without gradients, in batches."""


class Regulariser(Protocol):
    """A term added to the loss: a frozen dataclass such as `StabilityRegulariser`."""

    def penalty(
        self,
        model: nn.Module,
        inputs: Tensor,
        output: Any,
        generator: torch.Generator | None = None,
        *,
        mask: Tensor | None = None,
        forward: Callable[[Tensor], Any] | None = None,
    ) -> Tensor:
        """The scalar to add to the loss, its weight included; `output` is the model's at `inputs`, with its graph.

        `mask` (batch, length) is 0 on padding. `forward` is how to call the model where it takes more than the inputs.
        """


class Observer(Protocol):
    """Measures the model every `every` steps; its numbers go into the history. A frozen dataclass such as `Monitor`."""

    @property
    def every(self) -> int:
        """How many steps lie between two measurements; step 0 is measured as well."""

    def measure(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """The numbers; it runs in eval mode and cannot disturb the training's randomness."""


@dataclass(frozen=True)
class Stop:
    """Stop when an evaluation metric first is `below` or `above` a level, and `extra_steps` later."""

    metric: str = "loss"
    below: float | None = None
    above: float | None = None
    extra_steps: int = 0

    def __post_init__(self) -> None:
        if (self.below is None) == (self.above is None):
            raise ArgumentError(f"Stop({self.metric!r}) needs either below= or above=, and not both")

    def reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Whether the metric is past the level. Raises `ArgumentError` if the problem has no such metric."""
        if self.metric not in metrics:
            raise ArgumentError(f"the stop metric {self.metric!r} is not evaluated; use one of {', '.join(metrics)}")
        return past(metrics[self.metric], self.below, self.above)


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that a run's result depends on. AdamW with a constant learning rate, as in the papers' experiments.

    `steps`: the most optimiser steps. `evaluate_every`: steps between evaluations; `stop` looks at those only.
    `seed` draws the initial weights, the batches and the regulariser's noise, each from its own generator.
    Raises `ArgumentError` for numbers that make no run.
    """

    problem: Any
    steps: int = 10_000
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    seed: int = 0
    evaluate_every: int = 100
    stop: Stop | None = None
    regulariser: Any = None
    observers: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "evaluate_every"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)!r} is not a number of steps; give at least 1")
        if not self.learning_rate > 0 or self.weight_decay < 0:
            raise ArgumentError(
                f"learning_rate={self.learning_rate!r}, weight_decay={self.weight_decay!r}: "
                "give a positive rate and a decay of at least 0"
            )

    def hash(self) -> str:
        """16 hexadecimal digits that name this run."""
        return configuration_hash(self, VERSION)


def past(value: float | None, below: float | None, above: float | None) -> bool:
    if value is None:
        return False
    return (below is not None and value <= below) or (above is not None and value >= above)
