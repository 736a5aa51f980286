"""Fixtures of the suite's tests, and what they make of findings: a test fails where one contradicts its claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from modelprops.suites.findings import NOT, OUT, Finding
from modelprops.suites.hahn_rofin import experiments
from modelprops.suites.hahn_rofin.presets import Preset, preset_in_force


@pytest.fixture
def preset() -> Preset:
    """The sizes asked for."""
    return preset_in_force()


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where runs are kept: pytest's cache, or a temporary folder where that is switched off."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    return tmp_path if cache is None else cache.mkdir("modelprops-runs")


def check(name: str, sizes: Preset, cache: Path) -> None:
    """Run an experiment and require its claims."""
    __tracebackhide__ = True
    require(experiments.MODULES[name].findings(experiments.run(name, sizes, cache)))


def require(findings: Sequence[Finding]) -> None:
    """Fail with the evidence of every claim that was not reproduced; skip if all are out of reach at this preset.

    Where only claims are contradicted that the package's own report contradicts too, the test is an expected failure.
    """
    __tracebackhide__ = True
    failed = [row for row in findings if row.status == NOT]
    reason = "\n".join(f"not reproduced: {row.claim} ({row.source})\n  {row.evidence}" for row in failed)
    if not all(row.doubtful for row in failed):
        pytest.fail(reason, False)
    if failed:
        pytest.xfail(reason)
    if all(row.status == OUT for row in findings):
        pytest.skip("out of reach at this preset: " + "; ".join(row.claim for row in findings))
