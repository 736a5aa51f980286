"""Length: a measure as a function of the input's length, and whether a model computes its task at every length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Estimate, Verdict, Witness
from modelprops.inference.sequential import Box, Chunk, Design, outcome_of
from modelprops.properties.claim import Claim, claim, recorded, require_at_least_zero, required
from modelprops.properties.measure import Exact, Measure, Plan, measure, options_of
from modelprops.properties.tables import all_points, is_enumerable
from modelprops.settings import current
from modelprops.subject import Subject

MakeSubject = Callable[[int], Any]
SCALES = ("linear", "log-log")


def length_profile(
    make_subject: MakeSubject,
    lengths: Sequence[int],
    measure: Measure | Claim | str,
    *,
    scale: str = "linear",
    confidence: float | None = None,
    budget: int | None = None,
    width: float | None = None,
    seed: int | None = None,
    exact: bool | str = "auto",
    **parameters: Any,
) -> Estimate:
    """A measure at each of several input lengths, a vector in their order, with the slope of a straight line.

    `make_subject(n)` returns the subject of length n; `measure` is a scalar measure with its `parameters`, or its text
    such as `"average_sensitivity(relative=True)"`. `budget` and `width` are those of one length.

    `details["slope"]` holds value, low and high of the least-squares slope sum_j w_j m_j, with w_j = (n_j - n) /
    sum (n_j - n)^2 and n the mean length; `"log-log"` fits log m against log n, so that the slope is the exponent of
    growth. `details["lengths"]` holds the lengths, `details["intercept"]` the line's other coefficient.

    Guarantee: that of the measure, at confidence 1 - level/K for each of K lengths, so that all intervals and the
    slope, whose interval follows from theirs by w_j's signs, hold together at `confidence`. The slope is that of the
    measured lengths, not an extrapolation.

    Source: ordinary least squares; Hahn and Rofin 2024 (growth with n, spec A.2).
    """
    chosen, wanted = _lengths(lengths), _measured(measure, parameters)
    if scale not in SCALES:
        raise ArgumentError(f"scale={scale!r} is unknown; use one of {', '.join(SCALES)}")
    if len(chosen) < 2:
        raise ArgumentError(f"lengths={list(lengths)!r} has fewer than two lengths, through which no slope is defined")
    options = options_of("length_profile", confidence, budget, width, seed, exact)
    start = time.perf_counter()
    parts = [
        wanted.measure(
            _made(make_subject, length),
            confidence=1 - options.level / len(chosen),
            budget=options.budget,
            width=options.width,
            seed=options.seed,
            exact=options.exact,
            **wanted.parameters,
        )
        for length in chosen
    ]
    if any(isinstance(part.value, np.ndarray) for part in parts):
        raise ArgumentError(f"{wanted.measure.name} is a vector; choose a scalar measure for a profile over lengths")
    box = Box(*(np.array([float(getattr(part, side)) for part in parts]) for side in ("value", "low", "high")))
    slope, intercept = slope_of(chosen, box, scale)
    return Estimate(
        measure=f"length_profile({wanted})",
        value=box.value,
        low=box.low,
        high=box.high,
        confidence=options.confidence,
        samples=sum(part.samples for part in parts),
        evaluations=sum(part.evaluations for part in parts),
        method="exact" if all(part.method == "exact" for part in parts) else "fixed",
        seed=options.seed,
        seconds=time.perf_counter() - start,
        guarantee=_weakest([part.guarantee for part in parts]),
        details={
            "lengths": list(chosen),
            "slope": {"value": slope.value, "low": slope.low, "high": slope.high},
            "intercept": intercept,
            "scale": scale,
        },
    )


def assert_bounded_growth(
    make_subject: MakeSubject,
    lengths: Sequence[int],
    measure: Measure | Claim | str,
    at_most: float,
    *,
    tolerance: float | None = None,
    **options: Any,
) -> Verdict:
    """Require that the slope of a measure over lengths is <= `at_most` (see `length_profile`, whose options it takes).

    Decided once all lengths are measured. Returns the `Verdict`, whose estimate is the slope; raises
    `PropertyViolation`, or `Inconclusive` where the slope's interval holds the bound.
    """
    __tracebackhide__ = True
    profile = length_profile(make_subject, lengths, measure, **options)
    slope = profile.details["slope"]
    allowed = 0.05 * abs(at_most) if tolerance is None else tolerance
    outcome = outcome_of(Box(slope["value"], slope["low"], slope["high"]), "<=", at_most, allowed)
    value = replace(profile, measure=f"slope of {profile.measure}", **slope)
    text = f"slope of {profile.measure} over {profile.details['lengths']} <= {at_most:.10g}"
    hint = "raise budget= or spread the lengths, which narrows the slope's interval" if outcome != "pass" else ""
    return required(recorded(Verdict(outcome, text, value, at_most, "<=", allowed, None, _line(value), hint=hint)))


def slope_of(lengths: Sequence[int], box: Box, scale: str = "linear") -> tuple[Box, float]:
    """Return the least-squares slope with the interval that simultaneous intervals of the points imply; intercept."""
    at = np.asarray(lengths, dtype=np.float64)
    value, low, high = (np.asarray(part, dtype=np.float64) for part in (box.value, box.low, box.high))
    if scale == "log-log":
        if value.min() <= 0:
            raise ArgumentError('a log-log slope needs positive values; use scale="linear"')
        with np.errstate(divide="ignore"):
            at, value, low, high = np.log(at), np.log(value), np.log(np.maximum(low, 0.0)), np.log(high)
    weights = (at - at.mean()) / ((at - at.mean()) ** 2).sum()
    up, down = np.maximum(weights, 0.0), np.minimum(weights, 0.0)
    moving = weights != 0
    slope = float(weights @ value)
    least = float((up * low + down * high)[moving].sum()) if np.isfinite(high).all() else -math.inf
    most = float((up * high + down * low)[moving].sum()) if np.isfinite(low).all() else math.inf
    return Box(slope, min(least, slope), max(most, slope)), float(value.mean() - slope * at.mean())


@measure(version=1)
def disagreement(subject: Subject, *, reference: Callable[[torch.Tensor], torch.Tensor], atol: float = 1e-5) -> Plan:
    """Probability that the model differs from a reference function of the domain's points: P_x[f(x) != g(x)].

    A ±1 reference is compared with the sign of a single output; any other with |f(x) - g(x)| <= `atol` (Euclidean for
    vectors). For ±1 functions E f g = 1 - 2 P.

    Guarantee: exact by enumeration; a confidence bound for every readout. The unit is one input (cost 1).
    Source: O'Donnell, Analysis of Boolean Functions, 1.4 (relative distance).
    """
    atol = require_at_least_zero("atol", atol)
    if not callable(reference):
        raise ArgumentError(f"reference={reference!r} is not callable; give a function of points (batch, ...)")

    def draw(seed: int, size: int) -> Chunk:
        points = subject.domain.sample(size, generator_of(seed))
        return _compared(subject, reference, points, atol)

    enumerable = is_enumerable(subject.domain)

    def exact() -> Exact:
        chunks = [_compared(subject, reference, points, atol) for points in all_points(subject.domain)]
        worst = next((chunk.highest for chunk in chunks if chunk.highest), None)
        return Exact(float(sum(chunk.values.sum() for chunk in chunks)) / enumerable, enumerable, highest=worst)

    return Plan(
        design=Design(draw, ((0.0, 1.0),), 1),
        exact=exact if enumerable else None,
        exact_evaluations=enumerable,
        hint="the model and the reference differ at the input above",
    )


def assert_length_generalises(
    make_subject: MakeSubject,
    reference: Callable[..., Any],
    *,
    lengths: Sequence[int],
    at_most: float = 0.01,
    tolerance: float | None = None,
    atol: float = 1e-5,
    confidence: float | None = None,
    budget: int | None = None,
    seed: int | None = None,
    exact: bool | str = "auto",
) -> Verdict:
    """Require that the model agrees with `reference` at every length: P[f(x) != g(x)] <= `at_most` at each.

    `reference` is a function of points (batch, n), or takes a length and returns one. Each length is decided at
    confidence 1 - level/K (K lengths), so that any wrong verdict has probability at most 1 - `confidence`. The estimate
    is the vector of disagreements. Raises `PropertyViolation` whose witness is an input of the first length that fails
    (its size says which), `Inconclusive` if no length fails but some cannot be decided within `budget`, the evaluations
    of one length. See `disagreement` for the quantity.
    """
    __tracebackhide__ = True
    chosen = _lengths(lengths)
    options = options_of("length_generalisation", confidence, budget, None, seed, exact)
    start = time.perf_counter()
    verdicts = []
    for length in chosen:
        wanted = claim(
            disagreement, "<=", at_most, tolerance=tolerance, reference=_reference_at(reference, length), atol=atol
        )
        verdicts.append(
            wanted.decide(
                _made(make_subject, length),
                confidence=1 - options.level / len(chosen),
                budget=options.budget,
                seed=options.seed,
                exact=options.exact,
            )
        )
    failed = [n for n, verdict in zip(chosen, verdicts, strict=True) if verdict.outcome == "fail"]
    open_ = [n for n, verdict in zip(chosen, verdicts, strict=True) if verdict.outcome == "inconclusive"]
    outcome = "fail" if failed else "inconclusive" if open_ else "pass"
    estimates = [verdict.estimate for verdict in verdicts]
    value = Estimate(
        measure="disagreement at each length",
        value=np.array([float(part.value) for part in estimates]),
        low=np.array([float(part.low) for part in estimates]),
        high=np.array([float(part.high) for part in estimates]),
        confidence=options.confidence,
        samples=sum(part.samples for part in estimates),
        evaluations=sum(part.evaluations for part in estimates),
        method="exact" if all(part.method == "exact" for part in estimates) else "sequential",
        seed=options.seed,
        seconds=time.perf_counter() - start,
        guarantee=_weakest([part.guarantee for part in estimates]),
        details={"lengths": list(chosen), "failed": failed, "undecided": open_},
    )
    name = getattr(reference, "__name__", type(reference).__name__)
    return required(
        recorded(
            Verdict(
                outcome,
                f"at every length in {list(chosen)}: disagreement with {name} <= {at_most:.10g}",
                value,
                at_most,
                "<=",
                verdicts[0].tolerance,
                _first_witness(verdicts),
                _line(value),
                verdicts[0].subject,
                _hint(failed, open_),
            )
        )
    )


def _compared(
    subject: Subject, reference: Callable[[torch.Tensor], torch.Tensor], points: torch.Tensor, atol: float
) -> Chunk:
    values = subject(points)
    with torch.no_grad():
        other = reference(points)
    if not isinstance(other, torch.Tensor) or len(other) != len(points):
        raise ArgumentError("reference must map points (batch, ...) to a tensor whose first dimension is the batch")
    other = other.detach().cpu().double()
    other = other[:, 0] if other.ndim == 2 and other.shape[1] == 1 else other
    if values.shape != other.shape:
        raise ArgumentError(
            f"the model gives values of shape {tuple(values.shape)} and the reference {tuple(other.shape)}; choose a "
            "readout that matches"
        )
    if values.ndim == 1 and bool((other.abs() == 1).all()):
        wrong = torch.where(values >= 0, 1.0, -1.0) != other
    else:
        wrong = torch.linalg.vector_norm((values - other).view(len(points), -1), dim=1) > atol
    row = int(wrong.long().argmax())
    witness = Witness(points[row].clone(), score=1.0) if wrong[row] else None
    return Chunk(wrong.double()[:, None].numpy(), len(points), witness)


def _reference_at(reference: Callable[..., Any], length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The reference of one length: what `reference(length)` returns if that is callable, else the reference itself."""
    if isinstance(reference, torch.nn.Module):
        return reference
    try:
        made = reference(length)
    except Exception:  # a function of points refuses a number in a way of its own
        return reference
    return made if callable(made) and not isinstance(made, torch.Tensor) else reference


