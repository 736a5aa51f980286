"""C.2: parameter norm against LayerNorm blowup, over random weight decays and learning rates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from modelprops.seeds import derive
from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import rank_correlation, resampled_interval, shown
from modelprops.suites.hahn_rofin.presets import Preset
from modelprops.suites.hahn_rofin.trained import Measured, configuration, converged, measured
from modelprops.training.tasks import BooleanTask

TITLE = "C.2: parameter norm against blowup"
TASKS = ("parity", "first")
CORRELATION = -0.3
LEAST_RUNS = 30
"""Criterion of the specification: Spearman below this over at least so many converged PARITY runs at n >= 10."""

FROM = 10


def run(preset: Preset, cache: Path) -> dict[str, Any]:
    """PARITY and, for comparison, FIRST, each with the same random (weight decay, learning rate, seed)."""
    rows: list[Measured] = []
    search = preset.search
    if search is None:
        return {"rows": []}
    for n in search.lengths:
        generator = np.random.default_rng(derive(0, "search", n))
        counted = 0
        for seed in range(2 * search.runs):
            if counted == search.runs:
                break
            decay, rate = (
                float(f"{generator.uniform(*ends):.6f}") for ends in (search.weight_decay, search.learning_rate)
            )
            rows += [
                measured(
                    configuration(BooleanTask(task, n), preset.encoder, seed, weight_decay=decay, learning_rate=rate),
                    cache,
                    preset,
                )
                for task in TASKS
            ]
            counted += sum(row.converged for row in rows[-len(TASKS) :] if row.task == "parity")
    return {"rows": [asdict(row) for row in rows]}


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """A negative rank correlation at fixed n, and a frontier that moves outward with n."""
    rows = converged([Measured(**row) for row in data["rows"]])
    lengths = sorted({row.n for row in rows})
    found = {(task, n): _correlation(rows, task, n) for task in TASKS for n in lengths}
    dropped = f"{len(data['rows']) - len(rows)} of {len(data['rows'])} runs discarded"
    usable = [n for n in lengths if n >= FROM and found["parity", n]["count"] >= LEAST_RUNS]
    statuses = [_status(found["parity", n], found["first", n]) for n in usable]
    corners = [frontier_move(rows, *pair) for pair in itertools.pairwise(lengths)]
    moves = [move for move in corners if move is not None and move["low"] is not None]
    return [
        Finding(
            f"At fixed n >= {FROM}, norm and log blowup of PARITY models trade off (Spearman < {CORRELATION}), "
            "and not those of a task of low sensitivity",
            "C.2 (Figure 2)",
            OUT if not statuses else statuses[0] if len(set(statuses)) == 1 else PARTLY,
            "; ".join(f"{task.upper()} n = {n}: {shown(value)}" for (task, n), value in found.items()) + f"; {dropped}"
            if found
            else "no runs at this preset",
        ),
        Finding(
            "The least of (standardised norm + log blowup) over PARITY runs increases with n",
            "C.2 (Figure 2)",
            OUT
            if not moves
            else REPRODUCED
            if all(move["low"] > 0 for move in moves)
            else PARTLY
            if all(move["value"] > 0 for move in moves)
            else NOT,
            "increase " + ", ".join(f"{shown(move)} (n = {move['lengths']})" for move in moves)
            if moves
            else "no runs at this preset",
            doubtful=True,
        ),
    ]


def _status(parity: Mapping[str, Any], control: Mapping[str, Any]) -> str:
    """Reproduced only where the trade-off is not as well found in the control, whose sensitivity is 1."""
    if parity["value"] is None:
        return OUT
    if not (parity["value"] < CORRELATION and parity["high"] < 0):
        return PARTLY if parity["value"] < CORRELATION else NOT
    return PARTLY if control["high"] is not None and control["high"] < 0 else REPRODUCED


def frontier_move(rows: Sequence[Measured], before: int, after: int) -> dict[str, Any] | None:
    """By how much min over runs of z(norm) + E log Blowup grows from one n to the next, with a bootstrap interval.

    z standardises the norm over all PARITY runs. None where one n has no run.
    """
    chosen = [row for row in rows if row.task == "parity"]
    norms = np.array([row.norm for row in chosen])
    if len(chosen) < 2 or np.ptp(norms) == 0:
        return None
    totals = (norms - norms.mean()) / norms.std(ddof=1) + np.array([row.log_blowup for row in chosen])
    groups = [totals[np.array([row.n == n for row in chosen])] for n in (before, after)]
    if not all(len(group) for group in groups):
        return None
    found = resampled_interval(lambda first, second: float(second.min() - first.min()), *groups)
    return {**found, "lengths": f"{before} to {after}"}


def _correlation(rows: Sequence[Measured], task: str, n: int) -> dict[str, Any]:
    chosen = [row for row in rows if (row.task, row.n) == (task, n)]
    return rank_correlation([row.norm for row in chosen], [row.log_blowup for row in chosen])


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Range of both axes by task and length."""
    rows = converged([Measured(**row) for row in data["rows"]])
    header = ("task", "n", "runs", "norm: least, median, largest", "E log Blowup: least, median, largest", "Spearman")
    body = []
    for task in TASKS:
        for n in sorted({row.n for row in rows}):
            chosen = [row for row in rows if (row.task, row.n) == (task, n)]
            if chosen:
                spans = [
                    ", ".join(
                        f"{value:.3g}" for value in np.quantile([getattr(row, name) for row in chosen], (0, 0.5, 1))
                    )
                    for name in ("norm", "log_blowup")
                ]
                body.append([task.upper(), str(n), str(len(chosen)), *spans, shown(_correlation(rows, task, n))])
    if body:
        yield header, body


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """Every converged run."""
    rows = converged([Measured(**row) for row in data["rows"]])
    for place, (task, n) in enumerate(sorted({(row.task, row.n) for row in rows}, reverse=True)):
        chosen = [row for row in rows if (row.task, row.n) == (task, n)]
        axis.plot(
            [row.log_blowup for row in chosen],
            [row.norm for row in chosen],
            "o" if task == "parity" else "x",
            color=f"C{place}",
            label=f"{task.upper()}, n = {n}",
        )
    axis.set(xlabel="E log Blowup", ylabel="parameter norm", title="random weight decay and rate")
    if rows:
        axis.legend(fontsize="small")
