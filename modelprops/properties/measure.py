"""The shape of a property: a function from a subject to a `Plan`, made callable by `@measure`.

A plan says how units are drawn (`Design`) and, where the domain can be enumerated, how the exact value is computed.
Everything else (confidence, budget, seed, exact or sampled, claims, recording) is the same for all and lives here and
in `modelprops.properties.claim`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from typing import Any

import numpy as np

from modelprops.domains import Domain
from modelprops.errors import ArgumentError
from modelprops.estimate import Estimate, Number, Witness
from modelprops.inference.sequential import Box, Decision, Design, Sample, bounds, collect, decide, outcome_of
from modelprops.settings import current, defaults, seed_of
from modelprops.subject import Subject, as_subject

EXACT_FREELY = 2**14
"""Enumerations of at most this many evaluations are always preferred to sampling."""


@dataclass(frozen=True)
class Exact:
    """An enumerated value, the evaluations it cost, and the most extreme units."""

    value: Number
    evaluations: int
    highest: Witness | None = None
    lowest: Witness | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """The claim that a measurement is to decide, so that it can stop as soon as the answer is clear."""

    comparison: str
    threshold: float
    tolerance: float

    def outcome(self, box: Box) -> str:
        """Read the verdict off an interval."""
        return outcome_of(box, self.comparison, self.threshold, self.tolerance)


@dataclass(frozen=True)
class Solved:
    """What a `Plan.solve` returns: an interval that is not the mean of units, and what it rests on.

    `outcome` overrides what the interval says of the claim, where a search has its own rule.
    """

    box: Box
    samples: int
    evaluations: int
    method: str
    guarantee: str
    details: Mapping[str, Any] = field(default_factory=dict)
    highest: Witness | None = None
    lowest: Witness | None = None
    outcome: str | None = None


@dataclass(frozen=True)
class Plan:
    """How to measure one quantity of one subject.

    `design` is None for a quantity that is only ever exact; `exact` is None where enumeration is infeasible. `solve`
    stands in for a design where the quantity is no mean of independent units (an eigenvalue, a quantile, a maximum);
    it is given the options and, for a claim, the goal.
    `details(sample values)` adds what else the units tell. `describe(witness)` says in words what a witness shows.
    `witness(values, high)` finds, for a vector measure, the input that shows its greatest (or least) component;
    `minimise(witness, high)` makes a witness smaller while it stays as extreme. `parameters` are the measure's keyword
    arguments, filled in by `Measure.planned`.
    """

    design: Design | None = None
    exact: Callable[[], Exact] | None = None
    exact_evaluations: int = 0
    solve: Callable[[Options, Goal | None], Solved] | None = None
    details: Callable[[np.ndarray[Any, Any], float], Mapping[str, Any]] | None = None
    guarantee: str | None = None
    witness: Callable[[Number, bool], Witness | None] | None = None
    minimise: Callable[[Witness, bool], Witness] | None = None
    hint: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How much certainty is asked for and what may be spent on it.

    `effort` is what an estimate without a threshold spends: the budget where one was given, else a tenth of it.
    """

    confidence: float
    budget: int
    effort: int
    seed: int
    width: float | None
    exact: bool | str

    @property
    def level(self) -> float:
        """1 - confidence."""
        return 1.0 - self.confidence


class Measure:
    """A measured quantity: call it on a subject for an `Estimate`; `mp.claim` compares it with a threshold.

    Keyword arguments common to all: `domain` (for a bare module), `confidence`, `budget` (model evaluations), `width`
    (stop when the interval is this narrow), `seed`, `exact` (`"auto"`, True or False).
    """

    def __init__(self, plan: Callable[..., Plan], version: int, counts: bool = False) -> None:
        update_wrapper(self, plan)
        self.plan = plan
        self.name: str = plan.__name__
        self.version = version
        self.counts = counts
        self.parameters = _keyword_parameters(plan)
        self.__signature__ = _full_signature(plan)

    def __repr__(self) -> str:
        return f"<measure {self.name}>"

    def __call__(
        self,
        subject: Any,
        *,
        domain: Domain | None = None,
        confidence: float | None = None,
        budget: int | None = None,
        width: float | None = None,
        seed: int | None = None,
        exact: bool | str = "auto",
        **parameters: Any,
    ) -> Estimate:
        options = options_of(self.name, confidence, budget, width, seed, exact)
        start = time.perf_counter()
        target = as_subject(subject, domain)
        return estimate(self, target, self.planned(target, parameters), options, start)

    def planned(self, subject: Subject, parameters: Mapping[str, Any]) -> Plan:
        """Return the plan for `subject`; unknown parameters are an error that lists the known ones."""
        self.refuse_unknown(parameters)
        plan = replace(self.plan(subject, **parameters), parameters=dict(parameters))
        run = current()
        if plan.design is None or run is None or run.progress is None:
            return plan
        return replace(plan, design=replace(plan.design, progress=partial(run.progress, self.name)))

    def refuse_unknown(self, parameters: Mapping[str, Any]) -> None:
        """Raise `ArgumentError` for a parameter that this measure does not have, or that it needs and was not given."""
        unknown = sorted(set(parameters) - set(self.parameters))
        known = ", ".join(self.parameters) or "none"
        if unknown:
            where = _of_subject(unknown)
            raise ArgumentError(f"{self.name} has no parameter {', '.join(unknown)}; it has: {known}{where}")
        missing = [name for name, needed in self.parameters.items() if needed and name not in parameters]
        if missing:
            raise ArgumentError(f"{self.name} needs {', '.join(missing)}=; its parameters are: {known}")


