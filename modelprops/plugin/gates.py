"""Baselines and the command line: saved at the end of a run, read before one, compared in tests of their own.

Only the controller writes; what xdist workers measured travels on the tests' reports. A comparison that did not happen
is an error (exit status 4), never a pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelprops.errors import ModelpropsError
from modelprops.plugin.options import Configuration

if TYPE_CHECKING:
    from modelprops.baseline import Baseline
    from modelprops.measurement import Measurement
    from modelprops.paired import Comparison
    from modelprops.properties.measure import Measured

BASELINES = pytest.StashKey[tuple["Baseline", ...]]()
KEPT = pytest.StashKey[list[dict[str, Any]]]()
ATTRIBUTE = "modelprops_measurements"


def check_gates(config: pytest.Config, configuration: Configuration) -> None:
    """Read the baselines and check the rules before anything is collected; a fault is a `UsageError`."""
    config.stash[BASELINES] = ()
    if not configuration.enabled:
        for flag in ("save", "compare", "compare_fail"):
            if getattr(config.option, f"modelprops_{flag}", None):
                raise pytest.UsageError(f"--modelprops-{flag.replace('_', '-')}: nothing is measured without "
                                        "--modelprops; add it")  # fmt: skip
        return
    if configuration.save is not None:
        _check_save(configuration)
    rules = _rules(configuration)
    if configuration.compare:
        config.stash[BASELINES] = tuple(_read(name, configuration, rules) for name in configuration.compare)
    elif getattr(config.option, "modelprops_compare_fail", None):
        raise pytest.UsageError("--modelprops-compare-fail: no baseline to compare with; add --modelprops-compare")


def gates_of(config: pytest.Config, configuration: Configuration) -> list[Comparison]:
    """Return what the gate's tests decide: of each baseline, the measurements of the fixture `subject`."""
    from modelprops.regression import comparisons, fixture_measurements, parsed

    baselines = config.stash[BASELINES]
    rules = parsed(configuration.settings.rules)
    return [c for b in baselines if fixture_measurements(b) for c in comparisons(b, rules)]


def keeps(configuration: Configuration) -> bool:
    """Whether the units of this run are wanted at its end: for a baseline, or for a series of checkpoints."""
    return configuration.enabled and (configuration.save is not None or len(configuration.checkpoints) > 1)


def keeper(item: pytest.Item) -> Any:
    """Return what `Run.measured` is to be during a test."""
    kept = item.stash.setdefault(KEPT, [])

    def keep(found: Measured) -> None:
        from modelprops.measurement import measurement_of

        arguments = getattr(item, "funcargs", {})
        measurement = measurement_of(found, item.nodeid, fixture=arguments.get("subject") is found.subject)
        path = getattr(getattr(item, "callspec", None), "params", {}).get("checkpoint")
        kept.append({**measurement.packed(), "checkpoint": path})

    return keep


class Gates:
    """On the controller: gathers what was measured, saves it, and refuses to pass where nothing was compared."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._packed: list[dict[str, Any]] = []
        self._compared = 0
        self._lines: list[tuple[str, bool]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the measurements that a report carries, and count the comparisons."""
        self._packed += getattr(report, ATTRIBUTE, ())
        for verdict in getattr(report, "modelprops_verdicts", ()):
            self._compared += "baseline" in verdict["estimate"]["details"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Save the baseline of a run that passed; a run that compared or measured nothing has not passed."""
        configuration = self._configuration
        if session.config.option.collectonly or not configuration.enabled:
            return
        if configuration.compare and not self._compared and exitstatus in (0, 5):
            self._refuse(session, f"--modelprops-compare={','.join(configuration.compare)}: nothing was compared; run "
                         "the gate's tests, or assert_not_regressed with the fixture `baseline`")  # fmt: skip
        elif configuration.save is not None and exitstatus == 0 and not self._packed:
            self._refuse(session, f"--modelprops-save={configuration.save}: nothing was measured, nothing is saved")
        elif configuration.save is not None and exitstatus == 0:
            self._save(session, configuration.save)
        elif configuration.save is not None:
            self._lines.append((f"not saved: a baseline is made by a run that passes ({configuration.save})", False))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the series of several checkpoints, what was saved, and what was refused."""
        if len(self._configuration.checkpoints) > 1 and self._packed:
            for line, alarm in self._series():
                terminalreporter.write_line(line, **({"red": True} if alarm else {}))
        for line, good in self._lines:
            terminalreporter.write_line(line, **({} if good else {"red": True}))

    def _refuse(self, session: pytest.Session, text: str) -> None:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        self._lines.append((f"ERROR: {text}", False))

    def _save(self, session: pytest.Session, name: str) -> None:
        from modelprops.baseline import save_baseline

        try:
            path = save_baseline(name, self._measurements(), self._configuration.storage)
        except (ModelpropsError, OSError) as error:
            self._refuse(session, f"--modelprops-save={name}: {error}")
            return
        self._lines.append((f"saved baseline {name}: {_shown(path)}", True))

    def _measurements(self) -> list[Measurement]:
        from modelprops.measurement import Measurement

        return [Measurement.unpacked(row) for row in self._packed]

    def _series(self) -> list[tuple[str, bool]]:
        from modelprops.series import series_of_run

        rows = [(row["checkpoint"], m) for row, m in zip(self._packed, self._measurements(), strict=True)]
        return series_of_run(rows, self._configuration.checkpoints, self._configuration.settings.confidence)


def _check_save(configuration: Configuration) -> None:
    from modelprops.baseline import check_name

    try:
        check_name(str(configuration.save))
    except ModelpropsError as error:
        raise pytest.UsageError(f"--modelprops-save: {error}") from None
    count = len(configuration.checkpoints)
    if count > 1:
        raise pytest.UsageError(
            f"--modelprops-save={configuration.save}: a baseline is of one checkpoint, {count} were given; save each "
            "in a run of its own"
        )


def _rules(configuration: Configuration) -> tuple[Any, ...]:
    from modelprops.rules import parse_rule

    try:
        return tuple(parse_rule(text) for text in configuration.settings.rules)
    except ModelpropsError as error:
        raise pytest.UsageError(f"--modelprops-compare-fail: {error}") from None


def _read(name: str, configuration: Configuration, rules: tuple[Any, ...]) -> Baseline:
    from modelprops.baseline import load_baseline

    try:
        baseline = load_baseline(name, configuration.storage)
    except (ModelpropsError, OSError) as error:
        raise pytest.UsageError(f"--modelprops-compare={name}: {error}") from None
    for rule in rules:
        if not any(rule.speaks_of(m.measure, m.parameters) for m in baseline.measurements if m.scalar):
            has = ", ".join(sorted({str(m) for m in baseline.measurements if m.scalar}))
            raise pytest.UsageError(f"--modelprops-compare-fail={rule}: baseline {baseline.name!r} has no such "
                                    f"measurement; it has: {has or 'none'}")  # fmt: skip
    return baseline


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
