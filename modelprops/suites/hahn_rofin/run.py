"""Run the whole suite at a preset and keep everything in one JSON document, written after every experiment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from modelprops.suites.findings import Finding, machine
from modelprops.suites.hahn_rofin import experiments
from modelprops.suites.hahn_rofin.presets import PRESETS
from modelprops.suites.hahn_rofin.theory_checks import checks
from modelprops.training.storage import read_json, write_json


def run_all(preset_name: str, *, out: Path, only: Iterable[str] = (), device: str = "cpu") -> dict[str, Any]:
    """Run checks and experiments (those in `only`, default all); `out` gets `results.json` and the run cache `runs/`.

    Killed, it goes on where it was: a training run resumes from its checkpoint and a finished one is loaded, with the
    wall time that it took when it ran.
    """
    preset, started = replace(PRESETS[preset_name], device=device), time.monotonic()
    data: dict[str, Any] = {
        "preset": {"name": preset_name, **asdict(preset)},
        "machine": {**machine(), "device": device},
        "started": time.strftime("%Y-%m-%d %H:%M"),
        "checks": [{**asdict(row), "holds": row.holds} for row in checks()],
        "experiments": {},
    }
    data["experiments"] = _known(out / "results.json", data["preset"])
    for name in tuple(only) or experiments.MODULES:
        begun = time.monotonic()
        found = experiments.run(name, preset, out / "runs")
        known = {**data["experiments"], name: {**found, "wall_seconds": time.monotonic() - begun}}
        data["experiments"] = {place: known[place] for place in experiments.MODULES if place in known}
        data["not_run"] = [place for place in experiments.MODULES if place not in known]
        data["seconds"] = time.monotonic() - started
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "results.json", data)
    return data


def _known(path: Path, preset: Mapping[str, Any]) -> dict[str, Any]:
    """The experiments of an earlier call with these very sizes: `only` and an interrupted call take nothing away."""
    if not path.exists():
        return {}
    data = read_json(path)
    return dict(data["experiments"]) if data["preset"] == json.loads(json.dumps(preset)) else {}


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """The claim-by-claim rows of all experiments in `data`."""
    return [row for name, part in data["experiments"].items() for row in experiments.MODULES[name].findings(part)]


def training_seconds(part: Any) -> float:
    """Training time of all runs in an experiment's data, whenever they ran."""
    if isinstance(part, Mapping):
        own = part.get("seconds", 0.0)
        return float(own) + sum(training_seconds(value) for value in part.values() if isinstance(value, (list, dict)))
    return sum(training_seconds(value) for value in part) if isinstance(part, list) else 0.0