def _of_subject(unknown: list[str]) -> str:
    subject = {"readout", "range", "device", "dtype", "batch_size", "name"} & set(unknown)
    return f"; {', '.join(sorted(subject))} belongs to mp.Subject(module, domain, ...)" if subject else ""


def measure(version: int = 1, *, counts: bool = False) -> Callable[[Callable[..., Plan]], Measure]:
    """Make a public measure of a function from (subject, parameters) to a `Plan`.

    `version` is the version of the definition: stored with every baseline, compared before any comparison. `counts`
    says that the values are whole numbers, whose claims have tolerance 0 unless one is given.
    """

    def decorate(plan: Callable[..., Plan]) -> Measure:
        return Measure(plan, version, counts)

    return decorate


def options_of(
    name: str,
    confidence: float | None,
    budget: int | None,
    width: float | None,
    seed: int | None,
    exact: bool | str,
) -> Options:
    """Fill in the settings in force and refuse nonsense."""
    settings = defaults()
    confidence = settings.confidence if confidence is None else confidence
    effort = max(1, settings.budget // 10) if budget is None else budget
    budget = settings.budget if budget is None else budget
    if not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        raise ArgumentError(f"confidence={confidence!r} is not between 0 and 1; give for example 0.99")
    if not isinstance(budget, int) or budget < 1:
        raise ArgumentError(f"budget={budget!r} is not a positive number of model evaluations")
    if width is not None and not width > 0:
        raise ArgumentError(f"width={width!r} is not positive; give the interval's width in units of the measure")
    if exact not in (True, False, "auto"):
        raise ArgumentError(f'exact={exact!r} is unknown; use "auto", True or False')
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ArgumentError(f"seed={seed!r} is not a whole number")
    return Options(float(confidence), budget, effort, seed_of(name) if seed is None else seed, width, exact)


@dataclass(frozen=True)
class Measured:
    """One measurement with what it takes to repeat it; `sample` (the units) is None for an exact one."""

    measure: Measure
    subject: Subject
    plan: Plan
    estimate: Estimate
    sample: Sample | None


def _kept(measured: Measured) -> Estimate:
    run = current()
    if run is not None and run.measured is not None:
        run.measured(measured)
    return measured.estimate


def use_exact(plan: Plan, options: Options, name: str, *, wanted: float | None = None) -> bool:
    """Decide between enumeration and sampling, by cost unless asked.

    Enumeration is chosen where it costs at most as many evaluations as sampling to an interval of half-width
    `wanted` in the worst case (a spread of a quarter of the range), or so few that it does not matter.
    """
    if (plan.design is None and plan.solve is None) or options.exact is True:
        if plan.exact is None:
            raise ArgumentError(f"{name} cannot be computed exactly on this domain; leave out exact=True to sample")
        return True
    if plan.exact is None or options.exact is False or plan.exact_evaluations > options.budget:
        return False
    if plan.exact_evaluations <= EXACT_FREELY:
        return True
    if plan.design is None or wanted is None or wanted <= 0 or len(plan.design.ranges) > 1 or not plan.design.bounded:
        return False
    low, high = plan.design.ranges[0]
    units = 2 * np.log(2 / options.level) * ((high - low) / 4 / wanted) ** 2
    return bool(plan.exact_evaluations <= units * plan.design.evaluations_per_unit)


def estimate(name: Measure, subject: Subject, plan: Plan, options: Options, start: float) -> Estimate:
    """Measure exactly, or sample to the asked width (without one: 10% of the value) or the effort."""
    if use_exact(plan, options, name.name, wanted=options.width and options.width / 2):
        return _kept(Measured(name, subject, plan, exact_estimate(name, plan, options, start)[0], None))
    if plan.solve is not None:
        with subject.steady():
            return solved_estimate(name, plan.solve(options, None), options, start)
    assert plan.design is not None
    budget = options.budget if options.width is not None else options.effort
    with subject.steady():
        sample, box = collect(plan.design, width=options.width, level=options.level, budget=budget, seed=options.seed)
    value = sampled_estimate(name, plan, options, Decision("measured", sample, None), box, "fixed", start)
    return _kept(Measured(name, subject, plan, value, sample))


def exact_estimate(name: Measure, plan: Plan, options: Options, start: float) -> tuple[Estimate, Exact]:
    """Enumerate the domain."""
    assert plan.exact is not None
    exact = plan.exact()
    return (
        Estimate(
            measure=name.name,
            value=exact.value,
            low=exact.value,
            high=exact.value,
            confidence=options.confidence,
            samples=exact.evaluations,
            evaluations=exact.evaluations,
            method="exact",
            seed=options.seed,
            seconds=time.perf_counter() - start,
            guarantee="exact",
            details=dict(exact.details),
        ),
        exact,
    )


def solved_estimate(name: Measure, solved: Solved, options: Options, start: float) -> Estimate:
    """Turn what a plan solved for into an `Estimate`."""
    return Estimate(
        measure=name.name,
        value=solved.box.value,
        low=solved.box.low,
        high=solved.box.high,
        confidence=options.confidence,
        samples=solved.samples,
        evaluations=solved.evaluations,
        method=solved.method,
        seed=options.seed,
        seconds=time.perf_counter() - start,
        guarantee=solved.guarantee,
        details=dict(solved.details),
    )


def sampled_estimate(
    name: Measure, plan: Plan, options: Options, decision: Decision, box: Box, method: str, start: float
) -> Estimate:
    """Turn a sample and its interval into an `Estimate`."""
    assert plan.design is not None
    sample = decision.sample
    details: dict[str, Any] = {}
    if sample.tie_share:
        details["tie_share"] = sample.tie_share
    if plan.details is not None:
        details |= plan.details(sample.values, options.level)
    return Estimate(
        measure=name.name,
        value=box.value,
        low=box.low,
        high=box.high,
        confidence=options.confidence,
        samples=sample.units,
        evaluations=sample.evaluations,
        method=method,
        seed=options.seed,
        seconds=time.perf_counter() - start,
        guarantee=plan.guarantee or ("confidence bound" if plan.design.bounded else "asymptotic"),
        details=details,
    )


def decided(
    name: Measure,
    subject: Subject,
    plan: Plan,
    options: Options,
    comparison: str,
    threshold: float,
    tolerance: float,
    start: float,
) -> tuple[str, Estimate, Witness | None, float | None]:
    """Decide a claim: return outcome, estimate, the most extreme witness on the wrong side, and the log e-value."""
    wrong_side_high = comparison == "<="
    if use_exact(plan, options, name.name, wanted=tolerance):
        value, exact = exact_estimate(name, plan, options, start)
        _kept(Measured(name, subject, plan, value, None))
        outcome = outcome_of(Box(exact.value, exact.value, exact.value), comparison, threshold, tolerance)
        return outcome, value, exact.highest if wrong_side_high else exact.lowest, None
    if plan.solve is not None:
        goal = Goal(comparison, threshold, tolerance)
        with subject.steady():
            solved = plan.solve(options, goal)
        outcome = solved.outcome or goal.outcome(solved.box)
        value = solved_estimate(name, solved, options, start)
        return outcome, value, solved.highest if wrong_side_high else solved.lowest, None
    assert plan.design is not None
    with subject.steady():
        decision = decide(
            plan.design,
            comparison=comparison,
            threshold=threshold,
            tolerance=tolerance,
            level=options.level,
            budget=options.budget,
            seed=options.seed,
        )
    box = bounds(plan.design, decision.sample, options.level)
    value = sampled_estimate(name, plan, options, decision, box, "sequential", start)
    _kept(Measured(name, subject, plan, value, decision.sample))
    witness = decision.sample.highest if wrong_side_high else decision.sample.lowest
    return decision.outcome, value, witness, decision.log_e


def _keyword_parameters(plan: Callable[..., Plan]) -> dict[str, bool]:
    """Parameter name -> whether it must be given."""
    parameters = list(inspect.signature(plan).parameters.values())[1:]
    return {parameter.name: parameter.default is inspect.Parameter.empty for parameter in parameters}


def _full_signature(plan: Callable[..., Plan]) -> inspect.Signature:
    own = list(inspect.signature(plan).parameters.values())
    common = [
        parameter
        for parameter in list(inspect.signature(Measure.__call__).parameters.values())[2:]
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return inspect.Signature([own[0], *own[1:], *common], return_annotation="Estimate")
