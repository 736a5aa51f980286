"""At the end of a run: the table on the terminal, results.json and summary.md in the report directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelprops.plugin.options import Configuration
from modelprops.plugin.recording import Recorder


class Reporting:
    """Hands the recorded verdicts to the renderers; knows no layout itself."""

    def __init__(self, configuration: Configuration, recorder: Recorder) -> None:
        self._configuration = configuration
        self._recorder = recorder
        self._written: Path | None = None
        self._unwritten = ""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results, if any verdict was reached with `--modelprops` on."""
        if not self._configuration.enabled or not self._recorder.rows:
            return
        from modelprops.report.record import document, write

        data = document(self._recorder.rows, self._configuration.settings, int(exitstatus))
        directory = session.config.invocation_params.dir / self._configuration.report
        try:
            self._written = write(data, directory)
        except OSError as error:
            self._unwritten = f"--modelprops-report={self._configuration.report}: nothing written, {error}"
            # Not a failed property, and no success either: whoever waits for the files must hear of it.
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        rows = self._recorder.rows
        if not self._configuration.enabled or not rows:
            return
        from modelprops.report.terminal import family_line, table

        terminalreporter.section("modelprops")
        for line, color in table(rows, terminalreporter._tw.fullwidth):
            terminalreporter.write_line(line, **({color: True} if color else {}))
        if line := family_line(rows, self._configuration.settings.confidence):
            terminalreporter.write_line(line)
        if self._written is not None:
            terminalreporter.write_line(f"written: {self._written}/results.json, summary.md")
        if self._unwritten:
            terminalreporter.write_line(self._unwritten, red=True)
