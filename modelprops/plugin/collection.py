"""Which tests are property tests, which built-in suites are collected, and what they are parametrised with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelprops.claimtext import parse_claim
from modelprops.errors import ModelpropsError
from modelprops.plugin.gates import BASELINES, gates_of
from modelprops.plugin.options import DEMO, Configuration, value_of
from modelprops.suites import CLAIMS, GATES, SUITES, Suite, named

FIXTURES = ("subject", "checkpoint", "baseline", "modelprops")
CONFIGURATION = pytest.StashKey[Configuration]()
SUITE_OF = pytest.StashKey[str]()
REASON = "property test: run with --modelprops"


def check_suites(configuration: Configuration) -> None:
    """Refuse an unknown suite and claims that do not parse, before anything is collected."""
    for name in configuration.suites:
        if name != "list" and named(name) is None:
            known = ", ".join(suite.name for suite in SUITES)
            raise pytest.UsageError(f"--modelprops-suite={name}: unknown; use {known} (or 'list')")
    if not configuration.enabled:
        return
    for text in configuration.claims:
        try:
            _built(text)
        except ModelpropsError as error:
            raise pytest.UsageError(f"--modelprops-claim: {error}") from None


def check_subject_options(config: pytest.Config) -> None:
    """Refuse a domain, readout, device or dtype that does not parse; torch is imported only where one is given."""
    given = {name: text for name in ("domain", "readout", "device", "dtype") if (text := value_of(config, name))}
    if not given:
        return
    from modelprops.placement import device_of, dtype_of
    from modelprops.specs import parse_domain, parse_readout

    parsers: dict[str, Callable[[str], Any]] = {
        "domain": parse_domain,
        "readout": parse_readout,
        "device": device_of,
        "dtype": dtype_of,
    }
    for name, text in given.items():
        try:
            parsers[name](text)
        except ModelpropsError as error:
            raise pytest.UsageError(f"--modelprops-{name}={text}: {error}") from None


def _built(text: str) -> Any:
    import modelprops

    return modelprops.claim(text)


def list_suites() -> str:
    """Return the table that `--modelprops-suite list` prints."""
    width = max(len(suite.name) for suite in SUITES)
    return "\n".join(f"{suite.name.ljust(width)}  {suite.summary}" for suite in SUITES)


def claims_of(configuration: Configuration, *, fallback: bool, own: bool) -> tuple[str, ...]:
    """Return the claims to assert: given ones, else the card of the demo model, unless an `own` subject is tested."""
    if configuration.claims or own:
        return configuration.claims
    model = configuration.model or (DEMO if fallback else "")
    if model.startswith("demo:"):
        from modelprops.demo import card_claims

        claims: tuple[str, ...] = card_claims()
        return claims
    return ()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """A suite asked for by name runs alone, unless paths are given too."""
    configuration = session.config.stash[CONFIGURATION]
    if configuration.enabled and configuration.suites and not session.config.option.file_or_dir:
        session.config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark property tests, add the built-in suites, and skip property tests unless `--modelprops` is given."""
    configuration = config.stash[CONFIGURATION]
    for item in items:
        if item.get_closest_marker("modelprops") is None and uses_fixture(item):
            item.add_marker(pytest.mark.modelprops)
    if not configuration.enabled:
        for item in items:
            if item.get_closest_marker("modelprops") is not None:
                item.add_marker(pytest.mark.skip(reason=REASON))
        return
    gates = [GATES] if gates_of(config, configuration) else []
    for suite in [*chosen_suites(session, configuration, found=bool(items)), *gates]:
        for path in suite.paths():
            items.extend(suite_items(session, suite, path))


