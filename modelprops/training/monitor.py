"""Watch a model's properties while it trains, and find where a curve changes level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.properties.claim import claim
from modelprops.subject import Subject

STANDARD = (
    "average_sensitivity",
    "noise_stability(rho=0.9)",
    "sharpness(radius=0.1)",
    "layernorm_blowup",
    "parameter_norm",
)
"""Name `measures=` without the blowup for a model that has no LayerNorm."""

_ALL_OF_IT = 1e-12  # a width that no interval reaches, so that the whole budget is spent
_SHUFFLES = 999


@dataclass(frozen=True)
class Monitor:
    """Measures `measures` (texts as in a claim) every `every` steps, each for at most `budget` model evaluations.

    In `TrainingConfig.observers` the values become columns of the history, named by the texts; in a Trainer use
    `monitor_callback`; in any other loop call `measure(model, step)`. The same seed is used at every step, so a curve
    shows the model change and not the sample: one input set and one set of directions along the whole run. Values are
    those of the measures (`properties/`): exact on a small cube, else estimates with an error that `budget` sets.

    `domain` and `readout` are those of a `Subject`. Raises `ArgumentError` for a text that names no measure.
    """

    domain: Any
    measures: tuple[str, ...] = STANDARD
    readout: Any = None
    every: int = 100
    budget: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ArgumentError(f"every={self.every!r} is not a number of steps; give at least 1")
        for text in self.measures:
            if claim(text).threshold is not None:
                raise ArgumentError(f"{text!r} has a threshold; a monitor only measures, leave the comparison out")

    def measure(self, model: nn.Module, step: int = 0) -> dict[str, float]:
        """Text -> value. The model is left bit for bit as it is, its mode and the global generators included."""
        subject = Subject(model, self.domain, self.readout)
        values = {}
        for text in self.measures:
            asked = claim(text)
            estimate = asked.measure(subject, budget=self.budget, width=_ALL_OF_IT, seed=self.seed, **asked.parameters)
            values[text] = float(estimate.value)
        return values


@dataclass(frozen=True)
class ChangePoint:
    """The best split of a curve into two levels.

    `step`: the first of the second level, `before` and `after`: the two means, `p_value`: of the hypothesis that the
    values are exchangeable (permutation test), `found`: it is at most the significance asked for.
    """

    step: int
    before: float
    after: float
    p_value: float
    found: bool


def change_point(
    steps: Sequence[int], values: Sequence[float], *, significance: float = 0.01, seed: int = 0
) -> ChangePoint:
    """Split a curve where two constant levels fit best (least squares), with a permutation test.

    The statistic is max_k k (m - k)/m (mean after - mean before)^2 over splits with at least two values on each side;
    under the null hypothesis of exchangeable values P(found) <= significance. A slow drift is no null hypothesis
    either and is found as well: look at the curve. 999 shuffles, so significance below 0.001 finds nothing.
    Raises `ArgumentError` for fewer than four values or unequal lengths.
    """
    curve = np.asarray(values, dtype=np.float64)
    if len(curve) < 4 or len(steps) != len(curve) or not np.isfinite(curve).all():
        raise ArgumentError(
            f"{len(steps)} steps and {len(curve)} values: a change point needs at least four finite values, one a step"
        )
    gains = _gains(curve[None])[0]
    split = int(gains.argmax()) + 2
    shuffled = np.random.default_rng(seed).permuted(np.tile(curve, (_SHUFFLES, 1)), axis=1)
    as_good = int((_gains(shuffled).max(1) >= gains.max() * (1 - 1e-9)).sum())
    p_value = (1 + as_good) / (1 + _SHUFFLES)
    return ChangePoint(
        int(steps[split]), float(curve[:split].mean()), float(curve[split:].mean()), p_value, p_value <= significance
    )


def _gains(curves: Array) -> Array:
    """The fall of the squared error for every split after value 2, 3, ..., m - 2; curves (count, m)."""
    count = curves.shape[1]
    sizes = np.arange(2, count - 1)
    sums = curves.cumsum(1)
    before = sums[:, sizes - 1] / sizes
    after = (sums[:, -1:] - sums[:, sizes - 1]) / (count - sizes)
    gains: Array = sizes * (count - sizes) / count * (after - before) ** 2
    return gains
