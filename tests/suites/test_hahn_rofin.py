"""The hahn-rofin suite: its statistics, the statuses of its claims, its cache, its page, small runs of all of it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Check, Finding, markdown_table
from modelprops.suites.hahn_rofin import (
    dynamics,
    experiments,
    generalisation,
    handcrafted,
    initialisation,
    intervals,
    lengths,
    run,
    scratchpad,
    theory_checks,
    tradeoff,
    trained,
)
from modelprops.suites.hahn_rofin.expectation import require
from modelprops.suites.hahn_rofin.presets import PRESETS, Dynamics, Encoder, Generalisation, Preset, Scratchpad, Search
from modelprops.suites.hahn_rofin.render import markdown, write_figures
from modelprops.suites.hahn_rofin.run import findings, run_all, training_seconds
from modelprops.theory import bounds
from modelprops.theory.parity import HandcraftedParity
from modelprops.training.tasks import BooleanTask, all_bits, random_table

TINY = Preset(
    encoder=Encoder(d_model=8, batch_size=32, steps=40, extra_steps=0),
    lengths=(3, 4),
    seeds=1,
    directions=4,
    initial_lengths=(3,),
    draws=2,
    search=Search((3,), runs=2),
    dynamics=Dynamics(3, (0.1,), seeds=1, every=10, directions=2, after=10),
    generalisation=Generalisation(4, (6,), functions=1, seeds=2, tables=1, steps=40),
    scratchpad=Scratchpad((3,), seeds=1, steps=20),
)


def row(task: str, n: int, seed: int = 0, **changes: Any) -> trained.Measured:
    """A converged model with plain numbers."""
    known: dict[str, Any] = {"weight_decay": 0.1, "learning_rate": 1e-3, "steps": 100, "seconds": 1.0, "loss": 1e-4}
    known |= {"blowup": 300.0, "log_blowup": 3.0, "norm": 17.0, "sensitivity": 1.0, "violations": 0}
    sharpness = changes.pop("sharpness", 0.1)
    ends = {"value": sharpness, "low": 0.9 * sharpness, "high": 1.1 * sharpness}
    return trained.Measured(task, n, seed, sharpness=ends, loss_sharpness=ends, **{**known, **changes})


def statuses(found: list[Finding]) -> list[str]:
    return [finding.status for finding in found]


def test_every_number_of_the_theory_holds() -> None:
    for check in theory_checks.checks():
        assert check.holds, check


def test_local_sensitivities_of_known_functions() -> None:
    assert theory_checks.local_sensitivities(mp.functions.parity(5).table()).tolist() == [5.0] * 32
    table = mp.functions.majority(5).table()
    assert theory_checks.local_sensitivities(table).mean() == pytest.approx(1.875)
    assert theory_checks.local_sensitivities(np.array([3.0])).tolist() == [0.0]


def test_a_violated_inequality_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    parity, nothing = mp.functions.parity(4).table(), np.zeros(16)
    assert theory_checks.violations(parity, nothing) == 0
    monkeypatch.setattr(bounds, "linear_sharpness_bound", lambda before, after, n: 2 * before / n)
    assert theory_checks.violations(parity, nothing) == 1


def test_sums_over_the_number_of_ones_are_means_over_all_inputs() -> None:
    bits, shares = handcrafted.one_input_per_count(6)
    assert float(shares.sum()) == 1
    with torch.no_grad():
        model = HandcraftedParity(6, 1e-3)
        by_count = float((shares * handcrafted.local_by_count(model(bits))).sum())
        everything = theory_checks.local_sensitivities(model(all_bits(6)).numpy()).mean()
    assert by_count == pytest.approx(everything, rel=1e-9)


def test_a_handcrafted_run_reproduces_all_but_what_needs_more_draws() -> None:
    row = handcrafted.exact_row(16)
    assert row["accuracy"] == [1.0, 1.0, 1.0]
    assert row["sensitivity"][0] == pytest.approx(160)
    assert row["sensitivity"][1] == pytest.approx(109, rel=0.2)
    assert row["sensitivity"][2] == pytest.approx(3.3, rel=0.2)
    noisy = handcrafted.noisy_row(64, 1e-3, 6, seed=0)
    assert noisy["sharpness"]["low"] > 0.9
    still = handcrafted.noisy_row(8, 0.0, 2, seed=0)
    assert still["sharpness"]["value"] == 0
    assert still["accuracy"]["value"] == 1


def test_random_models_are_balanced_and_reproducible() -> None:
    family = initialisation.FAMILIES[1]
    first, again = (initialisation.random_subject(family, 4, 7) for _ in range(2))
    cube: Any = first.domain
    values = first.read(cube.exhaustive()).values
    assert torch.equal(values, again.read(cube.exhaustive()).values)
    assert abs(float(values.mean())) < 0.2


def test_mean_interval_is_students() -> None:
    found = intervals.mean_interval([1.0, 2.0, 3.0])
    assert found["value"] == 2
    assert found["high"] - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert intervals.mean_interval([5.0]) == {"value": 5.0, "low": None, "high": None, "count": 1}
    assert math.isnan(intervals.mean_interval([])["value"])


def test_mean_interval_covers_at_its_level() -> None:
    """2,000 samples of 5 normals at 95%: fewer than 1,850 hits has a chance below 1e-6 (binomial)."""
    generator = np.random.default_rng(0)
    found = [intervals.mean_interval(sample) for sample in generator.standard_normal((2000, 5))]
    assert 1850 <= sum(one["low"] <= 0 <= one["high"] for one in found) <= 1950


def test_slope_and_correlations_of_known_data() -> None:
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    line = intervals.slope(x, [2 * value + 1 for value in x])
    assert line["value"] == pytest.approx(2)
    assert line["p_value"] < 1e-9
    assert intervals.slope([1, 1, 1], [1, 2, 3])["value"] is None
    assert intervals.rank_correlation(x, [value**3 for value in x])["value"] == pytest.approx(1)
    assert intervals.correlation(x, [-value for value in x])["value"] == pytest.approx(-1)
    assert intervals.correlation([1, 2], [1, 2])["value"] is None
    assert intervals.correlation(x, [1.0] * 5)["value"] is None


def test_what_is_kept_is_made_once_and_made_again_for_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"value": 1.5}

    for _ in range(2):
        assert trained.kept(tmp_path / "a.json", make) == {"value": 1.5}
    assert len(made) == 1
    monkeypatch.setattr(trained, "VERSION", trained.VERSION + 1)
    assert trained.kept(tmp_path / "a.json", make) == {"value": 1.5}
    assert len(made) == 2


def test_a_trained_model_is_measured_in_units_of_pm1_outputs(tmp_path: Path) -> None:
    """FIRST on 3 bits, learned: as_n is 1, both forms of sharpness agree, and no inequality is violated."""
    encoder = Encoder(d_model=16, batch_size=64, steps=600, extra_steps=0)
    found = trained.measured(
        trained.configuration(BooleanTask("first", 3), encoder, 0), tmp_path, replace(TINY, directions=32)
    )
    assert found.converged
    assert found.sensitivity == pytest.approx(1, abs=0.15)
    assert found.sharpness["value"] == pytest.approx(found.loss_sharpness["value"], rel=0.3)
    assert found.violations == 0
    again = trained.measured(
        trained.configuration(BooleanTask("first", 3), encoder, 0), tmp_path, replace(TINY, directions=32)
    )
    assert again == found


def test_a_run_that_diverged_is_kept_and_does_not_count(tmp_path: Path) -> None:
    config = trained.configuration(BooleanTask("first", 3), TINY.encoder, 0, learning_rate=1e30)
    for _ in range(2):
        found = trained.measured(config, tmp_path, TINY)
        assert not found.converged
    watch = dynamics.Watch(3, 1, 2, 0)
    broken = trained.train(config, cache=tmp_path).model
    assert all(math.isnan(value) for value in watch.measure(broken, 0).values())


def test_untested_inequalities_are_no_evidence() -> None:
    rows = [asdict(row("parity", 20, violations=None))]
    assert lengths.findings({"rows": rows})[1].status == OUT


def test_a_run_with_a_nan_loss_does_not_count() -> None:
    assert not row("first", 4, loss=None).converged
    assert not row("first", 4, loss=1e-3).converged
    assert row("first", 4, loss=9e-4).converged


@pytest.mark.parametrize(
    ("parity", "expected"),
    [
        ({6: 0.2, 8: 0.3, 10: 0.4}, [REPRODUCED, REPRODUCED, REPRODUCED]),
        ({6: 0.2, 8: 0.12, 10: 0.4}, [PARTLY, REPRODUCED, NOT]),
        ({6: 0.2, 8: 0.3, 10: 0.4, 12: 0.0}, [PARTLY, REPRODUCED, NOT]),
        ({6: 0.1, 8: 0.1, 10: 0.1}, [NOT, REPRODUCED, NOT]),
        ({6: 0.4, 8: 0.3, 10: 0.2}, [REPRODUCED, REPRODUCED, NOT]),
    ],
)
def test_statuses_of_sharpness_against_length(parity: dict[int, float], expected: list[str]) -> None:
    generator = np.random.default_rng(0)
    rows = [
        row(task, n, seed, sharpness=(parity[n] if task == "parity" else 0.1) + 0.001 * float(generator.random()))
        for n in parity
        for task in lengths.RULES
        for seed in range(3)
    ]
    rows.append(row("mean", 6, 9, sharpness=50.0, loss=0.2))  # did not converge: must not matter
    found = lengths.findings({"rows": [asdict(one) for one in rows]})
    assert statuses(found) == expected
    assert f"1 of {len(rows)} runs discarded" in found[0].evidence


def test_lengths_without_a_converged_parity_run_are_out_of_reach() -> None:
    rows = [row(task, 6, loss=0.2 if task == "parity" else 1e-4) for task in lengths.RULES]
    assert statuses(lengths.findings({"rows": [asdict(one) for one in rows]})) == [OUT, REPRODUCED, OUT]


def test_a_violation_in_a_trained_model_is_not_reproduced() -> None:
    rows = [asdict(row("parity", 6, violations=1))]
    assert lengths.findings({"rows": rows})[1].status == NOT


@pytest.mark.parametrize(("sign", "expected"), [(-1, [REPRODUCED, REPRODUCED]), (1, [NOT, REPRODUCED])])
def test_statuses_of_the_tradeoff(sign: int, expected: list[str]) -> None:
    generator = np.random.default_rng(1)
    rows = []
    for n in (5, 10):
        for seed in range(30):
            norm = float(generator.normal(17, 1))
            blowup = 3 + n + sign * 0.3 * (norm - 17) + 0.05 * float(generator.normal())
            rows.append(row("parity", n, seed, norm=norm, log_blowup=blowup))
    assert statuses(tradeoff.findings({"rows": [asdict(one) for one in rows]})) == expected


def test_a_tradeoff_that_the_control_shows_as_well_is_partly_reproduced() -> None:
    rows = [
        row(task, 10, seed, norm=17 + seed / 10, log_blowup=4 - seed / 10)
        for task in ("parity", "first")
        for seed in range(30)
    ]
    assert statuses(tradeoff.findings({"rows": [asdict(one) for one in rows]})) == [PARTLY, OUT]


def test_a_frontier_without_an_effect_is_not_reproduced() -> None:
    """40 simulated pairs of equal distributions at a 95% bootstrap: 10 false alarms have a chance below 1e-4."""
    generator = np.random.default_rng(3)
    alarms = 0
    for _ in range(40):
        rows = [
            row("parity", n, seed, norm=float(generator.normal(17, 1)), log_blowup=float(generator.normal(5, 1)))
            for n in (5, 10)
            for seed in range(20)
        ]
        move = tradeoff.frontier_move(rows, 5, 10)
        assert move is not None
        alarms += move["low"] > 0
    assert alarms < 10
    assert tradeoff.frontier_move(rows, 5, 15) is None


def test_a_tradeoff_over_too_few_runs_is_out_of_reach() -> None:
    rows = [asdict(row("parity", 10, seed, norm=seed, log_blowup=-seed)) for seed in range(8)]
    assert statuses(tradeoff.findings({"rows": rows})) == [OUT, OUT]
    assert statuses(tradeoff.findings({"rows": []})) == [OUT, OUT]


def curve(decay: float = 0.1, learned: int | None = 1000) -> dict[str, Any]:
    """Plateau at sharpness 1 and Blowup 10, then 3 and 25; the norm falls from step 1000 on."""
    history = [
        {
            "step": step,
            "loss": 0.25 if step < 900 else 0.1 if step < 1000 else 0.001,
            "sharpness": 1.0 if step < 900 else 3.0,
            "blowup": 10.0 if step < 900 else 25.0,
            "norm": 17.0 if step <= 1000 else 17.0 - (step - 1000) / 1000,
        }
        for step in range(0, 2501, 100)
    ]
    return {"weight_decay": decay, "seed": 0, "seconds": 1.0, "learned_at": learned, "history": history}


def test_pattern_of_a_curve_with_known_jumps() -> None:
    found = dynamics.pattern(curve())
    assert found == {"weight_decay": 0.1, "sharpness": 3.0, "blowup": 2.5, "norm": -1.5}
    assert dynamics.pattern(curve(learned=None)) is None


def test_statuses_of_the_dynamics() -> None:
    found = dynamics.findings({"n": 10, "curves": [curve(), curve(), curve(), curve(0.0), curve(learned=None)]})
    assert statuses(found) == [REPRODUCED] * 3
    assert "in 3 of 3 runs" in found[2].evidence, "without weight decay nothing is said of the norm"
    assert "1 of 5 runs did not learn PARITY" in found[0].evidence
    assert statuses(dynamics.findings({"n": 10, "curves": [curve(), curve()]})) == [OUT] * 3, "too few runs"
    assert statuses(dynamics.findings({"n": 10, "curves": [curve(learned=None)]})) == [OUT] * 3


def test_a_random_table_keeps_the_training_labels_and_the_parity_table_has_sensitivity_n(tmp_path: Path) -> None:
    assert generalisation.sensitivity_of("".join(str(int(v < 0)) for v in mp.functions.parity(4).table())) == 4
    config = trained.configuration(BooleanTask("table", 4, table=random_table(4, 0)), TINY.encoder, 0)
    run = trained.train(replace(config, problem=replace(config.problem, train_size=10)), cache=tmp_path)
    table = generalisation.overwritten(run, 5)
    known = run.config.problem.training_inputs()
    rows = [sum((1 - bit) << place for place, bit in enumerate(bits)) for bits in known.tolist()]
    assert [int(table[place]) for place in rows] == run.config.problem.task.targets(known).long().tolist()
    learned, _ = generalisation.extrapolation(run)
    with torch.no_grad():
        assert [float(character) for character in learned] == (run.model(all_bits(4)) > 0.5).float().tolist()


def test_statuses_of_generalisation() -> None:
    extrapolations = [
        {"size": size, "function": 0, "seed": seed, "fits": True, "seconds": 1.0, "learned": level + 0.01 * seed,
         "random": 4.0 + 0.01 * seed}
        for size, level in ((32, 2.0), (64, 2.5), (128, 3.0))
        for seed in range(4)
    ]  # fmt: skip
    tables = [
        {"size": 32, "kind": "learned", **asdict(row("table", 8, seed, sensitivity=seed, sharpness=0.1 + 0.1 * seed))}
        for seed in range(6)
    ]
    found = generalisation.findings({"n": 8, "extrapolations": extrapolations, "tables": tables})
    assert statuses(found) == [REPRODUCED] * 3
    for one in extrapolations:
        one["learned"] = 3.9 - 0.005 * one["size"] + 0.01 * one["seed"]
    found = generalisation.findings({"n": 8, "extrapolations": extrapolations, "tables": tables[:2]})
    assert statuses(found) == [REPRODUCED, NOT, OUT]


def test_statuses_of_the_scratchpad() -> None:
    def one(n: int, seed: int, sharpness: float, accuracy: float = 1.0) -> dict[str, Any]:
        ends = {"value": sharpness, "low": sharpness / 2, "high": 2 * sharpness}
        return {"n": n, "seed": seed, "steps": 1, "seconds": 1.0, "accuracy": accuracy, "loss": 0.0, "sharpness": ends,
                "step_sensitivity": {"value": 2.0, "low": 1.9, "high": 2.1}}  # fmt: skip

    flat = [one(n, seed, 0.2 + 0.001 * seed) for n in (8, 24, 40) for seed in range(2)]
    assert statuses(scratchpad.findings({"rows": flat})) == [REPRODUCED] * 3
    growing = [one(n, seed, 0.01 * n + 0.001 * seed) for n in (8, 24, 40) for seed in range(2)]
    assert statuses(scratchpad.findings({"rows": growing})) == [REPRODUCED, REPRODUCED, NOT]
    spike = [one(n, seed, 1.0 if (n, seed) == (40, 1) else 0.1) for n in (8, 24, 40) for seed in range(2)]
    assert statuses(scratchpad.findings({"rows": spike})) == [REPRODUCED, REPRODUCED, OUT], "noise decides nothing"
    failed = [one(8, 0, 0.2), one(40, 0, 0.2, accuracy=0.5)]
    assert statuses(scratchpad.findings({"rows": failed})) == [REPRODUCED, NOT, OUT]


def test_a_step_that_is_an_exclusive_or_of_two_bits_has_sensitivity_2() -> None:
    class Exact(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            bits, written = tokens[:, :5], tokens[:, 5:]
            return ((bits + written % 2) % 2).float()  # START = 2 counts as 0

    assert scratchpad.step_sensitivities(Exact(), 5, 0) == [2.0] * scratchpad.CONTEXTS


def test_a_contradicted_claim_fails_and_one_out_of_reach_skips() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"not reproduced: a \(A\.1\)\n  b"):
        require([Finding("a", "A.1", NOT, "b"), Finding("c", "A.1", REPRODUCED, "d")])
    with pytest.raises(pytest.skip.Exception, match="out of reach"):
        require([Finding("a", "A.1", OUT, "b")])
    require([Finding("a", "A.1", OUT, "b"), Finding("c", "A.1", PARTLY, "d")])
    with pytest.raises(pytest.xfail.Exception, match="not reproduced: a"):
        require([Finding("a", "A.1", NOT, "b", doubtful=True), Finding("c", "A.1", REPRODUCED, "d")])


def test_the_whole_suite_runs_is_cached_and_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(run, "PRESETS", {"tiny": TINY})
    data = run_all("tiny", out=tmp_path)
    trained_once = sorted(path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json"))
    again = run_all("tiny", out=tmp_path)
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")) == trained_once
    assert findings(again) == findings(data)
    assert all(training_seconds(data["experiments"][name]) > 0 for name in ("lengths", "dynamics", "scratchpad"))
    page = markdown(data)
    for module in experiments.MODULES.values():
        assert f"## {module.TITLE}" in page
    assert "E (T' - T)^2 is never below" in page
    pytest.importorskip("matplotlib")
    assert len(write_figures(data, tmp_path)) == len(experiments.MODULES)


def test_one_experiment_alone_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PRESETS", {"tiny": TINY})
    run_all("tiny", out=tmp_path, only=["scratchpad"])
    data = run_all("tiny", out=tmp_path, only=["lengths"])
    assert list(data["experiments"]) == ["lengths", "scratchpad"]
    assert "tradeoff" in data["not_run"]
    assert "Not run: " in markdown(data)
    monkeypatch.setattr(run, "PRESETS", {"tiny": replace(TINY, directions=5)})
    other = run_all("tiny", out=tmp_path, only=["lengths"])
    assert list(other["experiments"]) == ["lengths"], "other sizes are not kept"


REPORT = Path(__file__).parents[2] / "reports" / "hahn_rofin" / "results.json"


def test_the_report_bears_out_the_theorem_and_altered_numbers_would_not() -> None:
    data = json.loads(REPORT.read_text(encoding="utf-8"))["experiments"]
    assert set(statuses(handcrafted.findings(data["handcrafted"]))) == {REPRODUCED}
    for noisy in data["handcrafted"]["noisy"]:
        noisy["accuracy"] = {"value": 0.98, "low": 0.97, "high": 0.99}
        noisy["sharpness"] = {"value": 0.95, "low": 0.94, "high": 0.96}
    for exact in data["handcrafted"]["exact"]:
        exact["implied"] = float(exact["n"])
        exact["majority_peak"] = [0]
        exact["accuracy"][0] = 0.5
        exact["sensitivity"][1] = 1.0
    data["handcrafted"]["first"]["plain"] = data["handcrafted"]["first"]["scaled"]
    assert set(statuses(handcrafted.findings(data["handcrafted"]))) == {NOT}


def test_random_models_of_the_report_are_insensitive_and_random_functions_would_not_be() -> None:
    data = json.loads(REPORT.read_text(encoding="utf-8"))["experiments"]["initialisation"]
    assert NOT not in statuses(initialisation.findings(data))
    for one in data["rows"]:
        assert sum(one["profile"]) == pytest.approx(1)
        one["sensitivity"] = {"value": 0.5, "low": 0.49, "high": 0.51}
        one["insensitive_share"] = 0.1
    assert set(statuses(initialisation.findings(data))) == {NOT}


def test_a_table_cell_with_a_bar_stays_one_cell() -> None:
    assert list(markdown_table(("|T|",), [["a|b"]]))[1:] == ["| \\|T\\| |", "| --- |", "| a\\|b |"]


def test_a_check_holds_up_to_its_tolerance() -> None:
    assert Check("a", "A.1", 1.0, 1.1, 0.2).holds
    assert not Check("a", "A.1", 1.0, math.nan, 0.2).holds


@pytest.mark.parametrize("name", ["quick", "standard", "full"])
def test_presets_have_seeds_and_lengths(name: str) -> None:
    preset = PRESETS[name]
    assert preset.seeds >= 1
    assert list(preset.lengths) == sorted(set(preset.lengths))
    if name != "quick":
        assert preset.seeds >= 3


def test_the_suite_is_collected_by_name_and_its_theory_passes(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest("--modelprops", "--modelprops-suite=hahn-rofin", "--collect-only", "-q")
    for name in ("test_exact_parity", "test_sharpness_against_length", "test_scratchpad"):
        listed.stdout.fnmatch_lines([f"*{name}*"])
    result = pytester.runpytest("--modelprops", "--modelprops-suite=hahn-rofin", "-k", "test_theory")
    result.assert_outcomes(passed=5, deselected=7)
