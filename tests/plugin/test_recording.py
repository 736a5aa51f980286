"""Verdicts are recorded, reproduced, shown and stored."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

TESTS = """
import modelprops as mp

def test_low(subject): mp.assert_low_sensitivity(subject, at_most=2)
def test_fine(subject): mp.assert_low_sensitivity(subject, at_most=21)
def test_stable(subject): mp.assert_stability_above(subject, 0.05, rho=0.9)
def test_open(subject): mp.assert_low_sensitivity(subject, at_most=20, tolerance=0, budget=1000, exact=False)
"""


def verdicts(pytester: pytest.Pytester) -> list[dict[str, object]]:
    """Recorded verdicts without what depends on the clock."""
    rows = json.loads((pytester.path / "reports" / "results.json").read_text())["verdicts"]
    for row in rows:
        row["verdict"]["estimate"].pop("seconds")
    return rows


@pytest.fixture
def project(parity_project: pytest.Pytester) -> pytest.Pytester:
    """Four claims: one violated, two held, one undecided."""
    parity_project.makepyfile(TESTS)
    return parity_project


def test_results_and_summary_are_written(project: pytest.Pytester) -> None:
    project.runpytest("--modelprops").assert_outcomes(passed=2, failed=2)
    data = json.loads((project.path / "reports" / "results.json").read_text())
    assert data["schema"] == 1
    assert data["outcomes"] == {"fail": 1, "inconclusive": 1, "pass": 2}
    assert data["environment"]["torch"].startswith("2.")
    summary = (project.path / "reports" / "summary.md").read_text()
    assert "❌ fail" in summary
    assert "reproduce" in summary


def test_nothing_is_written_without_the_flag(project: pytest.Pytester) -> None:
    project.runpytest()
    assert not (project.path / "reports").exists()


def test_the_same_numbers_under_xdist_shuffled_and_alone(project: pytest.Pytester) -> None:
    project.runpytest("--modelprops", "-p", "no:randomly")
    plain = verdicts(project)
    project.runpytest("--modelprops", "-n", "2", "-p", "no:randomly")
    assert verdicts(project) == plain
    project.runpytest("--modelprops", "-p", "randomly", "-p", "no:xdist")
    assert verdicts(project) == plain


def test_the_reproducing_line_gives_the_same_estimate(project: pytest.Pytester) -> None:
    project.runpytest("--modelprops", "--modelprops-seed=5")
    row = next(row for row in verdicts(project) if row["verdict"]["outcome"] == "fail")  # type: ignore[index]
    line = row["verdict"]["reproduce"]  # type: ignore[index]
    assert (
        line
        == "pytest 'test_the_reproducing_line_gives_the_same_estimate.py::test_low' --modelprops --modelprops-seed=5"
    )
    project.runpytest(*line.replace("'", "").split()[1:])
    assert verdicts(project) == [row]


def test_verdicts_are_junit_properties(project: pytest.Pytester) -> None:
    project.runpytest("--modelprops", "--junitxml=junit.xml")
    root = ElementTree.parse(project.path / "junit.xml").getroot()
    found = {item.get("name"): item.get("value") for item in root.iter("property")}
    assert str(found["modelprops: average_sensitivity <= 2"]).startswith("fail: average_sensitivity = 20")


@pytest.mark.parametrize(("what", "outcome"), [("fail", "failed"), ("skip", "skipped"), ("warn", "passed")])
def test_what_an_inconclusive_claim_does_is_a_setting(project: pytest.Pytester, what: str, outcome: str) -> None:
    result = project.runpytest("--modelprops", f"--modelprops-inconclusive={what}", "-k", "open")
    result.assert_outcomes(**{outcome: 1}, deselected=3)  # type: ignore[arg-type]
    result.stdout.re_match_lines([r"average_sensitivity .* inconclusive"])


def test_the_table_has_a_family_wise_line(project: pytest.Pytester) -> None:
    project.runpytest("--modelprops").stdout.fnmatch_lines(["4 claims: 2 pass, 1 fail, 1 inconclusive; *family-wise*"])


def test_given_tests_record_every_verdict_and_work_beside_benchmark(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import modelprops as mp
        from hypothesis import given, settings, strategies as st

        @given(st.sampled_from([0.5, 0.9]))
        @settings(max_examples=2, deadline=None)
        def test_given(subject, rho): mp.assert_stability_above(subject, -1, rho=rho)

        def test_timed(benchmark): assert benchmark(lambda: 1) == 1
    """)
    project.runpytest("--modelprops", "-k", "given or timed").assert_outcomes(passed=2)
    assert verdicts(project)


def test_a_model_error_shows_its_text_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import modelprops as mp
        import torch

        def test_nan():
            mp.assert_low_sensitivity(lambda x: x[:, 0] * float("nan"), 2, domain=mp.BooleanCube(4))
    """)
    result = pytester.runpytest("--modelprops")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*returned [[]nan[]] for the input torch.tensor(*"])
    assert "subject.py" not in result.stdout.str()


def test_a_report_directory_that_cannot_be_written_is_said_and_not_a_success(project: pytest.Pytester) -> None:
    (project.path / "taken").write_text("a file")
    result = project.runpytest("--modelprops", "--modelprops-report=taken", "-k", "fine")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["average_sensitivity*pass*", "--modelprops-report=taken: nothing written*"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert (project.path / "taken").read_text() == "a file"


def test_an_interrupted_run_shows_and_stores_what_was_reached(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="import modelprops as mp\ndef test_low(subject): mp.assert_low_sensitivity(subject, at_most=21)",
        test_b="def test_stopped(subject): raise KeyboardInterrupt",
    )
    result = project.runpytest_subprocess("--modelprops", "-p", "no:randomly", "test_a.py", "test_b.py")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["average_sensitivity*pass*"])
    assert [row["verdict"]["outcome"] for row in verdicts(project)] == ["pass"]  # type: ignore[index]
    assert sorted(path.name for path in (project.path / "reports").iterdir()) == ["results.json", "summary.md"]


def test_the_reproducing_line_is_for_the_folder_and_the_shell(parity_project: pytest.Pytester) -> None:
    parity_project.makeini("[pytest]")
    folder = parity_project.mkdir("deep")
    (folder / "test_deep.py").write_text(TESTS)
    parity_project.chdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = parity_project.runpytest("--modelprops", "-k", "low")
        result.stdout.fnmatch_lines(["reproduce: pytest 'test_deep.py::test_low' --modelprops*"])
        claim = "noise_stability(rho=0.9, normalisation='correlation') >= 0.9"
        result = parity_project.runpytest("--modelprops", f"--modelprops-claim={claim}", "-k", "claim")
        line = next(line for line in result.outlines if line.startswith("reproduce: "))
        assert shlex.split(line)[-1] == f"--modelprops-claim={claim}"
