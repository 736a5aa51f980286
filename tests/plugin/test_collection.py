"""Which tests run, which are skipped, and which come built in."""

from __future__ import annotations

import pytest


def test_property_tests_are_skipped_with_the_reason_without_the_flag(parity_project: pytest.Pytester) -> None:
    parity_project.makepyfile("""
        import modelprops as mp

        def test_property(subject): mp.assert_low_sensitivity(subject, 2)
        def test_ordinary(): pass
    """)
    result = parity_project.runpytest("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*run with --modelprops*"])


def test_a_fixture_named_subject_that_has_nothing_to_do_with_models_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def subject(): return "an e-mail's subject"

        def test_mail(subject): assert "e-mail" in subject
    """)
    pytester.runpytest().assert_outcomes(passed=1)


def test_the_marker_is_registered(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.modelprops\ndef test_marked(): pass\n")
    pytester.runpytest("--strict-markers").assert_outcomes(skipped=1)
    pytester.runpytest("--strict-markers", "--modelprops").assert_outcomes(passed=1)


def test_an_empty_folder_runs_the_demo_and_says_what_to_set(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--modelprops")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*set --modelprops-model to test your own*"])
    result.stdout.re_match_lines([r"average_sensitivity\s+2\.707\s+exact\s+<= 3\.5\s+pass"])


def test_the_parity_demo_fails_and_the_text_says_everything(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--modelprops", "--modelprops-model", "demo:parity")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "violated: *average_sensitivity <= 3.5*",
            "measured: 12, exact",
            "spent: *4,096 model evaluations*",
            "worst found: mp.Witness(point=torch.tensor([[]" + "1, " * 11 + "1], *), coordinate=0, score=12.0)",
            "reproduce: pytest --modelprops *demo:parity* --modelprops-claim=*",
            "hint: *",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_a_suite_runs_alone_and_beside_paths(parity_project: pytest.Pytester) -> None:
    parity_project.makepyfile(test_mine="def test_mine(): pass")
    alone = parity_project.runpytest("--modelprops", "--modelprops-suite=default", "--modelprops-model=demo:majority")
    assert "test_mine" not in alone.stdout.str()
    both = parity_project.runpytest("--modelprops", "--modelprops-suite=default", "-v", "test_mine.py")
    both.stdout.fnmatch_lines(["*test_mine*"])


def test_collect_only_deselection_and_last_failed_work_on_suite_items(pytester: pytest.Pytester) -> None:
    options = ("--modelprops", "--modelprops-model=demo:parity")
    listed = pytester.runpytest(*options, "--collect-only", "-q")
    listed.stdout.fnmatch_lines(["*test_claim*average_sensitivity <= 3.5*"])
    chosen = pytester.runpytest(*options, "-k", "average_sensitivity")
    chosen.assert_outcomes(failed=1, deselected=2)
    again = pytester.runpytest(*options, "--lf")
    again.assert_outcomes(failed=1, deselected=2)


def test_items_are_parametrised_per_checkpoint(pytester: pytest.Pytester) -> None:
    pytester.makefile(".txt", first="1", second="2")
    pytester.makepyfile("""
        def test_it(checkpoint): assert checkpoint.endswith(".txt")
    """)
    result = pytester.runpytest("--modelprops", "--modelprops-checkpoint=*.txt", "-v", "-p", "no:randomly")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_it[[]first.txt[]]*", "*test_it[[]second.txt[]]*"])


def test_a_subject_without_a_model_says_what_to_configure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(subject): pass")
    result = pytester.runpytest("--modelprops")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no model is configured: give --modelprops-model*"])
    assert "fixtures.py" not in result.stdout.str().split("ERRORS")[1].split("short test summary")[0]


@pytest.mark.parametrize("model", [(), ("--modelprops-model=demo:majority",)], ids=["alone", "beside a demo"])
def test_the_card_of_the_demo_is_not_asserted_of_a_subject_of_ones_own(
    parity_project: pytest.Pytester, model: tuple[str, ...]
) -> None:
    result = parity_project.runpytest("--modelprops", "--modelprops-suite=default", *model)
    result.stdout.no_fnmatch_line("*test_claim*")
    result.stdout.fnmatch_lines(["average_sensitivity*measured*"])
    assert result.ret == pytest.ExitCode.OK
