"""Pytest modules that ship with the package: on the user's model (subject suites) or on theory models (reference)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Suite(NamedTuple):
    """A suite's name, its modules (paths below this package) and what it is, in a line."""

    name: str
    modules: tuple[str, ...]
    summary: str

    def paths(self) -> tuple[Path, ...]:
        """The files to collect."""
        return tuple(Path(__file__).parent / module for module in self.modules)


SUITES = (
    Suite("default", ("default.py",), "the configured claims; measures sensitivity, stability and sharpness otherwise"),
    Suite("language-model", ("language_model.py",), "sensitivity and stability of a language model over its tokens"),
    Suite(
        "hahn-rofin",
        ("hahn_rofin/suite_theory.py", "hahn_rofin/suite_training.py"),
        "reference: sensitive functions are hard for Transformers (theory models, five experiments)",
    ),
    Suite(
        "noise-stability", ("noise_stability/suite.py",), "reference: noise stability of Transformers, the regulariser"
    ),
)

GATES = Suite("gates", ("gates.py",), "the measurements of a baseline, one test for each and each rule")
CLAIMS = Suite("claims", ("claims.py",), "the configured claims, one test each")


def named(name: str) -> Suite | None:
    """Return the suite called `name`, or None."""
    return next((suite for suite in SUITES if suite.name == name), None)
