"""The pytest plugin: options, hooks, fixtures. Thin: no mathematics, and no torch until a property test runs."""

from __future__ import annotations

import pytest

from modelprops.plugin import collection, fixtures, gates, recording
from modelprops.plugin.options import DEMO, add_options, configuration


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the options and register the hooks."""
    config.addinivalue_line("markers", "modelprops: a property test of a trained model; runs with --modelprops")
    if getattr(config.option, "hypothesis_profile", None) == "modelprops":
        # Before Hypothesis's own plugin loads it by name; Hypothesis is not imported for anybody else.
        import modelprops.profile  # noqa: F401
    checked = configuration(config)
    collection.check_suites(checked)
    if checked.enabled:
        collection.check_subject_options(config)
    gates.check_gates(config, checked)
    config.stash[collection.CONFIGURATION] = checked
    for module in (collection, fixtures, recording):
        config.pluginmanager.register(module, module.__name__)
    if not hasattr(config, "workerinput"):
        from modelprops.plugin.reporting import Reporting

        recorder = recording.Recorder()
        config.pluginmanager.register(recorder, "modelprops-recorder")
        config.pluginmanager.register(Reporting(checked, recorder), "modelprops-reporting")
        config.pluginmanager.register(gates.Gates(checked), "modelprops-gates")


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """`--modelprops-suite list` prints the suites and stops."""
    if "list" in (config.option.modelprops_suite or ()):
        print(collection.list_suites())
        return 0
    return None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is tested, and how to test something else."""
    checked = config.stash[collection.CONFIGURATION]
    if not checked.enabled:
        return None
    settings = checked.settings
    model = checked.model or "from conftest.py, else the built-in " + DEMO
    hint = "" if checked.model else " (set --modelprops-model to test your own)"
    return (
        f"modelprops: model {model}{hint}, confidence {settings.confidence:g}, "
        f"budget {settings.budget:,} evaluations, seed {settings.seed}"
    )
