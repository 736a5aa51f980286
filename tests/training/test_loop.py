"""The training loop: reproducible, resumable, cached, and without traces in the global generators."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import modelprops as mp
from modelprops.training import BooleanProblem, BooleanTask, Moment, Stop, TrainingConfig, train
from modelprops.training.storage import write_atomically

PROBLEM = BooleanProblem(BooleanTask("first", 4), d_model=8, layers=1, heads=2, batch_size=16)
CONFIG = TrainingConfig(PROBLEM, steps=30, evaluate_every=10, seed=5)


@dataclass(frozen=True)
class DropoutProblem(BooleanProblem):
    """A model that draws from the global generator while it trains."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(2, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 1), nn.Flatten(0))


@dataclass(frozen=True)
class WeightNorm:
    every: int = 15

    def measure(self, model: nn.Module, step: int) -> Mapping[str, float]:
        assert not model.training
        torch.rand(3)
        return {"norm": float(sum((weight**2).sum() for weight in model.parameters()))}


class Killed(Exception):
    pass


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def kill_at(step: int):  # type: ignore[no-untyped-def]
    def callback(moment: Moment) -> None:
        if moment.step == step:
            raise Killed

    return callback


def test_a_model_learns_the_first_bit_and_stops_on_the_evaluation() -> None:
    config = TrainingConfig(
        PROBLEM, steps=2000, learning_rate=1e-2, evaluate_every=20, stop=Stop(below=1e-2, extra_steps=20)
    )
    run = train(config)
    assert run.stopped == "threshold"
    reached = run.steps_to("loss", below=1e-2)
    assert reached is not None
    assert run.steps == reached + 20
    with torch.no_grad():
        bits = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 0]])
        assert (run.model(bits) > 0.5).tolist() == [False, True]


@pytest.mark.parametrize("problem", [PROBLEM, DropoutProblem(BooleanTask("first", 4), batch_size=8)])
def test_the_same_configuration_gives_the_same_run_and_another_seed_another(problem: BooleanProblem) -> None:
    config = replace(CONFIG, problem=problem)
    first = train(config)
    torch.rand(7)
    second = train(config)
    assert same(first.model, second.model)
    assert first.history == second.history
    assert not same(first.model, train(replace(config, seed=6)).model)


def test_global_generators_are_left_alone_also_after_an_exception() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    train(replace(CONFIG, steps=3))
    with pytest.raises(Killed):
        train(CONFIG, callbacks=[kill_at(2)])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


@pytest.mark.parametrize("problem", [PROBLEM, DropoutProblem(BooleanTask("first", 4), batch_size=8)])
def test_a_killed_run_goes_on_to_the_identical_result(problem: BooleanProblem, tmp_path: Path) -> None:
    config = replace(CONFIG, problem=problem, observers=(WeightNorm(),))
    whole = train(config)
    for step in (7, 20):
        with pytest.raises(Killed):
            train(config, cache=tmp_path, callbacks=[kill_at(step)], checkpoint_seconds=0)
    steps: list[int] = []
    resumed = train(config, cache=tmp_path, callbacks=[lambda moment: steps.append(moment.step)])
    assert steps[0] == 20  # the callback of step 20 was killed before its checkpoint
    assert same(whole.model, resumed.model)
    assert whole.history == resumed.history


def test_a_second_run_is_loaded_and_equal(tmp_path: Path) -> None:
    first = train(CONFIG, cache=tmp_path)
    steps: list[int] = []
    second = train(CONFIG, cache=tmp_path, callbacks=[lambda moment: steps.append(moment.step)])
    assert second.cached
    assert not steps
    assert same(first.model, second.model)
    assert first.history == second.history
    folder = tmp_path / CONFIG.hash()
    assert sorted(file.name for file in folder.iterdir()) == ["model.safetensors", "result.json"]
    assert json.loads((folder / "result.json").read_text())["config"]["problem"]["task"]["name"] == "first"


def test_every_field_of_the_configuration_changes_its_hash() -> None:
    others = [
        replace(CONFIG, seed=6),
        replace(CONFIG, weight_decay=0.2),
        replace(CONFIG, stop=Stop(below=0.1)),
        replace(CONFIG, problem=replace(PROBLEM, train_size=5)),
        replace(CONFIG, observers=(WeightNorm(),)),
    ]
    assert len({config.hash() for config in [CONFIG, *others]}) == 6
    assert replace(CONFIG, weight_decay=1).hash() == replace(CONFIG, weight_decay=1.0).hash()


def test_observers_write_their_column_without_disturbing_the_run() -> None:
    observed = train(replace(CONFIG, observers=(WeightNorm(),)))
    assert observed.curve("norm")[0] == [0, 15, 30]
    assert same(observed.model, train(CONFIG).model)
    assert [row["step"] for row in observed.history] == [0, 10, 15, 20, 30]


def test_a_run_whose_loss_is_not_finite_ends_as_diverged(tmp_path: Path) -> None:
    class Exploding(BooleanProblem):
        def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return super().loss(output, targets) * torch.inf

    run = train(replace(CONFIG, problem=Exploding(PROBLEM.task, d_model=8, heads=2)), cache=tmp_path)
    assert run.stopped == "diverged"
    assert run.final["train_loss"] is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    train(CONFIG, cache=tmp_path)
    (tmp_path / CONFIG.hash() / "model.safetensors").write_bytes(b"half")
    with pytest.raises(mp.LoadError, match=r"model\.safetensors"):
        train(CONFIG, cache=tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_progress_line_appears_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(CONFIG, progress="first bit")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    train(CONFIG, progress="first bit")
    assert "\rfirst bit: step 30/30 loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"evaluate_every": 0}, {"learning_rate": 0.0}, {"weight_decay": -0.1}]
)
def test_impossible_configurations_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(mp.ArgumentError):
        replace(CONFIG, **change)


def test_an_unknown_stop_metric_is_named_with_the_known_ones() -> None:
    with pytest.raises(mp.ArgumentError, match="accuracy"):
        train(replace(CONFIG, stop=Stop("acc", above=0.9)))
    with pytest.raises(mp.ArgumentError, match="either"):
        Stop("loss")
