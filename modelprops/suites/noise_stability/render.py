"""The report: a Markdown page and figures from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modelprops.errors import LoadError
from modelprops.suites.noise_stability.findings import findings


def markdown(data: Mapping[str, Any]) -> str:
    """The page: claim by claim, then every table."""
    return "\n".join([*_head(data), *_claims(data), *_models(data), *_experiments(data), *_checks(data)]) + "\n"


def write_figures(data: Mapping[str, Any], out: Path) -> list[Path]:
    """Write PNG figures into `out`; needs matplotlib. Raises `LoadError` where it is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise LoadError("figures need matplotlib; install it, or leave the figures out") from None
    written = []
    for name, draw in (("influence", _draw_influence), ("tails", _draw_tails), ("steps", _draw_steps)):
        count = len(data["experiments"] if name == "steps" else data["models"])
        if count:
            figure, axes = plt.subplots(1, count, figsize=(5 * count, 3.8), squeeze=False, layout="constrained")
            draw(axes[0], data)
            figure.savefig(out / f"{name}.png", dpi=110)
            plt.close(figure)
            written.append(out / f"{name}.png")
    return written


def _head(data: Mapping[str, Any]) -> Iterator[str]:
    machine, preset = data["machine"], data["preset"]
    yield "# Noise stability of Transformer models: what holds here"
    yield ""
    yield (
        "Reference suite for Haris, Zhang and Yoshida 2026 (arXiv 2602.08287), of which only the abstract and "
        "secondary accounts could be read: settings that are unknown are parameters, and errors of the text are "
        "corrected (see the claims). Nothing was tuned; thresholds stand in the code."
    )
    yield ""
    yield (
        f"Preset `{preset['name']}`, {data['started']}, {_total_seconds(data) / 60:.1f} min of computing. Machine: "
        f"{machine['cores']} cores ({machine['processor']}), shared (load {machine['load']}), {machine['threads']} "
        f"thread, torch {machine['torch']}, Python {machine['python']}. Seeds: {data['seed']} for measures, "
        f"0-{preset['seeds'] - 1} for training. Wall times were taken on the shared machine and are rough."
    )
    if data["not_run"]:
        yield ""
        yield "Not run: " + "; ".join(data["not_run"]) + "."


def _total_seconds(data: Mapping[str, Any]) -> float:
    trained = sum(run["seconds"] for entry in data["experiments"] for run in entry["runs"])
    return float(trained + sum(model["seconds"] for model in data["models"]))