def _lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(lengths)
    if not chosen or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in chosen):
        raise ArgumentError(f"lengths={lengths!r} are not lengths; give whole numbers of at least 1, such as [8, 16]")
    if len(set(chosen)) < len(chosen):
        raise ArgumentError(f"lengths={lengths!r} names a length twice; give each once")
    return chosen


def _measured(wanted: Measure | Claim | str, parameters: dict[str, Any]) -> Claim:
    built = wanted if isinstance(wanted, Claim) else claim(wanted, **parameters)
    if built.threshold is not None:
        raise ArgumentError(f"{built} has a threshold; a profile takes the measure alone: {built.measure.name}")
    return built


def _made(make_subject: MakeSubject, length: int) -> Subject:
    subject = make_subject(length)
    if not isinstance(subject, Subject):
        raise ArgumentError(
            f"make_subject({length}) returned a {type(subject).__name__}; return mp.Subject(module, domain) of that "
            "length"
        )
    return subject


def _first_witness(verdicts: Sequence[Verdict]) -> Witness | None:
    return next((verdict.witness for verdict in verdicts if verdict.outcome == "fail" and verdict.witness), None)


def _hint(failed: list[int], undecided: list[int]) -> str:
    if failed:
        return f"the lengths {failed} fail; the input above is of the first of them"
    return f"the lengths {undecided} are undecided; raise budget= or tolerance=" if undecided else ""


def _line(value: Estimate) -> str:
    run = current()
    return run.reproduce if run is not None and run.reproduce else f"the same call with seed={value.seed}"


def _weakest(guarantees: Sequence[str]) -> str:
    order = ("asymptotic", "one-sided bound", "confidence bound", "exact")
    return min(guarantees, key=lambda name: order.index(name) if name in order else 0)
