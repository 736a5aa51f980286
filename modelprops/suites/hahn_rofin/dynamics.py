"""C.3: sharpness, blowup and norm while PARITY is being learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import modelprops as mp
from modelprops.errors import NonFiniteOutputError
from modelprops.seeds import derive
from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import mean_interval, shown
from modelprops.suites.hahn_rofin.presets import Preset
from modelprops.suites.hahn_rofin.theory_checks import to_bits
from modelprops.suites.hahn_rofin.trained import configuration, log_blowups, points_of, sharpness_of
from modelprops.training.configuration import Stop
from modelprops.training.loop import train
from modelprops.training.tasks import BooleanTask

TITLE = "C.3: training dynamics"
LEARNED = 0.01
"""Step 0 of a run's clock: the first evaluation with an MSE below this."""

PLATEAU = 0.2
"""The loss has not begun to fall before the last evaluation above this (guessing: 0.25)."""

BEFORE, AFTER = -500, 1000
SHARE = 0.8
LEAST_RUNS = 3
"""Criterion of the specification: this share of the converged runs shows the pattern; of fewer runs none is taken."""


@dataclass(frozen=True)
class Watch:
    """Observer: sharpness (fresh directions, ±1 units), mean Blowup and norm on the cube of n bits."""

    n: int
    every: int
    directions: int
    seed: int

    def measure(self, model: nn.Module, step: int) -> Mapping[str, float]:
        """The three numbers; NaN where the model's outputs are not finite."""
        subject = mp.Subject(model, mp.BooleanCube(self.n, encoding=to_bits))
        try:
            return self._numbers(subject, step)
        except NonFiniteOutputError:
            return dict.fromkeys(("sharpness", "blowup", "norm"), math.nan)  # the run diverged, and will be left out

    def _numbers(self, subject: mp.Subject, step: int) -> Mapping[str, float]:
        return {
            "sharpness": sharpness_of(subject, self.directions, derive(self.seed, "watch", step))["value"],
            "blowup": float(np.exp(log_blowups(subject, points_of(subject))).mean()),
            "norm": float(mp.parameter_norm(subject, exclude="positional_encoding").value),
        }


def run(preset: Preset, cache: Path) -> dict[str, Any]:
    """One curve a weight decay and seed."""
    chosen = preset.dynamics
    curves = []
    for decay in chosen.decays:
        for seed in range(chosen.seeds):
            plain = configuration(BooleanTask("parity", chosen.n), preset.encoder, seed, weight_decay=decay)
            config = replace(
                plain,
                steps=plain.steps + chosen.after,
                evaluate_every=chosen.every,
                stop=Stop("loss", below=LEARNED, extra_steps=chosen.after),
                observers=(Watch(chosen.n, chosen.every, chosen.directions, seed),),
            )
            found = train(config, cache=cache, device=preset.device, progress=f"dynamics wd={decay:g}")
            curves.append(
                {
                    "weight_decay": decay,
                    "seed": seed,
                    "seconds": found.seconds,
                    "learned_at": found.steps_to("loss", below=LEARNED),
                    "history": [dict(row) for row in found.history],
                }
            )
    return {"n": chosen.n, "curves": curves}


def pattern(curve: Mapping[str, Any]) -> dict[str, Any] | None:
    """How sharpness, blowup and norm change around convergence; None for a run that did not learn PARITY.

    `sharpness` and `blowup`: their factor against the median on the plateau, blowup at its largest in [-500, +1000],
    sharpness at +1000 (or the end); `norm`: its change from convergence to the end.
    """
    if curve["learned_at"] is None:
        return None
    rows = [row for row in curve["history"] if row["sharpness"] is not None]
    clock = np.array([row["step"] for row in rows]) - curve["learned_at"]
    columns = {name: np.array([row[name] for row in rows]) for name in ("loss", "sharpness", "blowup", "norm")}
    waiting = np.flatnonzero((columns["loss"] > PLATEAU) & (clock < 0))
    plateau = slice(0, int(waiting.max()) + 1 if len(waiting) else 1)
    around = (clock >= BEFORE) & (clock <= AFTER)
    later = int(np.flatnonzero(clock <= AFTER).max())
    return {
        "weight_decay": curve["weight_decay"],
        "sharpness": float(columns["sharpness"][later] / np.median(columns["sharpness"][plateau])),
        "blowup": float(columns["blowup"][around].max() / np.median(columns["blowup"][plateau])),
        "norm": float(columns["norm"][-1] - columns["norm"][int(np.flatnonzero(clock >= 0).min())]),
    }


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """Each part of the pattern, over the runs that learned PARITY."""
    seen = [found for curve in data["curves"] if (found := pattern(curve))]
    dropped = f"{len(data['curves']) - len(seen)} of {len(data['curves'])} runs did not learn PARITY"
    decayed = [found for found in seen if found["weight_decay"] > 0]
    parts = (
        (
            "sharpness more than doubles as the loss falls",
            [found["sharpness"] > 2 for found in seen],
            "sharpness",
            seen,
        ),
        (
            "LayerNorm blowup more than doubles at the same time",
            [found["blowup"] > 2 for found in seen],
            "blowup",
            seen,
        ),
        ("the parameter norm falls afterwards (weight decay > 0)", [f["norm"] < 0 for f in decayed], "norm", decayed),
    )
    rows = []
    for name, holds, quantity, chosen in parts:
        share = sum(holds) / len(holds) if holds else 0.0
        unit = "change" if quantity == "norm" else "factor"
        rows.append(
            Finding(
                f"PARITY, n = {data['n']}: {name}",
                "C.3 (Figure 3)",
                OUT if len(holds) < LEAST_RUNS else REPRODUCED if share >= SHARE else PARTLY if share >= 0.5 else NOT,
                f"in {sum(holds)} of {len(holds)} runs; mean {unit} "
                f"{shown(mean_interval([found[quantity] for found in chosen]))}; {dropped}",
            )
        )
    return rows


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """One row a run."""
    header = ("weight decay", "seed", "learned at step", "sharpness x", "largest Blowup x", "norm change")
    body = []
    for curve in data["curves"]:
        found = pattern(curve)
        cells = ["-"] * 3 if found is None else [f"{found[name]:.3g}" for name in ("sharpness", "blowup", "norm")]
        learned = "never" if curve["learned_at"] is None else str(curve["learned_at"])
        body.append([f"{curve['weight_decay']:g}", str(curve["seed"]), learned, *cells])
    yield header, body


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """Loss and sharpness of every run, aligned at convergence."""
    twin = axis.twinx()
    for curve in data["curves"]:
        if curve["learned_at"] is not None:
            rows = [row for row in curve["history"] if row["sharpness"] is not None]
            clock = [row["step"] - curve["learned_at"] for row in rows]
            axis.plot(clock, [row["sharpness"] for row in rows], color="tab:red", linewidth=0.7)
            twin.plot(clock, [row["loss"] for row in rows], color="tab:blue", linewidth=0.7)
    axis.set(xlabel="steps after MSE < .01", title=f"PARITY, n = {data['n']}", xlim=(-2500, None))
    axis.set_ylabel("sharpness", color="tab:red")
    twin.set_ylabel("evaluation MSE", color="tab:blue")
