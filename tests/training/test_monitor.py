"""The monitor: its values are those of the properties, and change points are found where they are."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.functions import parity
from modelprops.training import BooleanProblem, BooleanTask, Monitor, TrainingConfig, change_point, train
from modelprops.training.monitor import STANDARD

BITS = mp.BooleanCube(6, encoding="bits")
MEASURES = ("average_sensitivity", "noise_stability(rho=0.9)", "sharpness(radius=0.1)")


def test_values_of_a_known_function_are_its_closed_forms() -> None:
    values = Monitor(mp.BooleanCube(6), MEASURES[:2]).measure(parity(6))
    assert values == {MEASURES[0]: pytest.approx(6), MEASURES[1]: pytest.approx(0.9**6)}


def test_the_curves_are_columns_of_the_history_and_the_training_is_undisturbed() -> None:
    problem = BooleanProblem(BooleanTask("first", 6, "pm1"), d_model=8, layers=1)
    config = TrainingConfig(problem, steps=60, learning_rate=1e-2, evaluate_every=30)
    watched = train(
        TrainingConfig(
            problem,
            steps=60,
            learning_rate=1e-2,
            evaluate_every=30,
            observers=(Monitor(BITS, MEASURES, every=20, budget=512),),
        )
    )
    for text in MEASURES:
        steps, values = watched.curve(text)
        assert steps == [0, 20, 40, 60]
        assert all(value >= 0 for value in values)
    plain = train(config)
    assert all(
        torch.equal(one, other)
        for one, other in zip(plain.model.state_dict().values(), watched.model.state_dict().values(), strict=True)
    )
    # The first bit is learned: its sensitivity is 1 and its stability .9.
    assert watched.curve(MEASURES[0])[1][-1] == pytest.approx(1, abs=0.3)


def test_the_model_and_the_global_generators_are_left_alone() -> None:
    model = BooleanProblem(BooleanTask("first", 6), d_model=8, layers=1).build().train()
    weights, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    Monitor(BITS, MEASURES, budget=256).measure(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_a_threshold_in_a_monitor_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="only measures"):
        Monitor(BITS, ("average_sensitivity <= 2",))
    with pytest.raises(mp.ArgumentError, match="every"):
        Monitor(BITS, MEASURES, every=0)


def test_a_step_is_found_at_its_place() -> None:
    values = np.where(np.arange(40) < 25, 0.9, 0.4) + np.random.default_rng(0).normal(0, 0.02, 40)
    found = change_point(list(range(0, 4000, 100)), values.tolist())
    assert found.found
    assert found.step == 2500
    assert (found.before, found.after) == (pytest.approx(0.9, abs=0.02), pytest.approx(0.4, abs=0.02))


def test_pure_noise_is_flagged_no_more_often_than_stated() -> None:
    # 300 curves at significance .05: 15 expected, sd 3.8; 40 or more has chance below 1e-8.
    generator = np.random.default_rng(1)
    flagged = sum(
        change_point(list(range(20)), generator.normal(size=20).tolist(), significance=0.05, seed=i).found
        for i in range(300)
    )
    assert flagged < 40


def test_a_curve_too_short_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="four"):
        change_point([0, 1, 2], [1.0, 1.0, 2.0])


def test_the_standard_set_runs_on_a_model_with_layer_norms() -> None:
    model = BooleanProblem(BooleanTask("first", 6), d_model=8, layers=1).build()
    values = Monitor(BITS, budget=256).measure(model)
    assert set(values) == set(STANDARD)
    norm = sum(float((weight.double() ** 2).sum()) for weight in model.parameters()) ** 0.5
    assert values["parameter_norm"] == pytest.approx(norm)
    assert values["layernorm_blowup"] >= 1
