"""C.5: PARITY with a scratchpad becomes learnable at longer inputs, and its sharpness does not grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import modelprops as mp
from modelprops.properties.perturbation import perturbed_parameters
from modelprops.seeds import derive
from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import mean_interval, shown, slope
from modelprops.suites.hahn_rofin.presets import Preset
from modelprops.suites.hahn_rofin.trained import SIGMA, kept
from modelprops.training.configuration import Stop, TrainingConfig
from modelprops.training.loop import TrainingRun, train
from modelprops.training.scratchpad import ScratchpadParity, with_scratchpad

TITLE = "C.5: scratchpad"
ACCURACY = 0.999
LONG = 40
INPUTS = 256
CONTEXTS = 64


def run(preset: Preset, cache: Path) -> dict[str, Any]:
    """One encoder-decoder a length and seed."""
    chosen, rows = preset.scratchpad, []
    for n in chosen.lengths:
        for seed in range(chosen.seeds):
            config = TrainingConfig(
                ScratchpadParity(n),
                steps=chosen.steps,
                learning_rate=preset.encoder.learning_rate,
                weight_decay=preset.encoder.weight_decay,
                seed=seed,
                evaluate_every=250,
                stop=Stop("accuracy", above=1.0, extra_steps=preset.encoder.extra_steps),
            )
            found = train(config, cache=cache, device=preset.device, progress=f"scratchpad n={n}")
            path = cache / config.hash() / f"measured-{preset.directions}-steps.json"
            rows.append(kept(path, lambda: _measure(found, preset.directions)))  # noqa: B023 (called at once)
    return {"rows": rows}


def _measure(run: TrainingRun, directions: int) -> dict[str, Any]:
    n = run.config.problem.n
    known = {"n": n, "seed": run.config.seed, "steps": run.steps, "seconds": run.seconds}
    if run.stopped == "diverged":
        nothing = {"value": None, "low": None, "high": None}
        return {**known, "accuracy": None, "loss": None, "sharpness": nothing, "step_sensitivity": nothing}
    subject = mp.Subject(run.model, mp.BooleanCube(n, encoding=_inputs), name=f"scratchpad-{n}")
    count = sum(weight.numel() for weight in perturbed_parameters(subject).values())
    inputs = min(INPUTS, 2**n)
    found = mp.sharpness(
        subject,
        radius=SIGMA * count**0.5,
        inputs=inputs,
        budget=(directions + (directions + 63) // 64) * inputs,
        width=1e-12,
        seed=derive(0, "directions", run.config.hash()),
    )
    return {
        **known,
        "accuracy": run.final["accuracy"],
        "loss": run.final["loss"],
        # A mean over steps, as the loss is: |T' - T|^2 sums over the n outputs.
        "sharpness": {name: 4 * float(getattr(found, name)) / n for name in ("value", "low", "high")},
        "step_sensitivity": mean_interval(step_sensitivities(run.model, n, run.config.seed)),
    }


@torch.no_grad()
def step_sensitivities(model: torch.nn.Module, n: int, seed: int) -> list[float]:
    """s of the last step at `CONTEXTS` true contexts, shape (contexts,): flips of all n bits and n - 1 written bits.

    Outputs are 0/1, so s = sum of squared changes. A step that computes y_n = x_n XOR y_(n-1) has s = 2 at any n.
    """
    bits = torch.randint(0, 2, (CONTEXTS, n), generator=torch.Generator().manual_seed(derive(seed, "contexts", n)))
    known = with_scratchpad(bits).to(next(model.parameters(), torch.empty(0)).device)
    places = [*range(n), *range(n + 1, 2 * n)]
    found = []
    for context in known:
        flipped = context.repeat(len(places), 1)
        flipped[torch.arange(len(places)), places] = 1 - context[places]
        outputs = model(torch.cat([context[None], flipped]))[:, -1].double()
        found.append(float(((outputs[1:] - outputs[0]) ** 2).sum()))
    return found


def _inputs(points: Tensor) -> Tensor:
    return with_scratchpad((points > 0).to(torch.long))


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """Learnable at long inputs; a flat sharpness; the exact sensitivity of a step is in the theory table (A.12)."""
    rows = data["rows"]
    longest = max(row["n"] for row in rows)
    learned = [row for row in rows if row["accuracy"] is not None and row["accuracy"] > ACCURACY]
    long = [row for row in rows if row["n"] >= LONG]
    right = [row for row in learned if row["n"] >= LONG]
    trend = slope([row["n"] for row in learned], [row["sharpness"]["value"] for row in learned])
    means = mean_interval([row["sharpness"]["value"] for row in learned])
    dropped = f"{len(rows) - len(learned)} of {len(rows)} runs discarded (accuracy <= {ACCURACY})"
    steps = [row["step_sensitivity"]["value"] for row in learned]
    near = [1.5 < value < 2.5 for value in steps]
    return [
        Finding(
            "A step of a model that learned it is about as sensitive as x_t XOR y_(t-1), s = 2 (n >= 8)",
            "A.12, C.5",
            OUT if not near else REPRODUCED if all(near) else PARTLY if 2 * sum(near) >= len(near) else NOT,
            "mean s of the last step: "
            + ", ".join(f"{value:.2f} (n = {row['n']})" for row, value in zip(learned, steps, strict=True)),
        ),
        Finding(
            f"With a scratchpad PARITY is learned at n >= {LONG} (it reads its own bits)",
            "C.5 (Figure 11)",
            OUT if not long else REPRODUCED if len(right) == len(long) else PARTLY if right else NOT,
            f"{len(right)} of {len(long)} runs at n >= {LONG}; longest learned: "
            f"{max((row['n'] for row in learned), default=0)} of {longest}; {dropped}",
        ),
        Finding(
            "Its sharpness does not grow with length",
            "C.5 (Figure 11)",
            _trend_status(trend, means["value"], [row["n"] for row in learned]),
            f"slope a bit {shown(trend)}, mean sharpness a step {shown(means)}",
        ),
    ]


def _trend_status(trend: Mapping[str, Any], mean: float, lengths: Sequence[int]) -> str:
    """Flat if even the upper end of the slope adds less than half of the mean over the lengths that were learned."""
    if trend["value"] is None:
        return OUT
    span = max(lengths) - min(lengths)
    if trend["high"] * span < 0.5 * mean:
        return REPRODUCED
    return NOT if trend["low"] > 0 else OUT


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """One row a run."""
    header = (
        "n",
        "seed",
        "steps",
        "autoregressive accuracy",
        "teacher-forced MSE",
        "sharpness a step",
        "s of the last step",
    )
    yield (
        header,
        [
            [
                str(row["n"]),
                str(row["seed"]),
                str(row["steps"]),
                *("-" if row[name] is None else f"{row[name]:.4g}" for name in ("accuracy", "loss")),
                shown(row["sharpness"]),
                shown(row["step_sensitivity"]),
            ]
            for row in data["rows"]
        ],
    )


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """Sharpness against length, learned runs only."""
    rows = [row for row in data["rows"] if row["accuracy"] is not None and row["accuracy"] > ACCURACY]
    values = [row["sharpness"]["value"] for row in rows]
    errors = [[abs(row["sharpness"]["value"] - row["sharpness"][end]) for row in rows] for end in ("low", "high")]
    axis.errorbar([row["n"] for row in rows], values, errors, fmt="o", capsize=2)
    axis.set(xlabel="length n", ylabel="sharpness a step", title="PARITY with a scratchpad", ylim=(0, None))
