"""Hypothesis and the plugin together: profile, seed, example database, `@reproduce_failure`, warm subjects, reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import modelprops.strategies  # noqa: F401  pytester forgets modules that a run imported
from modelprops.plugin.options import configuration

SUBJECT = """
import time
import pytest
import torch
import modelprops as mp

@pytest.fixture(scope="session")
def subject():
    # Right but where inputs 1 and 4 are both -1.
    def model(x):
        seen.append(x.shape)
        return x.sum(1) * torch.where((x[:, 1] < 0) & (x[:, 4] < 0), -1, 1)
    return mp.Subject(model, mp.BooleanCube(9), "sign", name="bugged")

seen = []
"""

FAILING = """
import torch
from hypothesis import given, settings
from modelprops.strategies import boolean_inputs

drawn = []

{decorator}@given(boolean_inputs(9))
def test_the_model_is_a_majority(subject, point):
    drawn.append(point)
    if len(drawn) == 1:
        print("first drawn:", point)
    value = subject(point[None])[0]
    assert value == torch.sign(point.float().sum())
"""
MINIMAL = "torch.tensor([1, -1, 1, 1, -1, 1, 1, 1, 1], dtype=torch.int8)"


# Where one of these is set, Hypothesis keeps no database and draws no random examples: not what a person sees.
CONTINUOUS_INTEGRATION = (
    *("CI", "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI", "TF_BUILD", "bamboo.buildKey", "BUILDKITE", "CIRCLECI"),
    *("CIRRUS_CI", "CODEBUILD_BUILD_ID", "GITHUB_ACTIONS", "GITLAB_CI", "HEROKU_TEST_RUN_ID", "TEAMCITY_VERSION"),
)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with a subject that is wrong where two inputs are -1, and a database of its own."""
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(pytester.path / ".hypothesis"))
    for name in CONTINUOUS_INTEGRATION:
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(SUBJECT)
    return pytester


def run(project: pytest.Pytester, *options: str) -> str:
    """Run pytest in a process of its own, as a user would."""
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *options]
    if "modelprops" not in _entry_points():
        command += ["-p", "modelprops.plugin"]
    done = subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _entry_points() -> set[str]:
    from importlib.metadata import entry_points

    return {point.name for point in entry_points(group="pytest11")}


def test_a_failure_is_shrunk_stored_replayed_and_reproduced_from_its_line(project: pytest.Pytester) -> None:
    test = project.makepyfile(FAILING.format(decorator=""))
    first = run(project, "--modelprops", "--hypothesis-profile", "modelprops")
    assert f"point={MINIMAL}" in first
    assert (project.path / ".hypothesis" / "examples").is_dir()
    again = run(project, "--modelprops", "--hypothesis-profile", "modelprops")
    assert f"first drawn: {MINIMAL}" in again, "the stored example comes first"
    line = re.search(r"@reproduce_failure\('[\d.]+', b'[^']+'\)", first)
    assert line, "the profile prints how to reproduce"
    test.write_text(
        "from hypothesis import reproduce_failure\n" + FAILING.format(decorator=f"{line.group()}\n"), encoding="utf-8"
    )
    reproduced = run(project, "--modelprops", "-p", "no:cacheprovider")
    assert f"first drawn: {MINIMAL}" in reproduced
    assert "1 failed" in reproduced


