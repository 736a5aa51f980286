"""--modelprops-save, --modelprops-compare, --modelprops-compare-fail, --modelprops-storage, and several checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PROJECT = """
import pytest, torch
import modelprops as mp

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1.0, 2.0, 20))
        self.parity = torch.nn.Parameter(torch.tensor({parity}))
    def forward(self, x):
        x = x.to(self.weight.dtype)
        return (x @ self.weight) * torch.where(self.parity > 0, x[:, :8].prod(1), 1.0)

@pytest.fixture(scope="session")
def subject(checkpoint):
    net = Net()
    if checkpoint is not None:
        net.load_state_dict(torch.load(checkpoint, weights_only=True))
    return mp.Subject(net, mp.BooleanCube(20), readout="sign", name="net")
"""
TESTS = """
import modelprops as mp

def test_sensitivity(subject): mp.claim("average_sensitivity").check(subject, exact=False, budget=60_000)
def test_stability(subject): mp.claim("noise_stability(rho=0.9)").check(subject, exact=False, budget=60_000)
"""
GOOD, BAD = PROJECT.format(parity="0.0"), PROJECT.format(parity="1.0")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A linear threshold function; BAD multiplies it with PARITY of 8 of its inputs."""
    pytester.makeconftest(GOOD)
    pytester.makepyfile(test_net=TESTS)
    return pytester


@pytest.fixture
def saved(project: pytest.Pytester) -> pytest.Pytester:
    """The project with the baseline `prod`."""
    run(project, "--modelprops-save=prod").assert_outcomes(passed=2)
    return project


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run with property tests on."""
    return pytester.runpytest("--modelprops", "-p", "no:randomly", *arguments)


def refused(result: pytest.RunResult, says: str) -> None:
    """A usage error, in words, without a traceback."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = "\n".join(result.errlines) + result.stdout.str()
    assert says in text
    assert "Traceback" not in text


def test_the_saved_model_passes_against_itself(saved: pytest.Pytester) -> None:
    result = run(saved, "--modelprops-compare=prod")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["average_sensitivity*pass*"])


def test_the_default_is_the_last_saved(saved: pytest.Pytester) -> None:
    result = run(saved, "-v", "--modelprops-compare")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*rises by at most 5% from prod*PASSED*"])


def test_a_worse_model_fails_each_measure(saved: pytest.Pytester) -> None:
    saved.makeconftest(BAD)
    result = run(saved, "--modelprops-compare=prod")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["violated: net: average_sensitivity rises by at most 5% from prod*"])


def test_rules_say_what_is_gated(saved: pytest.Pytester) -> None:
    saved.makeconftest(BAD)
    result = run(saved, "--modelprops-compare=prod", "--modelprops-compare-fail=stability@0.9:-0.02")
    result.assert_outcomes(passed=2, failed=1)
    result = run(saved, "--modelprops-compare=prod", "--modelprops-compare-fail=sensitivity:x50")
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--modelprops-compare=nope"], "no baseline 'nope'"),
        (["--modelprops-compare=../prod"], "not a baseline name"),
        (["--modelprops-save=../prod"], "not a baseline name"),
        (["--modelprops-compare=prod", "--modelprops-compare-fail=sensitivity:5%"], "^"),
        (["--modelprops-compare=prod", "--modelprops-compare-fail=sharpness:x2"], "no such measurement"),
        (["--modelprops-compare-fail=sensitivity:+5%"], "add --modelprops-compare"),
    ],
)
def test_mistakes_are_usage_errors(saved: pytest.Pytester, arguments: list[str], says: str) -> None:
    refused(run(saved, *arguments), says)


@pytest.mark.parametrize("flag", ["--modelprops-compare=prod", "--modelprops-save=prod"])
def test_without_modelprops_nothing_is_compared_or_saved_so_it_is_an_error(saved: pytest.Pytester, flag: str) -> None:
    refused(saved.runpytest(flag), "add it")


def test_comparing_with_nothing_is_an_error(project: pytest.Pytester) -> None:
    refused(run(project, "--modelprops-compare"), "no baseline in")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_corrupt_baseline_is_an_error_and_never_a_pass(saved: pytest.Pytester, workers: str) -> None:
    path = saved.path / ".modelprops" / "prod.json"
    path.write_text(path.read_text().replace("0", "1", 1))
    refused(run(saved, "--modelprops-compare=prod", "-n", workers), "prod.json")


def test_a_comparison_that_was_deselected_is_an_error(saved: pytest.Pytester) -> None:
    refused(run(saved, "--modelprops-compare=prod", "-k", "test_sensitivity"), "nothing was compared")


