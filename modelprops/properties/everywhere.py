"""Claims about every input, decided by search: exact where the domain is small, else a hunt for a counterexample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from modelprops.domains import BooleanCube, Domain, generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Estimate, Verdict, Witness
from modelprops.properties.claim import recorded, require_at_least_zero, required
from modelprops.properties.sensitivity import sensitivities
from modelprops.settings import current, seed_of
from modelprops.subject import Subject, as_subject
from modelprops.worst_case import DEFAULT_BUDGET, EXHAUSTIVE, Found, Score, search


def assert_sensitivity_everywhere(
    subject: Any, at_most: float, *, domain: Domain | None = None, budget: int = DEFAULT_BUDGET, seed: int | None = None
) -> Verdict:
    """Require s(f, x) <= `at_most` for *every* input x (local sensitivity, see `average_sensitivity`).

    Guarantee: exact where the domain has at most 2^14 points; otherwise a failure is proof and a pass says how many
    inputs were tried, which is not. Raises `PropertyViolation` with a minimal input and its most sensitive coordinate.
    """
    __tracebackhide__ = True
    target, at_most = as_subject(subject, domain), require_at_least_zero("at_most", at_most)
    count = target.domain.coordinates

    def local(points: torch.Tensor) -> torch.Tensor:
        return sensitivities(target, points, generator_of(0), count)[0].sum(1)

    def explained(point: torch.Tensor, score: float) -> Witness:
        change = sensitivities(target, point[None], generator_of(0), count)[0][0]
        return Witness(point, int(change.argmax()), score=score)

    claim = f"for every x: sensitivity <= {at_most:.10g}"
    return _decided(target, claim, local, at_most, 1 + count, budget, seed, explained)


def assert_stable_everywhere(
    subject: Any, at_most: float, *, domain: Domain | None = None, budget: int = DEFAULT_BUDGET, seed: int | None = None
) -> Verdict:
    """Require that no single change of an input moves the output by more than `at_most`: max_i |f(x) - f(x^i)|.

    For a vector readout the distance is Euclidean. Guarantee and errors as `assert_sensitivity_everywhere`.
    """
    __tracebackhide__ = True
    target, at_most = as_subject(subject, domain), require_at_least_zero("at_most", at_most)
    count = target.domain.coordinates
    scale = 4 if isinstance(target.domain, BooleanCube) else 2

    def largest(points: torch.Tensor) -> torch.Tensor:
        return (sensitivities(target, points, generator_of(0), count)[0].amax(1) * scale).sqrt()

    def explained(point: torch.Tensor, score: float) -> Witness:
        change = sensitivities(target, point[None], generator_of(0), count)[0][0]
        return Witness(point, int(change.argmax()), score=score)

    claim = f"for every x and i: |f(x) - f(x^i)| <= {at_most:.10g}"
    return _decided(target, claim, largest, at_most, 1 + count, budget, seed, explained)


def assert_agrees(
    subject: Any,
    reference: Callable[[torch.Tensor], torch.Tensor],
    *,
    domain: Domain | None = None,
    atol: float | None = None,
    budget: int = DEFAULT_BUDGET,
    seed: int | None = None,
) -> Verdict:
    """Require that the model computes `reference`, a function of the domain's points, at every input.

    A ±1 reference: the sign of the output must agree, and the search climbs down the margin. A real one:
    |f - reference| <= `atol`. Guarantee and errors as `assert_sensitivity_everywhere`.
    """
    __tracebackhide__ = True
    target = as_subject(subject, domain)
    return _agreement(target, _as_values(reference), "reference", atol, budget, seed)


def assert_same_function(
    first: Any,
    second: Any,
    *,
    domain: Domain | None = None,
    atol: float = 1e-5,
    budget: int = DEFAULT_BUDGET,
    seed: int | None = None,
) -> Verdict:
    """Require |f(x) - g(x)| <= `atol` at every input of two models (Euclidean for vectors).

    Guarantee and errors as `assert_sensitivity_everywhere`.
    """
    __tracebackhide__ = True
    one = as_subject(first, domain)
    two = second if isinstance(second, Subject) else as_subject(second, one.domain)
    return _agreement(one, two, two.name, atol, 2 * budget, seed)


def _agreement(
    subject: Subject,
    reference: Callable[[torch.Tensor], torch.Tensor],
    name: str,
    atol: float | None,
    budget: int,
    seed: int | None,
) -> Verdict:
    if atol is None and _is_sign(subject, reference):

        def disagreement(points: torch.Tensor) -> torch.Tensor:
            reading = subject.read(points)
            margin = reading.values if reading.margin is None else reading.values * reading.margin
            wrong = torch.where(reading.values >= 0, 1.0, -1.0) != reference(points).double()
            # Below 0 a correct margin, at least the least positive number where the sign is wrong.
            return torch.where(wrong, margin.abs().clamp_min(1e-300), -margin.abs())

        claim, limit = f"for every x: sign of the output = {name}", 0.0
    else:
        limit = 1e-5 if atol is None else require_at_least_zero("atol", atol)

        def disagreement(points: torch.Tensor) -> torch.Tensor:
            values = subject(points)
            other = reference(points).double()
            if values.shape != other.shape:
                raise ArgumentError(
                    f"the outputs have shapes {tuple(values.shape)} and {tuple(other.shape)}; compare like with like"
                )
            distance: torch.Tensor = torch.linalg.vector_norm((values - other).view(len(points), -1), dim=1)
            return distance

        claim = f"for every x: |f(x) - {name}| <= {limit:.10g}"

    def explained(point: torch.Tensor, score: float) -> Witness:
        return Witness(point, score=score)

    return _decided(subject, claim, disagreement, limit, 1, budget, seed, explained)


def _is_sign(subject: Subject, reference: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    points = subject.domain.sample(16, generator_of(0))
    values = reference(points)
    return values.ndim == 1 and subject.outputs == 1 and bool((values.double().abs() == 1).all())


def _as_values(reference: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def values(points: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            result = reference(points)
        if not isinstance(result, torch.Tensor) or len(result) != len(points):
            raise ArgumentError("reference must map points (batch, n) to a tensor (batch,)")
        return result.cpu()

    return values


def _decided(
    subject: Subject,
    claim: str,
    score: Score,
    limit: float,
    cost: int,
    budget: int,
    seed: int | None,
    explained: Callable[[torch.Tensor, float], Witness],
) -> Verdict:
    """Search within a budget of model evaluations, build the verdict, record it, and raise unless it passes."""
    __tracebackhide__ = True
    start = time.perf_counter()
    root = seed_of(claim) if seed is None else seed
    slack = 1e-9 * max(1.0, abs(limit)) if limit else 0.0
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ArgumentError(f"budget={budget!r} is not a positive number of model evaluations")
    inputs = max(1, budget // cost)
    found = search(subject, score, above=limit + slack, budget=inputs, exhaustive_up_to=EXHAUSTIVE, seed=root)
    outcome = "fail" if found.violates else "pass"
    estimate = Estimate(
        measure=claim.partition(": ")[2].rpartition(" <= ")[0] or claim,
        value=found.score,
        low=found.score,
        high=found.score if found.exhaustive else math.inf,
        confidence=1.0,
        samples=found.tried,
        evaluations=found.tried * cost,
        method="exact" if found.exhaustive else "search",
        seed=root,
        seconds=time.perf_counter() - start,
        guarantee="exact" if found.exhaustive else "one-sided bound",
    )
    run = current()
    verdict = Verdict(
        outcome,
        claim,
        estimate,
        limit,
        "<=",
        0.0,
        explained(found.point, found.score),
        run.reproduce if run is not None and run.reproduce else f"the same call with seed={root}",
        subject.name,
        _hint(found),
    )
    return required(recorded(verdict))


def _hint(found: Found) -> str:
    if found.violates:
        return "the input above is minimal: no single step toward the simplest input keeps the violation"
    if found.exhaustive:
        return f"all {found.tried:,} inputs were tried"
    return f"no violation among {found.tried:,} inputs tried; absence is not proof"
