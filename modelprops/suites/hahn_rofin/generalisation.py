"""C.4: what a model makes of the strings it was not trained on, and how sharp the functions it prefers are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modelprops.seeds import derive
from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import correlation, mean_interval, shown
from modelprops.suites.hahn_rofin.presets import Preset
from modelprops.suites.hahn_rofin.theory_checks import local_sensitivities
from modelprops.suites.hahn_rofin.trained import Measured, configuration, converged, measured
from modelprops.training.configuration import Stop
from modelprops.training.loop import TrainingRun, train
from modelprops.training.tasks import BooleanTask, all_bits, random_table, row_numbers

TITLE = "C.4: generalisation"
PEARSON = 0.5


def run(preset: Preset, cache: Path) -> dict[str, Any]:
    """Step 1: extrapolations of random functions. Step 2: learned and random tables, each learned on the whole cube."""
    chosen = preset.generalisation
    extrapolations, tables = [], []
    for size in chosen.sizes:
        fitted = []
        for function in range(chosen.functions):
            for seed in range(chosen.seeds):
                found = _restricted(preset, function, size, seed, cache)
                learned, fits = extrapolation(found)
                random = overwritten(found, derive(seed, "comparison", function, size) % 2**32)
                extrapolations.append(
                    {
                        "size": size,
                        "function": function,
                        "seed": seed,
                        "fits": fits,
                        "steps": found.steps,
                        "seconds": found.seconds,
                        "learned": sensitivity_of(learned),
                        "random": sensitivity_of(random),
                    }
                )
                if fits:
                    fitted += [("learned", learned, seed), ("random", random, seed)]
        for kind, table, seed in fitted[: 2 * chosen.tables]:
            whole = configuration(BooleanTask("table", chosen.n, table=table), preset.encoder, seed)
            found_whole = measured(whole, cache, preset)
            tables.append({"size": size, "kind": kind, **asdict(found_whole)})
    return {"n": chosen.n, "extrapolations": extrapolations, "tables": tables}


def _restricted(preset: Preset, function: int, size: int, seed: int, cache: Path) -> TrainingRun:
    chosen = preset.generalisation
    plain = configuration(BooleanTask("table", chosen.n, table=random_table(chosen.n, function)), preset.encoder, seed)
    config = replace(
        plain,
        problem=replace(plain.problem, train_size=size, train_seed=seed),
        steps=chosen.steps,
        stop=Stop("train_set_loss", below=1e-3),
    )
    return train(config, cache=cache, device=preset.device, progress=f"random function {function}, {size} strings")


def extrapolation(run: TrainingRun) -> tuple[str, bool]:
    """The thresholded table of a model over the whole cube, and whether it has every training string right."""
    problem = run.config.problem
    device = next(run.model.parameters()).device
    with torch.no_grad():
        values = (run.model(all_bits(problem.task.n).to(device)).cpu() > 0.5).long()
    known = problem.training_inputs()
    fits = bool((values[row_numbers(known)] == problem.task.targets(known)).all())
    return "".join(map(str, values.tolist())), fits


def overwritten(run: TrainingRun, seed: int) -> str:
    """Another random function with the training labels written into it."""
    problem = run.config.problem
    known = problem.training_inputs()
    values = list(random_table(problem.task.n, seed))
    for row, value in zip(row_numbers(known).tolist(), problem.task.targets(known).tolist(), strict=True):
        values[row] = str(int(value))
    return "".join(values)


def sensitivity_of(table: str) -> float:
    """as_n of a 0/1 table, in ±1 units."""
    return float(local_sensitivities(2.0 * np.array(list(table), dtype=float) - 1).mean())


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """Learned below random, ordered by training size, and sensitivity correlated with sharpness."""
    kept = [row for row in data["extrapolations"] if row["fits"]]
    sizes = sorted({row["size"] for row in data["extrapolations"]})
    learned = {size: mean_interval([row["learned"] for row in kept if row["size"] == size]) for size in sizes}
    gaps = mean_interval([row["random"] - row["learned"] for row in kept])
    dropped = (
        f"{len(data['extrapolations']) - len(kept)} of {len(data['extrapolations'])} runs discarded (no exact fit)"
    )
    values = [learned[size]["value"] for size in sizes]
    ordered = all(a < b for a, b in itertools.pairwise(values))
    apart = all(_below(learned[a], learned[b]) for a, b in itertools.pairwise(sizes))
    tables = [Measured(**_without(row)) for row in data["tables"]]
    counted = converged(tables)
    related = correlation([row.sensitivity for row in counted], [row.sharpness["value"] for row in counted])
    known = related["value"] is not None
    return [
        Finding(
            "Learned extrapolations are less sensitive than random ones with the same training labels",
            "C.4 (Figure 4)",
            OUT if gaps["low"] is None else REPRODUCED if gaps["low"] > 0 else NOT,
            f"random minus learned as_n: {shown(gaps)}; {dropped}",
        ),
        Finding(
            "Smaller training sets give less sensitive extrapolations, all below n/2",
            "C.4 (Figure 4)",
            OUT
            if any(found["low"] is None for found in learned.values())
            else REPRODUCED
            if apart and _under(learned[sizes[-1]], data["n"] / 2)
            else PARTLY
            if ordered
            else NOT,
            "as_n: " + ", ".join(f"{shown(found)} (m = {size})" for size, found in learned.items()),
        ),
        Finding(
            f"Average sensitivity and sharpness correlate (Pearson > {PEARSON})",
            "C.4 (Figure 4)",
            OUT if not known else REPRODUCED if related["low"] > PEARSON else PARTLY if related["low"] > 0 else NOT,
            f"{shown(related)} over {len(counted)} models; {len(tables) - len(counted)} of {len(tables)} discarded",
        ),
    ]


def _below(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two intervals are apart."""
    return first["high"] is not None and second["low"] is not None and first["high"] < second["low"]


def _under(interval: Mapping[str, Any], level: float) -> bool:
    return interval["high"] is not None and interval["high"] < level


def _without(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("size", "kind")}


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Extrapolations by size, and what was measured of tables learned on the whole cube."""
    body = []
    for size in sorted({row["size"] for row in data["extrapolations"]}):
        everything = [row for row in data["extrapolations"] if row["size"] == size]
        kept = [row for row in everything if row["fits"]]
        both = [shown(mean_interval([row[name] for row in kept])) for name in ("learned", "random")]
        body.append([str(size), f"{len(kept)} of {len(everything)}", *both])
    yield ("training strings m", "exact fits", "as_n learned", "as_n random, same labels"), body
    body = []
    for kind in ("learned", "random"):
        everything = [Measured(**_without(row)) for row in data["tables"] if row["kind"] == kind]
        kept = converged(everything)
        cells = [
            shown(mean_interval([row.sensitivity for row in kept])),
            shown(mean_interval([row.sharpness["value"] for row in kept])),
        ]
        body.append([kind, f"{len(kept)} of {len(everything)}", *cells])
    yield ("table, learned on the whole cube", "counted", "as_n(T)", "L_rho"), body


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """Sharpness against average sensitivity."""
    for kind, color in (("learned", "C0"), ("random", "C1")):
        rows = converged([Measured(**_without(row)) for row in data["tables"] if row["kind"] == kind])
        axis.plot(
            [row.sensitivity for row in rows], [row.sharpness["value"] for row in rows], "o", color=color, label=kind
        )
    axis.set(xlabel="as_n(T)", ylabel="sharpness L_rho", title=f"tables of {data['n']} bits")
    axis.legend(fontsize="small")
