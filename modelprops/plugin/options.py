"""One table of options, from which the command line, the ini keys and the docs are derived.

`--modelprops-NAME` on the command line wins over `modelprops_NAME` in the ini file.
"""

from __future__ import annotations

import glob
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from modelprops.seeds import derive
from modelprops.settings import Settings

PRESETS = ("quick", "standard", "full")
DEMO = "demo:majority"


class Option(NamedTuple):
    """`--modelprops-<name>` and its ini key; `many` options may be repeated (one a line in the ini file)."""

    name: str
    metavar: str
    help: str
    many: bool = False
    choices: tuple[str, ...] = ()
    optional_value: str | None = None

    @property
    def ini(self) -> str:
        """The ini key."""
        return "modelprops_claims" if self.name == "claim" else "modelprops_" + self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        """The command line flag."""
        return f"--modelprops-{self.name}"


OPTIONS = (
    Option("model", "SPEC", "pkg.module:factory, a Hugging Face directory, a GGUF or .pt2 file, or demo:majority"),
    Option("checkpoint", "PATH", "weights (repeatable, globs allowed): tests run once for each", many=True),
    Option("suite", "NAME", "run a built-in suite (repeatable); 'list' prints them", many=True),
    Option("claim", "TEXT", 'a claim without code, such as "average_sensitivity <= 2" (repeatable)', many=True),
    Option("domain", "TEXT", "the inputs, such as BooleanCube(12) or Tokens(50257, 64)"),
    Option("readout", "NAME", "what is read off the output, such as sign, probability or label"),
    Option("confidence", "P", "1 - the probability of a wrong verdict (default 0.99)"),
    Option("budget", "N", "model evaluations that one claim may spend (default 1000000)"),
    Option("seed", "N", "root of all randomness (default 0)"),
    Option("device", "NAME", "run a copy of the model there, such as cuda"),
    Option("dtype", "NAME", "run a copy of the model in it, such as float32"),
    Option("inconclusive", "WHAT", "what an undecided claim does (default fail)", choices=("fail", "skip", "warn")),
    Option("preset", "NAME", "how large the suites' experiments are (default quick)", choices=PRESETS),
    Option("save", "NAME", "store what is measured as a baseline, if every test passes"),
    Option(
        "compare",
        "NAME",
        "fail where the model is worse than this baseline (repeatable; default: the last saved)",
        many=True,
        optional_value="last",
    ),
    Option(
        "compare-fail",
        "RULE",
        "how much worse it may be, such as sensitivity:mean+5%%, stability@0.9:-0.02 or sharpness:x1.5 (repeatable)",
        many=True,
    ),
    Option("storage", "DIR", "where baselines are kept (default .modelprops)"),
    Option("report", "DIR", "where results.json and summary.md are written (default reports)"),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    group = parser.getgroup("modelprops", "properties of trained torch models")
    group.addoption("--modelprops", action="store_true", default=False, help="turn property tests on")
    parser.addini("modelprops", "turn property tests on", type="bool", default=False)
    for option in OPTIONS:
        keywords: dict[str, Any] = {"action": "append"} if option.many else {}
        if option.optional_value is not None:
            keywords |= {"nargs": "?", "const": option.optional_value}
        values = f" [{' | '.join(option.choices)}]" if option.choices else ""
        group.addoption(
            option.flag, metavar=option.metavar, default=None, dest=option.ini, help=option.help + values, **keywords
        )
        if option.many:
            parser.addini(option.ini, option.help, type="linelist", default=None)
        else:
            parser.addini(option.ini, option.help, type="string", default=None)


class Configuration(NamedTuple):
    """The options in force, checked."""

    enabled: bool
    given: dict[str, Any]
    settings: Settings
    model: str | None
    checkpoints: tuple[str, ...]
    suites: tuple[str, ...]
    claims: tuple[str, ...]
    claims_from_command_line: bool
    inconclusive: str
    report: str
    save: str | None
    compare: tuple[str, ...]
    storage: Path

    @property
    def line(self) -> str:
        """The given command-line options, as they would be typed again."""
        return " ".join(["--modelprops", *(f"{flag}={_quoted(str(value))}" for flag, value in self.given.items())])


def configuration(config: pytest.Config) -> Configuration:
    """Read and check every option; a wrong one is a `UsageError` that names it and the valid values."""
    values = {option.name: _value(config, option) for option in OPTIONS}
    for option in OPTIONS:
        if option.choices and values[option.name] is not None and values[option.name] not in option.choices:
            _refuse(option.name, values[option.name], f"use {', '.join(option.choices)}")
    defaults = Settings()
    confidence = _number(values, "confidence", defaults.confidence, float)
    if not 0 < confidence < 1:
        _refuse("confidence", values["confidence"], "give a number between 0 and 1, such as 0.99")
    budget = _number(values, "budget", defaults.budget, int)
    if budget < 1:
        _refuse("budget", values["budget"], "give a positive number of model evaluations")
    hypothesis_seed = getattr(config.option, "hypothesis_seed", None)
    settings = Settings(
        confidence=confidence,
        budget=budget,
        seed=_number(values, "seed", _root(hypothesis_seed, defaults.seed), int),
        preset=values["preset"] or "quick",
        rules=tuple(values["compare-fail"] or ()),
    )
    given = {
        option.flag: getattr(config.option, option.ini)
        for option in OPTIONS
        if option.name in ("model", "domain", "readout", "confidence", "budget", "device", "dtype", "preset", "storage")
        and getattr(config.option, option.ini, None) is not None
    }
    if hypothesis_seed is not None:
        given["--hypothesis-seed"] = hypothesis_seed
    return Configuration(
        enabled=bool(config.option.modelprops or config.getini("modelprops")),
        given=given,
        settings=settings,
        model=values["model"],
        checkpoints=_checkpoints(values["checkpoint"] or ()),
        suites=tuple(values["suite"] or ()),
        claims=tuple(values["claim"] or ()),
        claims_from_command_line=bool(config.option.modelprops_claims),
        inconclusive=values["inconclusive"] or "fail",
        report=values["report"] or "reports",
        save=values["save"],
        compare=tuple(dict.fromkeys(values["compare"] or ())),
        storage=config.invocation_params.dir / (values["storage"] or ".modelprops"),
    )


def value_of(config: pytest.Config, name: str) -> Any:
    """Return one option's value from the command line or the ini file, None if neither has it."""
    return _value(config, next(option for option in OPTIONS if option.name == name))


def _value(config: pytest.Config, option: Option) -> Any:
    typed = getattr(config.option, option.ini, None)
    if typed:
        return typed
    return config.getini(option.ini) or None


def _number(values: dict[str, Any], name: str, default: Any, kind: type) -> Any:
    text = values[name]
    if text is None:
        return default
    try:
        number = float(text.replace("_", "")) if kind is float or "e" in text.lower() else int(text.replace("_", ""))
    except ValueError:
        _refuse(name, text, "give a number")
    if not math.isfinite(number) or (kind is int and number != int(number)):
        _refuse(name, text, "give a whole number" if kind is int else "give a finite number")
    return kind(number)


def _root(hypothesis_seed: Any, default: int) -> int:
    """The seed root where `--modelprops-seed` is not given: Hypothesis's, so that one option repeats a whole run."""
    if hypothesis_seed is None:
        return default
    try:
        return int(hypothesis_seed)
    except ValueError:
        return derive(default, "hypothesis", str(hypothesis_seed))


def _checkpoints(patterns: Any) -> tuple[str, ...]:
    paths: list[str] = []
    for pattern in patterns:
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not found:
            _refuse("checkpoint", pattern, "no such file or directory")
        paths += [path for path in found if path not in paths]
    return tuple(paths)


def _refuse(name: str, value: object, remedy: str) -> Any:
    raise pytest.UsageError(f"--modelprops-{name}={value}: {remedy}")


def _quoted(text: str) -> str:
    return text if text.replace("_", "").replace(":", "").replace(".", "").isalnum() else quoted(text)


def quoted(text: str) -> str:
    """Quote for a shell, always: a claim may hold quotes of its own."""
    return "'" + text.replace("'", "'\\''") + "'"
