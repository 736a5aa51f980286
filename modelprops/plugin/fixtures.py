"""The fixtures `subject`, `checkpoint`, `baseline` and `modelprops`; a project overrides `subject` in conftest.py."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from modelprops.errors import ArgumentError, ModelpropsError
from modelprops.plugin.collection import CONFIGURATION
from modelprops.plugin.gates import BASELINES
from modelprops.plugin.options import DEMO, value_of
from modelprops.settings import Run, current


@pytest.fixture(scope="session")
def checkpoint(request: pytest.FixtureRequest) -> str | None:
    """The path of the checkpoint under test (`--modelprops-checkpoint`), or None."""
    path: str | None = getattr(request, "param", None)
    return path


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, checkpoint: str | None) -> Any:
    """The model under test as a `modelprops.Subject`, from the options."""
    import modelprops

    config = request.config
    configuration = config.stash[CONFIGURATION]
    model = configuration.model
    if model is None and checkpoint is None:
        if not _only_suites(request.session):
            raise ArgumentError(
                "no model is configured: give --modelprops-model (or modelprops_model in the ini file), or override "
                "the fixture `subject` in conftest.py"
            )
        model = DEMO
    options = {name: value_of(config, name) for name in ("domain", "readout", "device", "dtype")}
    given = {name: value for name, value in options.items() if value is not None}
    if model is None:
        return modelprops.load(checkpoint, **given)
    return modelprops.load(model, checkpoint=checkpoint, **given)


@pytest.fixture(scope="session")
def baseline(request: pytest.FixtureRequest) -> Any:
    """The baseline of `--modelprops-compare`, for `mp.assert_not_regressed(subject, baseline)`."""
    given = getattr(request, "param", None)
    baselines = request.config.stash[BASELINES]
    if given is None and not baselines:
        pytest.skip("no baseline: compare with one by --modelprops-compare")
    return baselines[0] if given is None else given


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Evaluate a `subject` once when it is set up, so that no Hypothesis deadline meets a cold start."""
    value = yield
    module = sys.modules.get("modelprops.subject")
    if fixturedef.argname == "subject" and module is not None and isinstance(value, module.Subject):
        if "hypothesis" in sys.modules:
            # The assertions load on first use, which takes longer than an example may.
            import modelprops.metamorphic
            import modelprops.properties.everywhere  # noqa: F401
        # What is wrong with the model is said by the test that measures it.
        with suppress(ModelpropsError):
            value.probe()
    return value


@pytest.fixture
def modelprops() -> Run:
    """The settings in force for this test and the verdicts reached so far."""
    run = current()
    assert run is not None, "the plugin puts a run in force around every test"
    return run


def _only_suites(session: pytest.Session) -> bool:
    return all(item.nodeid.startswith("modelprops/suites/") for item in session.items)