def _claims(data: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Claim by claim", "", "| claim | source | status | evidence |", "| --- | --- | --- | --- |")
    for row in findings(data):
        yield f"| {row.claim} | {row.source} | **{row.status}** | {row.evidence} |"


def _models(data: Mapping[str, Any]) -> Iterator[str]:
    for model in data["models"]:
        yield from ("", f"## {model['model']}", "")
        yield (
            f"f: {model['readout']}; measure: {model['measure']}. Upper bounds on the weight at degree "
            f"{model['degree']} and above ({model['seconds']:.0f} s)."
        )
        yield from ("", "| column | value | interval | inputs | guarantee |", "| --- | --- | --- | --- | --- |")
        for name, row in model["tail"].items():
            span = f"[{row['low']:.4g}, {row['high']:.4g}]"
            yield f"| {name} | {row['value']:.4g} | {span} | {row['samples']} | {row['guarantee']} |"
        influence = model["influences"]
        yield ""
        yield (
            f"Influences from {influence['samples']} inputs with all their neighbours; intervals at "
            f"{influence['confidence']:.0%}, simultaneous."
        )
    if data["models"]:
        yield from ("", "![influence by position](influence.png)", "", "![tail bounds](tails.png)")


def _experiments(data: Mapping[str, Any]) -> Iterator[str]:
    for entry in data["experiments"]:
        yield from ("", f"## {entry['name']}", "")
        yield f"Threshold: validation {entry['metric']} {entry['threshold']}, at most {entry['limit']} steps."
        yield from ("", "| arm | reached | steps by seed | median | ms a step | against none: steps, wall time, p |")
        yield "| --- | --- | --- | --- | --- | --- |"
        by_arm = {row["arm"]: row for row in entry["comparisons"]}
        for arm in dict.fromkeys(run["arm"] for run in entry["runs"]):
            runs = [run for run in entry["runs"] if run["arm"] == arm]
            steps = [run["steps"] for run in runs]
            shown = ", ".join("never" if step is None else str(step) for step in steps)
            median = float(np.median([entry["limit"] if step is None else step for step in steps]))
            other = by_arm.get(arm)
            text = f"x {other['ratio']:.2f}, x {other['time_ratio']:.2f}, {other['p_value']:.3g}" if other else ""
            best = f"{sum(step is not None for step in steps)} of {len(steps)}"
            pace = float(np.median([run["milliseconds"] for run in runs]))
            yield f"| {arm} | {best} | {shown} | {median:g} | {pace:.1f} | {text} |"
        unreached = [run for run in entry["runs"] if run["steps"] is None]
        if unreached:
            yield ""
            yield "Runs that never reached it ended at: " + ", ".join(
                f"{run['arm']} seed {run['seed']}: {run['final']:.3f} (best {run['best']:.3f})" for run in unreached
            )
    if data["experiments"]:
        yield from ("", "![steps to the threshold](steps.png)", "")
        yield (
            "Ratios are of medians; runs that never reached the threshold count as the limit, which favours them. "
            "p: exact two-sided sign-flip test of log steps over seeds, not adjusted for the count of arms; evaluation "
            "at intervals makes ties. The keep = 1 arms reward or punish confidence alone."
        )


def _checks(data: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Theory", "", "| number | spec | expected | found | holds |", "| --- | --- | --- | --- | --- |")
    for row in data["checks"]:
        yield f"| {row['name']} | {row['source']} | {row['expected']:.9g} | {row['found']:.9g} | {row['holds']} |"


def _draw_influence(axes: Any, data: Mapping[str, Any]) -> None:
    for axis, model in zip(axes, data["models"], strict=True):
        values = np.asarray(model["influences"]["value"], dtype=float)
        axis.bar(model["positions"], values / values.sum())
        if "attention" in model:
            twin = axis.twinx()
            twin.plot(model["attention"], color="tab:red", linewidth=1)
            twin.set_ylabel("attention received", color="tab:red")
            twin.set_yscale("log")
        axis.set(title=model["model"], xlabel="position", ylabel="share of the influence")


def _draw_tails(axes: Any, data: Mapping[str, Any]) -> None:
    for axis, model in zip(axes, data["models"], strict=True):
        names = list(model["tail"])
        axis.bar(names, [model["tail"][name]["high"] for name in names], color="lightgray", label="certified")
        axis.plot(names, [model["tail"][name]["value"] for name in names], "ko", label="from point estimates")
        axis.set(title=f"{model['model']}: tail at degree {model['degree']}", yscale="log")
        axis.tick_params(axis="x", rotation=20)
        axis.legend()


def _draw_steps(axes: Any, data: Mapping[str, Any]) -> None:
    for axis, entry in zip(axes, data["experiments"], strict=True):
        arms = list(dict.fromkeys(run["arm"] for run in entry["runs"]))
        for run in entry["runs"]:
            never = run["steps"] is None
            axis.plot(
                entry["limit"] if never else run["steps"], arms.index(run["arm"]), "rx" if never else "ko", alpha=0.6
            )
        axis.set(
            title=entry["name"],
            xlabel="steps to the threshold (x: never)",
            xscale="log" if entry["limit"] > 1000 else "linear",
            yticks=range(len(arms)),
        )
        axis.tick_params(which="minor", labelbottom=False)
        axis.set_yticklabels(arms)
        axis.invert_yaxis()