def test_deselecting_and_collecting_work(saved: pytest.Pytester) -> None:
    result = run(saved, "--modelprops-compare=prod", "--collect-only", "-q")
    assert result.ret == 0
    assert result.stdout.str().count("::test_not_regressed[") == 2
    run(saved, "--modelprops-compare=prod", "-k", "falls").assert_outcomes(passed=1, deselected=3)


def test_last_failed_reruns_the_gate_alone(saved: pytest.Pytester) -> None:
    saved.makeconftest(BAD)
    run(saved, "--modelprops-compare=prod", "--modelprops-compare-fail=stability:-0.1").assert_outcomes(
        passed=2, failed=1
    )
    run(saved, "--modelprops-compare=prod", "--modelprops-compare-fail=stability:-0.1", "--lf").assert_outcomes(
        failed=1
    )


def test_a_run_that_fails_is_not_saved(project: pytest.Pytester) -> None:
    project.makepyfile(test_other="def test_other(): assert 0")
    result = run(project, "--modelprops-save=prod")
    result.stdout.fnmatch_lines(["not saved: *"])
    assert not (project.path / ".modelprops").exists()


def test_a_run_that_measures_nothing_saves_nothing_and_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    refused(run(pytester, "--modelprops-save=prod"), "nothing was measured")


def test_storage_is_a_setting(project: pytest.Pytester) -> None:
    run(project, "--modelprops-save=prod", "--modelprops-storage=shelf")
    assert (project.path / "shelf" / "prod.json").exists()
    run(project, "--modelprops-compare=prod", "--modelprops-storage=shelf").assert_outcomes(passed=4)


def test_workers_save_the_same_baseline_as_one_process(project: pytest.Pytester) -> None:
    found = []
    for workers in ("0", "2"):
        run(project, "--modelprops-save=prod", "-n", workers).assert_outcomes(passed=2)
        found.append(content(project.path / ".modelprops"))
    assert found[0] == found[1]


def content(storage: Path) -> list[object]:
    """A baseline as stored, without times and hashes of them."""
    (side,) = storage.glob("*.npz")
    data = json.loads((storage / "prod.json").read_text())
    del data["saved"], data["sha256"]
    for row in data["measurements"]:
        del row["estimate"]["seconds"]
    return [json.dumps(data), side.name, side.read_bytes()]


def test_gates_give_the_same_verdicts_under_xdist(saved: pytest.Pytester) -> None:
    saved.makeconftest(BAD)
    rows = []
    for workers in ("0", "2"):
        run(saved, "--modelprops-compare=prod", "-n", workers).assert_outcomes(passed=2, failed=2)
        data = json.loads((saved.path / "reports" / "results.json").read_text())["verdicts"]
        for row in data:
            del row["verdict"]["estimate"]["seconds"]
        rows.append(json.dumps(data))
    assert rows[0] == rows[1]


def test_the_fixture_baseline_gates_any_subject(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import modelprops as mp

        def majority(): return mp.Subject(lambda x: x.sum(1).float(), mp.BooleanCube(8), readout="sign", name="m")
        def test_measures(): mp.average_sensitivity(majority())
        def test_gate(baseline): mp.assert_not_regressed(majority(), baseline)
    """)
    run(pytester, "--modelprops-save=prod").assert_outcomes(passed=1, skipped=1)
    run(pytester, "--modelprops-compare=prod").assert_outcomes(passed=2)
    refused(run(pytester, "--modelprops-compare=prod", "-k", "measures"), "nothing was compared")


def test_two_baselines_are_compared_in_one_run(saved: pytest.Pytester) -> None:
    run(saved, "--modelprops-save=next").assert_outcomes(passed=2)
    run(saved, "--modelprops-compare=prod", "--modelprops-compare=next").assert_outcomes(passed=6)


def test_several_checkpoints_are_gated_and_shown_as_a_series(saved: pytest.Pytester) -> None:
    import torch

    weight = torch.linspace(1.0, 2.0, 20)
    for name, parity in (("step1", 0.0), ("step2", 0.0), ("step3", 1.0)):
        torch.save({"weight": weight, "parity": torch.tensor(parity)}, saved.path / f"{name}.pt")
    result = run(saved, "--modelprops-checkpoint=step*.pt", "--modelprops-compare=prod", "-v")
    result.assert_outcomes(passed=10, failed=2)
    result.stdout.fnmatch_lines(["*test_sensitivity[[]step1.pt[]]*PASSED*"])
    result.stdout.fnmatch_lines(["series average_sensitivity: *; jump at step3.pt, drift at step3.pt"])
    refused(run(saved, "--modelprops-checkpoint=step*.pt", "--modelprops-save=all"), "one checkpoint")