def test_a_failing_claim_shows_the_drawn_example_and_its_own_text(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import modelprops as mp
        from hypothesis import given
        from modelprops.strategies import boolean_batches

        @given(boolean_batches(9, size=4))
        def test_the_order_does_not_matter(subject, points):
            mp.metamorphic.assert_permutation(subject, points, [1, 2, 3, 4, 5, 6, 7, 8, 0])
    """)
    output = run(project, "--modelprops", "--hypothesis-profile", "modelprops", "--hypothesis-seed=1")
    assert "violated: bugged: f(x[order]) = f(x)" in output
    assert "points=torch.tensor([[" in output
    assert "@reproduce_failure" in output
    assert "Traceback" not in output
    rows = json.loads((project.path / "reports" / "results.json").read_text())
    assert len(rows["verdicts"]) == 1, "one row a test, not one an example"
    assert "--hypothesis-seed=1 --modelprops-seed=1" in output


def test_the_hypothesis_seed_is_the_root_of_all_seeds_unless_another_is_given(pytester: pytest.Pytester) -> None:
    def seed_of(*options: str) -> int:
        return configuration(pytester.parseconfig(*options)).settings.seed

    assert seed_of("--hypothesis-seed=41") == 41
    assert seed_of("--hypothesis-seed=41", "--modelprops-seed=7") == 7
    assert seed_of() == 0
    assert seed_of("--hypothesis-seed=apple") == seed_of("--hypothesis-seed=apple") != 0


def test_the_same_hypothesis_seed_draws_and_searches_the_same_inputs(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import hashlib
        import modelprops as mp
        from hypothesis import given, settings
        from modelprops.strategies import boolean_batches

        digest = hashlib.sha256()

        @settings(database=None, max_examples=20)
        @given(boolean_batches(9, size=4))
        def test_drawn(subject, points):
            digest.update(points.numpy().tobytes())

        def test_searched(subject):
            model = mp.Subject(lambda x: x[:, ::2].sum(1), mp.BooleanCube(40), name="wide")
            verdict = mp.assert_stable_everywhere(model, 2, budget=2000)
            print("digest", digest.hexdigest(), verdict.estimate.seed, verdict.witness)
    """)

    def found(*options: str) -> str:
        output = run(project, "--modelprops", "-s", *options)
        match = re.search(r"digest .*", output)
        assert match, output
        return match.group()

    assert found("--hypothesis-seed=3") == found("--hypothesis-seed=3")
    assert found("--hypothesis-seed=3") != found("--hypothesis-seed=4")


def test_the_profile_exists_only_for_those_who_ask(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import sys

        def test_nothing():
            print("loaded", "modelprops.profile" in sys.modules)
    """)
    assert "loaded False" in run(project, "-s")
    assert "loaded True" in run(project, "-s", "--hypothesis-profile", "modelprops")


def test_a_slow_first_pass_is_not_on_the_clock_of_the_deadline(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import time
        import pytest
        import modelprops as mp

        started = []

        @pytest.fixture(scope="session")
        def subject():
            def model(x):
                if not started:
                    started.append(1)
                    time.sleep(0.5)
                return x.sum(1)
            return mp.Subject(model, mp.BooleanCube(5))
    """)
    project.makepyfile("""
        from hypothesis import given, settings
        from modelprops.strategies import boolean_batches

        @settings(deadline=300)
        @given(boolean_batches(5, size=8))
        def test_shape(subject, points):
            assert subject(points).shape == (8,)
    """)
    assert "1 passed" in run(project, "--modelprops", "-W", "error")


def test_a_faulty_subject_is_reported_by_the_test_and_not_by_the_warm_up(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import pytest
        import torch
        import modelprops as mp

        @pytest.fixture(scope="session")
        def subject():
            return mp.Subject(lambda x: torch.rand(len(x)), mp.BooleanCube(5), name="dice")
    """)
    project.makepyfile("""
        import modelprops as mp

        def test_it(subject):
            mp.average_sensitivity(subject)
    """)
    output = run(project, "--modelprops")
    assert "1 failed" in output
    assert "error" not in output.splitlines()[-1]
    assert "dice gave two outputs" in output


def test_a_session_scoped_subject_meets_no_health_check(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from hypothesis import given
        from modelprops.strategies import boolean_batches

        @given(boolean_batches(64, size=64))
        def test_shape(subject, points):
            assert points.shape == (64, 64)
    """)
    output = run(project, "--modelprops", "-W", "error", "--hypothesis-profile", "modelprops")
    assert "1 passed" in output


def test_a_given_test_is_the_same_under_xdist(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    project.makepyfile(FAILING.format(decorator="@settings(database=None)\n"))
    output = run(project, "--modelprops", "-n", "2", "--hypothesis-seed=5", "--hypothesis-profile", "modelprops")
    assert f"point={MINIMAL}" in output


def test_pytest_torch_beside_it_changes_nothing(project: pytest.Pytester) -> None:
    pytest.importorskip("pytest_torch", reason="pytest-torch is not installed")
    project.makepyfile(FAILING.format(decorator=""))
    assert f"point={MINIMAL}" in run(project, "--modelprops", "--hypothesis-profile", "modelprops")
