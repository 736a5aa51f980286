"""One training loop for every experiment: the same configuration gives the same run, bit for bit on one machine.

    run = train(TrainingConfig(BooleanProblem(BooleanTask("parity", 8)), steps=5000, stop=Stop(below=1e-3)), cache=path)
    run.model, run.final["loss"], run.steps_to("loss", below=1e-2)

A run owns its randomness (the global generators are as before afterwards), stops on the *evaluation* metric, can be
killed and goes on where it was, and is loaded instead of trained when its configuration was run before.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from modelprops.preserve import preserved, random_state_kept
from modelprops.seeds import derive
from modelprops.training.configuration import TrainingConfig, past
from modelprops.training.storage import describe, load_tensors, read_json, save_tensors, write_json

EVALUATION_BATCH = 8192


@dataclass(frozen=True)
class TrainingRun:
    """A finished run.

    `history`: one row an evaluation or observation, with `step`, and after step 0 `train_loss` (mean since the row
    before). `stopped`: `"threshold"`, `"steps"` or `"diverged"` (the loss was not finite). `seconds`: training time,
    over all parts of an interrupted run. `cached`: loaded instead of trained. Its model is in eval mode.
    """

    config: TrainingConfig
    model: nn.Module
    history: tuple[Mapping[str, float | None], ...]
    steps: int
    stopped: str
    seconds: float
    device: str
    cached: bool = False

    @property
    def final(self) -> Mapping[str, float | None]:
        """The last row: an evaluation of the model as it is."""
        return self.history[-1]

    def steps_to(self, metric: str, *, below: float | None = None, above: float | None = None) -> int | None:
        """The first step whose row has `metric` at or past the level; None if it never got there."""
        for row in self.history:
            if metric in row and past(row[metric], below, above):
                return int(row["step"] or 0)
        return None

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one column of the history."""
        rows = [(int(row["step"] or 0), value) for row in self.history if (value := row.get(metric)) is not None]
        return [step for step, _ in rows], [value for _, value in rows]


@dataclass(frozen=True)
class Moment:
    """What a callback sees after each step. The model is the live one, in training mode: read, do not write."""

    step: int
    model: nn.Module
    loss: float
    row: Mapping[str, float | None] | None
    """The history's row of this step, where there is one."""


@dataclass
class _State:
    """The live run: everything a checkpoint holds."""

    model: nn.Module
    optimiser: torch.optim.AdamW
    batches: torch.Generator
    noise: torch.Generator
    history: list[dict[str, float | None]] = field(default_factory=list)
    step: int = 0
    pending: list[float] = field(default_factory=list)
    stop_at: int | None = None
    seconds: float = 0.0
    evaluated: int = -1
    """The step of the last evaluation."""


def train(
    config: TrainingConfig,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    callbacks: Sequence[Callable[[Moment], None]] = (),
    checkpoint_seconds: float = 20.0,
    progress: str | None = None,
) -> TrainingRun:
    """Train, or load the run from `cache` if this configuration was run before.

    `cache`: a directory; the run is `<hash>/result.json` beside `<hash>/model.safetensors`, both written atomically,
    and while it lasts `<hash>/checkpoint.safetensors`, from which a killed run goes on to the identical result.
    `callbacks` are called after each step that is really computed (never on a cached run; what must be kept belongs
    into `config.observers`). `progress`: a name for the progress line, shown only on a terminal.
    Raises `LoadError` if a file in the cache is damaged.
    """
    folder = None if cache is None else Path(cache) / config.hash()
    if folder is not None and (folder / "result.json").exists():
        return _load(config, folder)
    with random_state_kept():
        state = _begin(config, device)
        checkpoint = None if folder is None else folder / "checkpoint.safetensors"
        if checkpoint is not None and checkpoint.exists():
            _restore(state, checkpoint)
        stopped = _run(config, state, callbacks, checkpoint, checkpoint_seconds, _line(progress, config.steps))
    run = TrainingRun(
        config, state.model.eval(), tuple(state.history), state.step, stopped, state.seconds, device, cached=False
    )
    if folder is not None:
        _keep(run, folder)
    return run


def _run(
    config: TrainingConfig,
    state: _State,
    callbacks: Sequence[Callable[[Moment], None]],
    checkpoint: Path | None,
    checkpoint_seconds: float,
    show: Callable[[int, Mapping[str, float | None]], None],
) -> str:
    started = saved = time.monotonic()
    before = state.seconds
    device = next(state.model.parameters()).device
    if not state.history:
        _record(config, state, first=True)
    while (stopped := _stopped(config, state)) is None:
        loss = _step(config, state, device)
        if not math.isfinite(loss):
            stopped = "diverged"
            break
        row = _record(config, state)
        if callbacks:
            with random_state_kept():
                for callback in callbacks:
                    callback(Moment(state.step, state.model, loss, row))
        if row is not None:
            show(state.step, row)
        state.seconds = before + time.monotonic() - started
        if checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds:
            _save(state, checkpoint)
            saved = time.monotonic()
    if state.evaluated != state.step:
        _record(config, state, last=True)
    state.seconds = before + time.monotonic() - started
    return stopped


