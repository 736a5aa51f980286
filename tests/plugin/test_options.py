"""Every option: read, checked, and refused with its name and the valid values (exit status 4)."""

from __future__ import annotations

import pytest

WRONG = [
    ("--modelprops-confidence=1.5", "between 0 and 1"),
    ("--modelprops-confidence=nan", "finite"),
    ("--modelprops-confidence=abc", "give a number"),
    ("--modelprops-budget=0", "positive"),
    ("--modelprops-budget=1.5", "give a number"),
    ("--modelprops-seed=x", "give a number"),
    ("--modelprops-inconclusive=maybe", "fail, skip, warn"),
    ("--modelprops-preset=huge", "quick, standard, full"),
    ("--modelprops-suite=nope", "default"),
    ("--modelprops-checkpoint=missing.safetensors", "no such file"),
    ("--modelprops-claim=average_sensitivity", None),
    ("--modelprops-claim=average_sensitivity < 2", "^"),
    ("--modelprops-claim=averge_sensitivity <= 2", "average_sensitivity"),
    ("--modelprops-claim=average_sensitivity(width=__import__('os')) <= 2", "literal"),
]


@pytest.mark.parametrize(("option", "says"), [row for row in WRONG if row[1]], ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_a_usage_error_that_says_what_is_valid(
    pytester: pytest.Pytester, option: str, says: str
) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest("--modelprops", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = "\n".join(result.errlines)
    assert option.split("=")[0] in errors
    assert says in errors
    assert "Traceback" not in errors


def test_an_unknown_option_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--modelprops-colour=red")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_ini_keys_are_read_and_the_command_line_wins(parity_project: pytest.Pytester) -> None:
    parity_project.makeini("[pytest]\nmodelprops = true\nmodelprops_confidence = 0.9\nmodelprops_seed = 7\n")
    parity_project.makepyfile("""
        def test_settings(subject, modelprops):
            assert modelprops.settings.confidence == 0.95
            assert modelprops.settings.seed == 7
    """)
    parity_project.runpytest("--modelprops-confidence=0.95").assert_outcomes(passed=1)


def test_claims_in_the_ini_file_become_tests(parity_project: pytest.Pytester) -> None:
    parity_project.makeini(
        "[pytest]\nmodelprops = true\nmodelprops_claims =\n"
        "    average_sensitivity <= 21\n    noise_stability(rho=0.9) >= 0.5\n"
    )
    result = parity_project.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["violated: parity: noise_stability(rho=0.9) >= 0.5*"])


def test_suites_are_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--modelprops-suite", "list")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["default*"])


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--modelprops-domain=Cube(2)", "BooleanCube"),
        ("--modelprops-domain=BooleanCube(0)", "at least 1"),
        ("--modelprops-readout=sine", "probability"),
        ("--modelprops-device=gpuu", "cuda"),
        ("--modelprops-dtype=float99", "float32"),
    ],
)
def test_a_wrong_part_of_the_subject_is_a_usage_error_too(pytester: pytest.Pytester, option: str, says: str) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest("--modelprops", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = "\n".join(result.errlines)
    assert option in errors
    assert says in errors
