"""The gate: has a checkpoint become worse than a baseline by more than a rule allows?

Both checkpoints are seen on the same units (inputs, pairs, directions): the baseline's seeds and chunk sizes draw them
again, and the mean of the paired differences is decided, chunk by chunk, by the engine that decides every claim.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from modelprops.baseline import STORAGE, Baseline, load_baseline
from modelprops.domains import Domain
from modelprops.errors import BaselineError, Inconclusive, PropertyViolation
from modelprops.estimate import Estimate, Verdict
from modelprops.measurement import Measurement, domain_text, facts, readout_text
from modelprops.paired import Comparison, Outcome, decide_change
from modelprops.properties.claim import failure_text, named_measure, recorded
from modelprops.properties.measure import Measure, Options, options_of
from modelprops.rules import Rule, default_rules, parse_rule
from modelprops.settings import current, defaults
from modelprops.subject import Subject, as_subject


def assert_not_regressed(
    subject: Any,
    baseline: Baseline | str | os.PathLike[str],
    rules: str | Sequence[str | Rule] = (),
    *,
    domain: Domain | None = None,
    tolerance: float | None = None,
    confidence: float | None = None,
    budget: int | None = None,
    storage: str | os.PathLike[str] = STORAGE,
    measures: Sequence[Measure] = (),
    parameters: Mapping[str, Any] | None = None,
) -> tuple[Verdict, ...]:
    """Require that no measurement of `baseline` is worse on `subject` by more than the rules allow.

    `baseline` is one, its name in `storage`, or the path of its JSON. `rules` (see `modelprops.rules`) say what is
    gated and by how much; without any, every measurement may worsen by at most 5% of its old value. The claim decided
    is mean(new - f old) <= a over paired units, with f = 1 + p for a change of p percent and a for one in units of the
    measure.

    Guarantee: a confidence bound where the measure is bounded and its test is decided on the baseline's units;
    asymptotic where it is unbounded, a ratio, or undecided by then (half of the error rate is kept for each); exact
    where both were enumerated or the weights are the same. Sharpness of an unbounded readout is compared on the
    baseline's own inputs. `tolerance` (default 5% of the allowed change) as for every claim. Of several subjects in a
    baseline, those of `subject`'s name are compared. `measures` are measures of your own, `parameters` those that a
    baseline cannot store, such as `loss=`.

    Returns the verdicts, one for each measurement and rule. Raises `PropertyViolation` where one is worse,
    `Inconclusive` where one is undecided, `BaselineError` where the baseline is unreadable or speaks of unlike things.
    """
    __tracebackhide__ = True
    found = baseline if isinstance(baseline, Baseline) else load_baseline(baseline, storage)
    target = as_subject(subject, domain)
    known = {measure.name: measure for measure in measures}
    todo = comparisons(found, parsed(rules or defaults().rules), subject=target.name, tolerance=tolerance)
    refuse_unlike(found.name, {id(c.old): c.old for c in todo}.values(), target, known)
    verdicts = tuple(check(c, target, known, parameters or {}, confidence, budget) for c in todo)
    return required_all(verdicts)


def verdict_on(subject: Any, comparison: Comparison) -> Verdict:
    """Decide one comparison on a subject, after refusing unlike things; what the gate's own tests call."""
    target = as_subject(subject, None)
    refuse_unlike(comparison.baseline, [comparison.old], target, {})
    return check(comparison, target, {}, {})


def fixture_measurements(baseline: Baseline) -> list[Measurement]:
    """Return the scalar measurements that were made on the fixture `subject`."""
    return [m for m in baseline.measurements if m.scalar and m.subject.get("fixture")]


def parsed(rules: str | Sequence[str | Rule]) -> tuple[Rule, ...]:
    """Return rules given as text, or already parsed."""
    given = [rules] if isinstance(rules, str) else rules
    return tuple(rule if isinstance(rule, Rule) else parse_rule(rule) for rule in given)


def comparisons(
    baseline: Baseline, rules: Sequence[Rule], *, subject: str | None = None, tolerance: float | None = None
) -> tuple[Comparison, ...]:
    """Return what is to be decided; a rule that speaks of nothing in the baseline is an error.

    `subject` is the name of the one compared; None stands for the fixture `subject`.
    """
    scalars = [m for m in baseline.measurements if m.scalar]
    names = sorted({str(m.subject.get("name")) for m in scalars})
    fixture = fixture_measurements(baseline)
    if subject is None:
        chosen = fixture
    elif len(names) == 1:
        chosen = scalars
    else:
        chosen = [m for m in scalars if m.subject.get("name") == subject] or fixture
    if not chosen:
        of = "the fixture `subject`" if subject is None else repr(subject)
        raise BaselineError(
            f"baseline {baseline.name!r} has no scalar measurement of {of}; its subjects: {', '.join(names) or 'none'}"
        )
    for rule in rules:
        if not any(rule.speaks_of(m.measure, m.parameters) for m in chosen):
            raise BaselineError(
                f"the rule {str(rule)!r} speaks of nothing in baseline {baseline.name!r}, which has: "
                f"{', '.join(sorted({str(m) for m in chosen}))}"
            )
    pairs = [(m, rule) for m in chosen for rule in rules if rule.speaks_of(m.measure, m.parameters)]
    if not rules:
        pairs = [(m, rule) for m in chosen for rule in default_rules(m.measure, m.parameters)]
    return tuple(Comparison(baseline.name, m, rule, tolerance) for m, rule in pairs)


