"""Around every test: settings in force, verdicts collected, failures shown as their text and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import Any

import pytest

from modelprops.errors import Inconclusive, ModelpropsError
from modelprops.plugin.collection import CONFIGURATION, SUITE_OF, short_names
from modelprops.plugin.gates import ATTRIBUTE, KEPT, keeper, keeps
from modelprops.plugin.options import quoted
from modelprops.settings import Run, running

RUN = pytest.StashKey[Run]()
_ATTRIBUTE = "modelprops_verdicts"


class Recorder:
    """The controller's list of verdicts, from this process or from xdist workers, in a fixed order."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows {"test", "verdict"} sorted by test, so that they do not depend on who ran what when."""
        return sorted(self._rows, key=lambda row: row["test"])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the verdicts that a report carries."""
        for verdict in getattr(report, _ATTRIBUTE, ()):
            self._rows.append({"test": report.nodeid, "verdict": verdict})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Put the options in force, with a seed of this test's own."""
    configuration = item.config.stash[CONFIGURATION]
    run = Run(configuration.settings, _node(item), _reproduce(item), progress=_progress(item.config))
    if keeps(configuration):
        run.measured = keeper(item)
    item.stash[RUN] = run
    with running(run):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach verdicts to the report; show an error of ours as its text, without the inside of the package."""
    run = item.stash.get(RUN, None)
    verdicts = run.verdicts if run is not None and call.when == "call" else []
    for verdict in verdicts:
        item.user_properties.append((f"modelprops: {verdict.claim}", f"{verdict.outcome}: {verdict.estimate}"))
    report = yield
    if call.when == "call" and (kept := item.stash.get(KEPT, None)):
        setattr(report, ATTRIBUTE, list(kept))
    if verdicts:
        setattr(report, _ATTRIBUTE, [verdict.to_dict() for verdict in verdicts])
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, ModelpropsError) and call.excinfo is not None and report.failed:
        report.longrepr = shown = call.excinfo.getrepr(style="value")
        if notes := getattr(error, "__notes__", ()):
            # The drawn example and how to reproduce it, which this style leaves out.
            shown.addsection("drawn by Hypothesis", "\n".join(notes))
        if isinstance(error, Inconclusive):
            _apply_inconclusive(item, report, error)
    return report


def _apply_inconclusive(item: pytest.Item, report: pytest.TestReport, error: Inconclusive) -> None:
    what = item.config.stash[CONFIGURATION].inconclusive
    first = str(error).splitlines()[0]
    if what == "skip":
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {first}")
    elif what == "warn":
        report.outcome = "passed"
        report.longrepr = None
        item.warn(pytest.PytestWarning(f"{item.nodeid}: {first}"))


def _node(item: pytest.Item) -> str:
    """The node id without the checkpoint: all checkpoints of a run are measured on the same units."""
    parameters = getattr(item, "callspec", None)
    if parameters is None or not parameters.params.get("checkpoint"):
        return item.nodeid
    name, _, rest = item.nodeid.partition("[")
    shown = short_names(item.config.stash[CONFIGURATION].checkpoints)[parameters.params["checkpoint"]]
    parts = f"-{rest[:-1]}-".replace(f"-{shown}-", "-", 1).strip("-")
    return f"{name}[{parts}]" if parts else name


def _reproduce(item: pytest.Item) -> str:
    configuration = item.config.stash[CONFIGURATION]
    line = f"{configuration.line} --modelprops-seed={configuration.settings.seed}"
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if path := parameters.get("checkpoint"):
        line += f" --modelprops-checkpoint={quoted(path)}"
    suite = item.stash.get(SUITE_OF, None)
    if suite is None:
        return f"pytest {quoted(_address(item))} {line}"
    if gate := parameters.get("modelprops_gate"):
        return f"pytest {line} --modelprops-compare={gate.baseline} --modelprops-compare-fail={quoted(str(gate.rule))}"
    if text := parameters.get("modelprops_claim"):
        return f"pytest {line} --modelprops-claim={quoted(text)}"
    return f"pytest {line} --modelprops-suite={suite} -k {getattr(item, 'originalname', item.name)}"


def _address(item: pytest.Item) -> str:
    """The node id, seen from where pytest was called."""
    path, *names = item.nodeid.split("::")
    return "::".join([os.path.relpath(item.config.rootpath / path, item.config.invocation_params.dir), *names])


def _progress(config: pytest.Config) -> Any:
    """Return a function that shows a long measure's progress on a terminal, None where there is none."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not reporter.isatty or reporter.verbosity < 0:
        return None
    writer = config.get_terminal_writer()
    last = time.monotonic()

    def show(measure: str, spent: int, budget: int) -> None:
        nonlocal last
        if time.monotonic() - last > 1.0:
            last = time.monotonic()
            writer.write(f"\r{measure}: {spent:,} of at most {budget:,} evaluations", flush=True)
            writer.write("\r\x1b[K", flush=False)

    return show
