"""Train one model of the experiments and measure it: both forms of sharpness, blowup, norm, sensitivity.

All outputs are 0/1 as in the paper's code, so squared differences are multiplied by 4 (spec A.1); sums over inputs run
over the whole cube up to n = 14. What was measured is kept beside the run, so that a second call takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import modelprops as mp
from modelprops.properties.blowup import magnification, norms_of
from modelprops.properties.perturbation import perturbed_parameters
from modelprops.seeds import derive
from modelprops.suites.hahn_rofin.presets import Encoder, Preset
from modelprops.suites.hahn_rofin.theory_checks import moved_tables, to_bits, violations
from modelprops.training.configuration import Stop, TrainingConfig
from modelprops.training.loop import TrainingRun, train
from modelprops.training.storage import read_json, write_json
from modelprops.training.tasks import LARGEST_CUBE, BooleanProblem, BooleanTask

SIGMA = 0.02
"""Noise a parameter (spec C.0). Directions are uniform on the sphere of radius SIGMA sqrt(p), p parameters moved."""

CONVERGED = 1e-3
"""Only runs whose evaluation MSE (0/1 outputs) is below this are counted."""

INPUTS = 2**12
"""Inputs of a measurement where the cube is too large to enumerate."""

RADII = (0.01, 1.0, 100.0)
VERSION = 2
_ALL_OF_IT = 1e-12


@dataclass(frozen=True)
class Measured:
    """One trained model. Sharpness, loss sharpness and sensitivity are in ±1 units; intervals are at 99%.

    `sharpness`: L_rho = E (T_(theta+Delta) - T_theta)^2; `loss_sharpness`: E MSE(theta + Delta) - MSE(theta), which is
    what the paper plots; `blowup`: E Blowup^2 and `log_blowup`: E log Blowup, over 4 LayerNorms; `norm`: of all
    parameters but the positions; `sensitivity`: as_n(T). `loss`: evaluation MSE in 0/1 units.
    """

    task: str
    n: int
    seed: int
    weight_decay: float
    learning_rate: float
    steps: int
    seconds: float
    loss: float | None
    sharpness: Mapping[str, float]
    loss_sharpness: Mapping[str, float]
    blowup: float
    log_blowup: float
    norm: float
    sensitivity: float
    violations: int | None
    """Of the exact inequalities of spec A.10, over `RADII` times 4 random Delta; 0 is what the theorem says.

    None where the cube is too large to enumerate. A run that diverged has no number at all.
    """

    @property
    def converged(self) -> bool:
        """Whether it counts."""
        return self.loss is not None and self.loss < CONVERGED


def configuration(
    task: BooleanTask,
    encoder: Encoder,
    seed: int,
    *,
    weight_decay: float | None = None,
    learning_rate: float | None = None,
) -> TrainingConfig:
    """A run that ends `extra_steps` after its evaluation loss fell to half of `CONVERGED`."""
    return TrainingConfig(
        BooleanProblem(task, d_model=encoder.d_model, batch_size=encoder.batch_size),
        steps=encoder.steps,
        learning_rate=encoder.learning_rate if learning_rate is None else learning_rate,
        weight_decay=encoder.weight_decay if weight_decay is None else weight_decay,
        seed=seed,
        evaluate_every=50,
        stop=Stop("loss", below=CONVERGED / 2, extra_steps=encoder.extra_steps),
    )


def measured(config: TrainingConfig, cache: Path, preset: Preset) -> Measured:
    """Train (or load) the run and measure it (or load what was measured)."""
    task, directions = config.problem.task, preset.directions
    run = train(config, cache=cache, device=preset.device, progress=f"{task.name} n={task.n}")
    values = kept(cache / config.hash() / f"measured-{directions}.json", lambda: asdict(_measure(run, directions)))
    return Measured(**values)


def kept(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON object in `path`, made and written first if it is not there or of another version."""
    if path.exists():
        data = read_json(path)
        if data.pop("version", None) == VERSION:
            return data
    made = dict(make())
    write_json(path, {**made, "version": VERSION})
    return made


def subject_of(run: TrainingRun) -> mp.Subject:
    """The run's model as a subject on the cube, its real output as readout."""
    task = run.config.problem.task
    return mp.Subject(run.model, mp.BooleanCube(task.n, encoding=to_bits), name=f"{task.name}-{task.n}")


def sharpness_of(subject: mp.Subject, directions: int, seed: int, loss: Any = None) -> dict[str, float]:
    """Sharpness times 4 with its interval over `directions` directions; over the whole cube where it is small.

    Give every model and every step a `seed` of its own: means over models then average over directions as well.
    """
    count = sum(weight.numel() for weight in perturbed_parameters(subject).values())
    n = subject.domain.coordinates
    inputs = 2**n if n <= LARGEST_CUBE else INPUTS
    found = mp.sharpness(
        subject,
        radius=SIGMA * count**0.5,
        loss=loss,
        inputs=inputs,
        budget=(directions + (directions + 63) // 64) * inputs,
        width=_ALL_OF_IT,
        seed=seed,
    )
    return {name: 4 * float(getattr(found, name)) for name in ("value", "low", "high")}


def log_blowups(subject: mp.Subject, points: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """log Blowup(x) = sum over LayerNorms of log max_w (1 + N_w), shape (points,)."""
    factors = magnification(subject, points, norms_of(subject.module))
    total: np.ndarray[Any, np.dtype[np.float64]] = np.log(np.stack(list(factors.values()))).sum(0)
    return total


def points_of(subject: mp.Subject) -> Tensor:
    """The whole cube, or `INPUTS` fixed inputs of it."""
    domain: Any = subject.domain
    if domain.coordinates <= LARGEST_CUBE:
        whole: Tensor = domain.exhaustive()
        return whole
    sampled: Tensor = domain.sample(INPUTS, torch.Generator().manual_seed(domain.coordinates))
    return sampled


def _measure(run: TrainingRun, directions: int) -> Measured:
    config, subject = run.config, subject_of(run)
    task = config.problem.task
    if run.stopped == "diverged":
        return _diverged(run)
    logs = log_blowups(subject, points_of(subject))
    seed = derive(0, "directions", config.hash())

    def loss(output: Tensor, points: Tensor) -> Tensor:
        targets: Tensor = task.targets(to_bits(points))
        return (output - targets.to(output.dtype)) ** 2

    return Measured(
        task=task.name,
        n=task.n,
        seed=config.seed,
        weight_decay=config.weight_decay,
        learning_rate=config.learning_rate,
        steps=run.steps,
        seconds=run.seconds,
        loss=run.final["loss"],
        sharpness=sharpness_of(subject, directions, seed),
        loss_sharpness=sharpness_of(subject, directions, seed, loss),
        blowup=float(np.exp(2 * logs).mean()),
        log_blowup=float(logs.mean()),
        norm=float(mp.parameter_norm(subject, exclude="positional_encoding").value),
        sensitivity=4 * float(mp.average_sensitivity(subject).value),
        violations=sum(violations(*pair) for pair in moved_tables(subject, RADII, 4))
        if task.n <= LARGEST_CUBE
        else None,
    )


def _diverged(run: TrainingRun) -> Measured:
    config, nothing = run.config, math.nan
    none = {"value": nothing, "low": nothing, "high": nothing}
    task, rates = config.problem.task, (config.weight_decay, config.learning_rate)
    known = (task.name, task.n, config.seed, *rates, run.steps, run.seconds, None, none, none)
    return Measured(*known, nothing, nothing, nothing, nothing, None)


def converged(rows: Sequence[Measured]) -> list[Measured]:
    """The rows that count."""
    return [row for row in rows if row.converged]