def _step(config: TrainingConfig, state: _State, device: torch.device) -> float:
    inputs, targets = config.problem.batch(state.batches)
    inputs, targets = inputs.to(device), targets.to(device)
    output = state.model(inputs)
    loss = config.problem.loss(output, targets)
    if config.regulariser is not None:
        loss = loss + config.regulariser.penalty(state.model, inputs, output, state.noise)
    state.optimiser.zero_grad()
    loss.backward()
    value = float(loss.detach())
    if math.isfinite(value):
        state.optimiser.step()
    state.step += 1
    state.pending.append(value)
    return value


def _stopped(config: TrainingConfig, state: _State) -> str | None:
    if state.stop_at is not None and state.step >= state.stop_at:
        return "threshold"
    return "steps" if state.step >= config.steps else None


def _record(
    config: TrainingConfig, state: _State, *, first: bool = False, last: bool = False
) -> dict[str, float | None] | None:
    """Append the row of this step, where one is due: evaluation, observers, mean training loss since the last."""
    evaluate = first or last or state.step % config.evaluate_every == 0
    due = [observer for observer in config.observers if last or state.step % observer.every == 0]
    if not evaluate and not due:
        return None
    numbers: dict[str, float] = {}
    with preserved(state.model):
        if evaluate:
            numbers |= config.problem.evaluate(lambda inputs: _in_batches(state.model, inputs))
        for observer in due:
            numbers |= observer.measure(state.model, state.step)
    if state.pending:
        numbers["train_loss"] = sum(state.pending) / len(state.pending)
        state.pending.clear()
    row: dict[str, float | None] = {"step": state.step}
    row |= {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    if evaluate:
        state.evaluated = state.step
    if state.history and state.history[-1]["step"] == state.step:
        row = state.history.pop() | row
    state.history.append(row)
    if config.stop is not None and evaluate and state.stop_at is None and config.stop.reached(row):
        state.stop_at = state.step + config.stop.extra_steps
    return row


def _in_batches(model: nn.Module, inputs: Tensor) -> Tensor:
    device = next(model.parameters()).device
    return torch.cat([model(part.to(device)).cpu() for part in torch.split(inputs, EVALUATION_BATCH)])


def _begin(config: TrainingConfig, device: str) -> _State:
    with _seeded(derive(config.seed, "weights")):
        model = config.problem.build().to(device).train()
    torch.manual_seed(derive(config.seed, "forward"))
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=config.betas, fused=True
    )
    batches, noise = (torch.Generator().manual_seed(derive(config.seed, name)) for name in ("batches", "noise"))
    return _State(model, optimiser, batches, noise)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with random_state_kept():
        torch.manual_seed(seed)
        yield


def _save(state: _State, path: Path) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    for index, moments in state.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in moments.items()}
    tensors |= {
        "random.batches": state.batches.get_state(),
        "random.noise": state.noise.get_state(),
        "random.forward": torch.get_rng_state(),
    }
    notes = {
        "history": state.history,
        "step": state.step,
        "pending": state.pending,
        "stop_at": state.stop_at,
        "seconds": state.seconds,
        "evaluated": state.evaluated,
    }
    save_tensors(path, tensors, notes)


def _restore(state: _State, path: Path) -> None:
    tensors, notes = load_tensors(path)
    state.model.load_state_dict(_under("model.", tensors))
    optimiser = state.optimiser.state_dict()
    for name, tensor in _under("optimiser.", tensors).items():
        index, key = name.split(".", 1)
        optimiser["state"].setdefault(int(index), {})[key] = tensor
    state.optimiser.load_state_dict(optimiser)
    state.batches.set_state(tensors["random.batches"])
    state.noise.set_state(tensors["random.noise"])
    torch.set_rng_state(tensors["random.forward"])
    state.history, state.step, state.stop_at = notes["history"], notes["step"], notes["stop_at"]
    state.pending, state.seconds, state.evaluated = notes["pending"], notes["seconds"], notes["evaluated"]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _keep(run: TrainingRun, folder: Path) -> None:
    """Write the weights, then the result, whose presence says that the run is complete."""
    save_tensors(folder / "model.safetensors", run.model.state_dict())
    write_json(
        folder / "result.json",
        {
            "config": describe(run.config),
            "steps": run.steps,
            "stopped": run.stopped,
            "seconds": run.seconds,
            "device": run.device,
            "torch": torch.__version__,
            "history": run.history,
        },
    )
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)


def _load(config: TrainingConfig, folder: Path) -> TrainingRun:
    result = read_json(folder / "result.json")
    tensors, _ = load_tensors(folder / "model.safetensors")
    with random_state_kept():
        model = config.problem.build()
    model.load_state_dict(tensors)
    rows = tuple(result["history"])
    return TrainingRun(
        config, model.eval(), rows, result["steps"], result["stopped"], result["seconds"], result["device"], cached=True
    )


def _line(name: str | None, steps: int) -> Callable[[int, Mapping[str, float | None]], None]:
    """A line that rewrites itself on a terminal, and nothing elsewhere."""
    if name is None or not sys.stderr.isatty():
        return lambda step, row: None

    def show(step: int, row: Mapping[str, float | None]) -> None:
        numbers = " ".join(f"{key} {value:.4g}" for key, value in row.items() if key != "step" and value is not None)
        sys.stderr.write(f"\r{name}: step {step}/{steps} {numbers}\x1b[K")
        sys.stderr.flush()

    return show