def refuse_unlike(baseline: str, old: Iterable[Measurement], subject: Subject, known: Mapping[str, Measure]) -> None:
    """Raise `BaselineError` with every difference that makes old and new values incomparable."""
    new = facts(subject)
    seen = (domain_text(subject.domain), int(subject.domain.coordinates), readout_text(subject))
    differences: list[str] = []
    for m in old:
        rows = [
            ("domain", m.domain, seen[0]),
            ("coordinates", m.coordinates, seen[1]),
            ("readout", m.readout, seen[2]),
            ("dtype", m.subject.get("dtype"), new["dtype"]),
            ("attention kernel", m.subject.get("kernel"), new["kernel"]),
            (f"definition of {m.measure}", f"version {m.version}", f"version {_measure(m, known).version}"),
        ]
        differences += [f"{what}: {was} in the baseline, {now} now" for what, was, now in rows if was != now]
    if differences:
        listing = "; ".join(dict.fromkeys(differences))
        raise BaselineError(f"baseline {baseline!r} speaks of unlike things and is not compared: {listing}")


def check(
    comparison: Comparison,
    subject: Subject,
    known: Mapping[str, Measure],
    given: Mapping[str, Any],
    confidence: float | None = None,
    budget: int | None = None,
) -> Verdict:
    """Measure again, decide, record the verdict if a test runs, and return it whatever it is."""
    old, start = comparison.old, time.perf_counter()
    exact: bool | str = old.estimate.method == "exact"
    options = options_of(old.measure, confidence, budget, None, old.estimate.seed, exact)
    missing = [name for name in old.opaque if name not in given]
    if missing:
        raise BaselineError(
            f"{old} of baseline {comparison.baseline!r} was measured with {', '.join(missing)}=, which no file can "
            f"hold; pass parameters={{{missing[0]!r}: ...}}"
        )
    measure = _measure(old, known)
    values = {**old.parameters, **{name: given[name] for name in old.opaque}}
    plan = measure.planned(subject, {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    same = old.subject.get("fingerprint") is not None and old.subject["fingerprint"] == facts(subject)["fingerprint"]
    with subject.steady():
        result = decide_change(comparison, plan, options, same_weights=same)
    return recorded(_verdict(comparison, subject, options, result, start))


def required_all(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts that all pass; raise with the text of every one that does not, failures first."""
    __tracebackhide__ = True
    failed = [verdict for verdict in verdicts if verdict.outcome == "fail"]
    undecided = [verdict for verdict in verdicts if verdict.outcome == "inconclusive"]
    if not failed and not undecided:
        return tuple(verdicts)
    text = "\n\n".join(map(failure_text, [*failed, *undecided]))
    if failed:
        raise PropertyViolation(text, failed[0])
    raise Inconclusive(text, undecided[0])


def _verdict(comparison: Comparison, subject: Subject, options: Options, result: Outcome, start: float) -> Verdict:
    old, change = comparison.old, result.change
    estimate = Estimate(
        measure=f"change of {old.measure}",
        value=float(np.max(change.value)),
        low=float(np.max(change.low)),
        high=float(np.max(change.high)),
        confidence=result.confidence or options.confidence,
        samples=result.units,
        evaluations=result.evaluations,
        method=result.method,
        seed=options.seed,
        seconds=time.perf_counter() - start,
        guarantee=result.guarantee,
        details={"old": result.old, "new": result.new, "rule": str(comparison.rule), "baseline": comparison.baseline},
    )
    run = current()
    reproduce = run.reproduce if run is not None and run.reproduce else ""
    hint = f"from {result.old:.6g} to {result.new:.6g} on the same units"
    if result.outcome == "inconclusive":
        hint += "; save the baseline with a larger budget (more units), or allow a larger change"
    return Verdict(
        result.outcome,
        str(comparison),
        estimate,
        comparison.rule.allowed(result.old),
        comparison.comparison,
        comparison.slack,
        None,
        reproduce or f"mp.assert_not_regressed(subject, {comparison.baseline!r}, {str(comparison.rule)!r})",
        subject.name,
        hint,
        result.log_e,
    )


def _measure(old: Measurement, known: Mapping[str, Measure]) -> Measure:
    return known[old.measure] if old.measure in known else named_measure(old.measure)
