"""One engine for every claim: measure, comparison, threshold -> verdict.

`claim(average_sensitivity, "<=", 2.0)` or `claim("average_sensitivity <= 2")` builds a claim; `.check(subject)` returns
the verdict and `.require(subject)` raises unless it holds. The named assertions are thin calls of `require`.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modelprops.claimtext import parse_claim
from modelprops.domains import Domain
from modelprops.errors import ArgumentError, Inconclusive, PropertyViolation
from modelprops.estimate import Estimate, Verdict, Witness
from modelprops.properties.measure import Measure, Plan, decided, estimate, options_of
from modelprops.settings import current
from modelprops.subject import as_subject

RELATIVE_TOLERANCE = 0.05


@dataclass(frozen=True)
class Claim:
    """A measure with its parameters, a comparison (`<=` or `>=`) and a threshold; without one it only measures.

    `tolerance` (in units of the measure; default 5% of the threshold): a pass certifies measure < threshold +
    tolerance and a fail certifies measure > threshold - tolerance (mirrored for `>=`), each wrong with probability at
    most (1 - confidence)/2. With `tolerance=0` a truth on the threshold ends as inconclusive.
    """

    measure: Measure
    comparison: str | None = None
    threshold: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = None

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        call = f"{self.measure.name}({shown})" if shown else self.measure.name
        return call if self.threshold is None else f"{call} {self.comparison} {self.threshold:.10g}"

    @property
    def slack(self) -> float:
        """The tolerance in force."""
        if self.tolerance is not None:
            return self.tolerance
        return 0.0 if self.threshold is None or self.measure.counts else RELATIVE_TOLERANCE * abs(self.threshold)

    def check(
        self,
        subject: Any,
        *,
        domain: Domain | None = None,
        confidence: float | None = None,
        budget: int | None = None,
        width: float | None = None,
        seed: int | None = None,
        exact: bool | str = "auto",
    ) -> Verdict:
        """Decide the claim on a subject, record the verdict if a test runs, and return it whatever it is."""
        verdict = self.decide(
            subject, domain=domain, confidence=confidence, budget=budget, width=width, seed=seed, exact=exact
        )
        return recorded(verdict)

    def decide(
        self,
        subject: Any,
        *,
        domain: Domain | None = None,
        confidence: float | None = None,
        budget: int | None = None,
        width: float | None = None,
        seed: int | None = None,
        exact: bool | str = "auto",
    ) -> Verdict:
        """Decide the claim as one part of a larger one: as `check`, without recording."""
        options = options_of(self.measure.name, confidence, budget, width, seed, exact)
        start = time.perf_counter()
        target = as_subject(subject, domain)
        plan = self.measure.planned(target, self.parameters)
        if self.threshold is None or self.comparison is None:
            value = estimate(self.measure, target, plan, options, start)
            verdict = Verdict("measured", str(self), value, subject=target.name)
        else:
            outcome, value, witness, log_e = decided(
                self.measure, target, plan, options, self.comparison, self.threshold, self.slack, start
            )
            if plan.witness is not None and outcome != "pass":
                witness = plan.witness(value.value, self.comparison == "<=")
            if witness is not None and plan.minimise is not None and outcome != "pass":
                witness = plan.minimise(witness, self.comparison == "<=")
            verdict = Verdict(
                outcome,
                str(self),
                value,
                self.threshold,
                self.comparison,
                self.slack,
                witness,
                self._reproduce(value),
                target.name,
                self._hint(plan, value, outcome),
                log_e,
            )
        return verdict

    def require(self, subject: Any, **options: Any) -> Verdict:
        """Return the verdict of a claim that holds; raise `PropertyViolation` or `Inconclusive` otherwise."""
        __tracebackhide__ = True
        refuse_unknown_options(options)
        return required(self.check(subject, **options))

    def _reproduce(self, value: Estimate) -> str:
        run = current()
        if run is not None and run.reproduce:
            return run.reproduce
        tolerance = "" if self.tolerance is None else f", tolerance={self.tolerance!r}"
        return f'mp.claim("{self}"{tolerance}).check(subject, confidence={value.confidence!r}, seed={value.seed})'

    def _hint(self, plan: Plan, value: Estimate, outcome: str) -> str:
        if outcome == "inconclusive":
            return (
                f"the truth is too near {self.threshold:.4g} for {value.evaluations:,} evaluations; raise budget=, or "
                "state a larger tolerance="
            )
        return plan.hint


def claim(
    measure: Measure | str,
    comparison: str | None = None,
    threshold: float | None = None,
    *,
    tolerance: float | None = None,
    **parameters: Any,
) -> Claim:
    """Build a claim from a measure, `"<="` or `">="` and a threshold, or from text (see `modelprops.claimtext`).

    Raises `ArgumentError` for an unknown measure, parameter or comparison, a threshold that is not finite, or a
    negative tolerance. The assertions of quantities that cannot be negative also refuse a negative threshold.
    """
    if isinstance(measure, str):
        if comparison is not None or threshold is not None or parameters:
            raise ArgumentError("claim text is complete by itself; leave out comparison, threshold and parameters")
        text = parse_claim(measure)
        measure, comparison, threshold, parameters = named_measure(text.measure), *text.rest()
    if not isinstance(measure, Measure):
        raise ArgumentError(f"{measure!r} is not a measure; give one such as mp.average_sensitivity, or claim text")
    measure.refuse_unknown(parameters)
    if (comparison is None) != (threshold is None):
        raise ArgumentError("a claim has both a comparison and a threshold, or neither (then it only measures)")
    if comparison not in (None, "<=", ">="):
        raise ArgumentError(f'comparison={comparison!r} is unknown; use "<=" or ">="')
    if threshold is not None:
        _require_number("threshold", threshold)
    if tolerance is not None:
        _require_number("tolerance", tolerance, least=0.0)
    return Claim(measure, comparison, None if threshold is None else float(threshold), parameters, tolerance)


def refuse_unknown_options(options: Mapping[str, Any]) -> None:
    """Refuse an option that no claim has, and say where the options of a subject go."""
    known = [name for name in inspect.signature(Claim.check).parameters if name not in ("self", "subject")]
    if unknown := sorted(set(options) - set(known)):
        raise ArgumentError(
            f"{', '.join(unknown)} is no option of a claim, which are {', '.join(known)}; "
            "a readout and other parts of the subject go to mp.Subject(module, domain, ...)"
        )


def named_measure(name: str) -> Measure:
    """Return the public measure called `name`; an unknown one is an error that lists the known."""
    import modelprops

    names = modelprops._PUBLIC
    found = getattr(modelprops, name) if name in names else None
    if isinstance(found, Measure):
        return found
    known = [key for key in names if names[key].startswith("properties.") and not key.startswith("assert")]
    measures = [key for key in known if isinstance(getattr(modelprops, key), Measure)]
    raise ArgumentError(f"{name!r} is not a measure; the measures are: {', '.join(measures)}")


def recorded(verdict: Verdict) -> Verdict:
    """Record a verdict for the report, if a test runs, and return it."""
    if (run := current()) is not None:
        run.record(verdict)
    return verdict


def required(verdict: Verdict) -> Verdict:
    """Return a verdict that is a pass; raise `PropertyViolation` or `Inconclusive` with the failure text otherwise."""
    __tracebackhide__ = True
    if verdict.outcome == "fail":
        raise PropertyViolation(failure_text(verdict), verdict)
    if verdict.outcome == "inconclusive":
        raise Inconclusive(failure_text(verdict), verdict)
    return verdict


def require_at_least_zero(name: str, value: float) -> float:
    """Refuse a negative or non-finite bound on a quantity that cannot be negative."""
    _require_number(name, value, least=0.0)
    return float(value)


def _require_number(name: str, value: object, least: float = -math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ArgumentError(f"{name}={value!r} is not a finite number")
    if value < least:
        raise ArgumentError(f"{name}={value!r} is negative, which the quantity never is; give a number >= 0")


def failure_text(verdict: Verdict) -> str:
    """Say what was claimed, measured, spent, the worst witness, how to reproduce it, and a hint. Nothing else."""
    value = verdict.estimate
    shown = f"{float((np.min if verdict.comparison == '>=' else np.max)(value.value)):.4g}"
    ties = value.details.get("tie_share")
    words = {"fail": "violated", "inconclusive": "undecided"}[verdict.outcome]
    tolerance = f", tolerance {verdict.tolerance:.4g}" if verdict.tolerance else ""
    lines = [
        f"{words}: {verdict.subject}: {verdict.claim}{tolerance}",
        f"measured: {shown}, {value.interval()}"
        + (f" ({value.guarantee})" if value.method != "exact" else "")
        + (f", {ties:.2%} of comparisons tied" if ties else ""),
        f"spent: {value.samples:,} samples, {value.evaluations:,} model evaluations, {value.seconds:.1f} s "
        f"({value.method}, confidence {value.confidence:.10g})",
    ]
    if verdict.witness is not None:
        lines.append(f"worst found: {verdict.witness!r}")
    if verdict.reproduce:
        lines.append(f"reproduce: {verdict.reproduce}")
    if verdict.hint:
        lines.append(f"hint: {verdict.hint}")
    return "\n".join(lines)


def worst(witnesses: list[Witness], *, high: bool) -> Witness | None:
    """Return the witness with the highest (or lowest) score."""
    if not witnesses:
        return None
    return max(witnesses, key=lambda witness: witness.score if high else -witness.score)