def chosen_suites(session: pytest.Session, configuration: Configuration, *, found: bool) -> list[Suite]:
    """Return the suites to collect: asked for, or the default where nothing was asked for and no test was found."""
    paths = bool(session.config.option.file_or_dir)
    names = list(configuration.suites)
    idle = not found and (configuration.save is not None or not configuration.compare)
    if not names and not configuration.claims and idle and not paths and not session.testsfailed:
        names = ["default"]
    suites = [suite for suite in map(named, names) if suite is not None]
    subject_suite = any(suite.name in ("default", "language-model") for suite in suites)
    claims = claims_of(configuration, fallback=subject_suite, own=overridden(session))
    if "default" in names and not unclaimed(claims):
        suites = [suite for suite in suites if suite.name != "default"]
    wanted = subject_suite or configuration.claims_from_command_line or not paths
    return [CLAIMS, *suites] if claims and wanted and (subject_suite or configuration.claims) else suites


def overridden(session: pytest.Session) -> bool:
    """Whether a project's own `subject` is what the built-in suites test: the demo's card says nothing about it."""
    definitions = session._fixturemanager.getfixturedefs("subject", session) or ()
    return any(not definition.func.__module__.startswith("modelprops.") for definition in definitions)


def unclaimed(claims: tuple[str, ...]) -> tuple[str, ...]:
    """Return the default measures that no claim speaks of."""
    from modelprops.suites.default import MEASURES

    spoken = {parse_claim(text).measure for text in claims}
    return tuple(text for text in MEASURES if parse_claim(text).measure not in spoken)


def suite_items(session: pytest.Session, suite: Suite, path: Path) -> Iterator[pytest.Item]:
    """Collect one module of a suite under a node id that is the same on every machine."""
    nodeid = "modelprops/suites/" + path.relative_to(Path(__file__).parent.parent / "suites").as_posix()
    module = pytest.Module.from_parent(session, path=path, nodeid=nodeid)
    for item in session.genitems(module):
        item.add_marker(pytest.mark.modelprops)
        item.stash[SUITE_OF] = suite.name
        yield item


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each claim, unclaimed measure and checkpoint."""
    configuration = metafunc.config.stash[CONFIGURATION]
    claims = claims_of(configuration, fallback=True, own=overridden(metafunc.definition.session))
    if "modelprops_claim" in metafunc.fixturenames:
        metafunc.parametrize("modelprops_claim", claims, ids=claims)
    if "modelprops_measure" in metafunc.fixturenames:
        texts = unclaimed(claims)
        metafunc.parametrize("modelprops_measure", texts, ids=texts)
    if "modelprops_gate" in metafunc.fixturenames:
        comparisons = gates_of(metafunc.config, configuration)
        metafunc.parametrize("modelprops_gate", comparisons, ids=[str(comparison) for comparison in comparisons])
    baselines = metafunc.config.stash[BASELINES]
    if "baseline" in metafunc.fixturenames and len(baselines) > 1:
        metafunc.parametrize("baseline", baselines, ids=[baseline.name for baseline in baselines], indirect=True)
    if "checkpoint" in metafunc.fixturenames and configuration.checkpoints:
        metafunc.parametrize(
            "checkpoint",
            configuration.checkpoints,
            ids=list(short_names(configuration.checkpoints).values()),
            indirect=True,
        )


def uses_fixture(item: pytest.Item) -> bool:
    """Whether a test uses a fixture of this plugin, or an override of one in code that uses modelprops.

    A project may have a fixture named `subject` of its own that has nothing to do with models.
    """
    info = getattr(item, "_fixtureinfo", None)
    for name in FIXTURES:
        for definition in (info.name2fixturedefs.get(name, ()) if info else ())[-1:]:
            function = definition.func
            module = getattr(function, "__module__", "") or ""
            if module.startswith("modelprops.") or _speaks_of_modelprops(function):
                return True
    return False


def _speaks_of_modelprops(function: Any) -> bool:
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    values = getattr(function, "__globals__", {}).values()
    return any(name.startswith("modelprops") for name in names) or any(
        str(getattr(value, "__name__", "") or "").startswith("modelprops")
        or str(getattr(value, "__module__", "") or "").startswith("modelprops")
        for value in list(values)
    )


def short_names(paths: tuple[str, ...]) -> dict[str, str]:
    """Path -> the id it has in a test's name: the file's name where that is enough."""
    names = [Path(path).name for path in paths]
    return dict(zip(paths, names if len(set(names)) == len(names) else paths, strict=True))
