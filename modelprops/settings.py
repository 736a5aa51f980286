"""The settings in force and the recorder of verdicts: how an assertion knows that it runs inside a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelprops.seeds import derive

if TYPE_CHECKING:
    from modelprops.estimate import Verdict
    from modelprops.properties.measure import Measured


@dataclass(frozen=True)
class Settings:
    """Defaults of every measure and claim; a keyword argument of the call wins.

    `confidence`: 1 - the probability of a wrong verdict. `budget`: model evaluations (forward passes of one input)
    that one measure may spend. `seed`: the root of the seed tree. `preset`: how large the suites' experiments are.
    `rules`: how much worse than a baseline a checkpoint may be, where `assert_not_regressed` is given none.
    """

    confidence: float = 0.99
    budget: int = 1_000_000
    seed: int = 0
    preset: str = "quick"
    rules: tuple[str, ...] = ()


@dataclass
class Run:
    """One test: its settings, where it stands in the seed tree, and the verdicts reached in it."""

    settings: Settings = field(default_factory=Settings)
    node: str = ""
    reproduce: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    progress: Callable[[str, int, int], None] | None = None
    """Called with (measure, evaluations spent, budget) after every chunk."""
    measured: Callable[[Measured], None] | None = None
    """Called with every measurement and its units; a baseline is made of them."""

    def seed_of(self, measure: str) -> int:
        """Return the seed of a measure in this test: the same under any order, split or platform."""
        return derive(self.settings.seed, self.node, measure)

    def record(self, verdict: Verdict) -> None:
        """Keep a verdict for the report."""
        self.verdicts.append(verdict)


_OUTSIDE = Run()
_current: ContextVar[Run | None] = ContextVar("modelprops_run", default=None)


def current() -> Run | None:
    """Return the run in force, or None outside a test."""
    return _current.get()


def defaults() -> Settings:
    """Return the settings in force."""
    return (_current.get() or _OUTSIDE).settings


def seed_of(measure: str) -> int:
    """Return the seed of a measure where none was given."""
    return (_current.get() or _OUTSIDE).seed_of(measure)


@contextmanager
def running(run: Run) -> Iterator[Run]:
    """Put `run` in force for the duration of a test."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)
