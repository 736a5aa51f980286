"""C.1: sharpness of trained models against length, for PARITY and three tasks of low sensitivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import mean_interval, resampled_interval, shown, slope
from modelprops.suites.hahn_rofin.presets import Preset
from modelprops.suites.hahn_rofin.trained import Measured, configuration, converged, measured
from modelprops.training.tasks import RULES, BooleanTask

TITLE = "C.1: sharpness against length"
RATIO = 1.5
"""Criterion of the specification: mean sharpness of PARITY over the largest of the other tasks, for n >= 6."""

FROM = 6
SIGNIFICANT = 0.01


def run(preset: Preset, cache: Path) -> dict[str, Any]:
    """Every task at every length until `seeds` runs converged, with at most twice as many seeds."""
    rows: list[Measured] = []
    for n in preset.lengths:
        for task in RULES:
            counted = 0
            for seed in range(2 * preset.seeds):
                if counted < preset.seeds:
                    config = configuration(BooleanTask(task, n), preset.encoder, seed)
                    rows.append(measured(config, cache, preset))
                    counted += rows[-1].converged
    return {"rows": [asdict(row) for row in rows]}


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """PARITY is sharper than the others, and grows with length while they do not."""
    rows = [Measured(**row) for row in data["rows"]]
    counted = converged(rows)
    dropped = f"{len(rows) - len(counted)} of {len(rows)} runs discarded (evaluation MSE >= 1e-3)"
    ratios = {n: _ratio(counted, n) for n in sorted({row.n for row in rows}) if n >= FROM}
    slopes = {task: _slope(counted, task) for task in RULES}
    parity = slopes["parity"]
    above = [ratio is not None and ratio["value"] > RATIO for ratio in ratios.values()]
    tested = [row.violations for row in rows if row.violations is not None]
    return [
        Finding(
            f"Sharpness of PARITY is above {RATIO} times that of every other task at each n >= {FROM}",
            "C.1 (Figure 1), C.6",
            OUT if not any(ratios.values()) else REPRODUCED if all(above) else PARTLY if any(above) else NOT,
            "ratio to the largest: "
            + ", ".join(f"{shown(ratio) if ratio else 'no converged runs'} (n = {n})" for n, ratio in ratios.items())
            + f"; {dropped}",
        ),
        Finding(
            "E (T' - T)^2 is never below the two exact bounds, for trained models and any Delta",
            "A.10",
            OUT if not tested else NOT if sum(tested) else REPRODUCED,
            f"{sum(tested)} violations in {12 * len(tested)} pairs, |Delta| from .01 to 100",
        ),
        Finding(
            "Sharpness of PARITY grows with length, that of the others does not (slopes under a fifth)",
            "C.1 (Figure 1)",
            _slope_status(slopes),
            "slope a bit: "
            + ", ".join(f"{task} {shown(found)}" for task, found in slopes.items())
            + (f"; p = {parity['p_value']:.2g} for PARITY" if parity["p_value"] is not None else "")
            + ("; the interval has 0 in it, so more runs could still show a rise" if _undecided(parity) else ""),
            doubtful=True,
        ),
    ]


def _slope_status(slopes: Mapping[str, Mapping[str, Any]]) -> str:
    parity = slopes["parity"]
    if parity["value"] is None:
        return OUT
    if parity["value"] <= 0 or parity["p_value"] >= SIGNIFICANT:
        return NOT
    others = [abs(found["value"]) for task, found in slopes.items() if task != "parity" and found["value"] is not None]
    return REPRODUCED if 5 * max(others, default=0) < parity["value"] else PARTLY


def _undecided(found: Mapping[str, Any]) -> bool:
    return found["value"] is not None and found["low"] <= 0 <= found["high"]


def _ratio(rows: Sequence[Measured], n: int) -> dict[str, Any] | None:
    """Mean sharpness of PARITY over that of the sharpest other task; None where a task has no run that counts."""
    groups = {task: [row.sharpness["value"] for row in rows if (row.task, row.n) == (task, n)] for task in RULES}
    if not all(groups.values()):
        return None

    def ratio(*samples: Any) -> float:
        means = dict(zip(groups, (float(np.mean(sample)) for sample in samples), strict=True))
        return means.pop("parity") / max(means.values())

    return resampled_interval(ratio, *groups.values())


def _slope(rows: Sequence[Measured], task: str) -> dict[str, Any]:
    chosen = [row for row in rows if row.task == task]
    return slope([row.n for row in chosen], [row.sharpness["value"] for row in chosen])


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Means over seeds; runs that did not converge are counted and left out."""
    rows = [Measured(**row) for row in data["rows"]]
    header = ("task", "n", "counted", "steps", "L_rho", "loss form", "E Blowup^2", "norm", "as_n")
    body = []
    for task in RULES:
        for n in sorted({row.n for row in rows}):
            everything = [row for row in rows if (row.task, row.n) == (task, n)]
            chosen = converged(everything)
            cells = [
                shown(mean_interval([row.sharpness["value"] for row in chosen])),
                shown(mean_interval([row.loss_sharpness["value"] for row in chosen])),
                shown(mean_interval([row.blowup for row in chosen])),
                shown(mean_interval([row.norm for row in chosen])),
                f"{mean_interval([row.sensitivity for row in chosen])['value']:.3g}",
            ]
            steps = ", ".join(str(row.steps) for row in everything)
            body.append([task.upper(), str(n), f"{len(chosen)} of {len(everything)}", steps, *cells])
    yield header, body


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """Sharpness of every run, and the mean of each task."""
    rows = converged([Measured(**row) for row in data["rows"]])
    for place, task in enumerate(RULES):
        chosen = [row for row in rows if row.task == task]
        lengths = sorted({row.n for row in chosen})
        color = f"C{place}"
        axis.plot([row.n for row in chosen], [row.sharpness["value"] for row in chosen], ".", color=color, alpha=0.5)
        means = [mean_interval([row.sharpness["value"] for row in chosen if row.n == n])["value"] for n in lengths]
        axis.plot(lengths, means, color=color, label=task.upper())
    axis.set(xlabel="length n", ylabel="sharpness L_rho (±1 units)", title="trained models", ylim=(0, None))
    axis.legend(fontsize="small")
