"""Run the whole suite at a preset and keep everything in one JSON document, written after every part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelprops.suites.findings import machine
from modelprops.suites.noise_stability.experiments import (
    ArmRun,
    Experiment,
    compare,
    configuration,
    experiments,
    run_arm,
)
from modelprops.suites.noise_stability.language import installed_model, language_findings
from modelprops.suites.noise_stability.presets import PRESETS, Preset
from modelprops.suites.noise_stability.theory_checks import checks
from modelprops.training.storage import write_json

MODELS = ("minilm", "smollm2")


def run_all(
    preset_name: str, *, seed: int = 0, out: Path, minutes: float | None = None, text: Path | None = None
) -> dict[str, Any]:
    """Run checks, models and experiments; `out` gets `results.json` and the run cache `runs/`.

    With `minutes` no new part starts after that time; what is missing then is listed under `"not_run"`. A run that is
    in the cache is not repeated: its own wall time is reported. The experiments' seeds are 0, 1, ...
    `text`: a file for next-token prediction beside the preset's experiments.
    """
    preset, started = PRESETS[preset_name], time.monotonic()
    planned = experiments(preset, text)
    data: dict[str, Any] = {
        "preset": {"name": preset_name, **asdict(preset)},
        "machine": machine(),
        "seed": seed,
        "started": time.strftime("%Y-%m-%d %H:%M"),
        "checks": [{**asdict(row), "holds": row.holds} for row in checks()],
        "models": [],
        "experiments": [],
        "not_run": [],
    }

    def late() -> bool:
        return minutes is not None and time.monotonic() - started > 60 * minutes

    for place, name in enumerate(MODELS):
        _add_model(data, preset, name, place, seed, late())
        _write(data, started, out)
    for experiment in planned:
        add_experiment(data, experiment, experiment.seeds or preset.seeds, out / "runs", late)
        _write(data, started, out)
    return data


def add_experiment(
    data: dict[str, Any], experiment: Experiment, seeds: int, cache: Path, late: Callable[[], bool]
) -> None:
    """Append an experiment's runs and comparisons; once it is late only runs that are in the cache are added."""
    entry: dict[str, Any] = {"name": experiment.name, "limit": experiment.steps, "runs": []}
    entry |= {"metric": experiment.metric, "threshold": experiment.above or experiment.below}
    for arm in experiment.arms:
        for seed in range(seeds):
            stored = cache / configuration(experiment, arm, seed).hash() / "result.json"
            if late() and not stored.exists():
                data["not_run"].append(f"{experiment.name}: {arm.name}, seed {seed}")
                continue
            run = run_arm(experiment, arm, seed, cache)
            entry["runs"].append({**asdict(run), "milliseconds": run.milliseconds})
    entry["comparisons"] = _comparisons(experiment, entry)
    data["experiments"].append(entry)


def _add_model(data: dict[str, Any], preset: Preset, name: str, place: int, seed: int, late: bool) -> None:
    begun = time.monotonic()
    subject = None if late else installed_model(name, preset.length)
    if subject is None:
        data["not_run"].append(f"model {name}" + ("" if late else ": its package is not installed"))
        return
    found = language_findings(
        subject,
        budget=preset.tail_budget[place],
        contexts=preset.contexts[place],
        repeat_budget=preset.repeat_budget[place],
        seed=seed,
    )
    data["models"].append({**found, "seconds": time.monotonic() - begun})


def _comparisons(experiment: Experiment, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    runs = [ArmRun(**{key: value for key, value in run.items() if key != "milliseconds"}) for run in entry["runs"]]
    present = {run.arm for run in runs}
    if "none" not in present:
        return []
    return [
        asdict(compare(runs, arm.name, experiment.steps))
        for arm in experiment.arms
        if arm.name != "none" and arm.name in present
    ]


def _write(data: dict[str, Any], started: float, out: Path) -> None:
    data["seconds"] = time.monotonic() - started
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "results.json", data)
