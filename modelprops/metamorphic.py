"""Metamorphic claims: how the output must follow a change of the input. For use inside a Hypothesis `@given` test.

    @given(boolean_batches(16))
    def test_majority_is_odd(subject, points):
        mp.metamorphic.assert_negation(subject, points, sign=-1)

Each takes a batch of points (or a single one), evaluates it in one forward pass (padding and prefix in two, since their
inputs have two lengths) and raises `PropertyViolation` with the smallest pair of inputs that breaks the claim, which
Hypothesis then shrinks. They speak of the points given, never of an average. Where the readout is a sign, points at
which the two outputs differ within the model's rounding noise of a tie are let pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from modelprops.domains import Domain, Tokens
from modelprops.errors import ArgumentError
from modelprops.estimate import Estimate, Verdict, Witness
from modelprops.properties.claim import require_at_least_zero, required
from modelprops.readouts import Reading
from modelprops.settings import current, defaults
from modelprops.subject import Subject, as_subject


def assert_negation(
    subject: Any, points: torch.Tensor, *, sign: int = -1, domain: Domain | None = None, atol: float | None = None
) -> Verdict:
    """Require f(-x) = `sign` f(x) at the points: odd (-1) or even (+1), within `atol`.

    `points`: real or ±1, (batch, ...) or one point. `atol` defaults to 1e-5, and to 0 for a sign or label. Raises
    `PropertyViolation` with the smallest failing x and its partner -x; `ArgumentError` for tokens, which have no
    negative, or another sign.
    """
    __tracebackhide__ = True
    target = as_subject(subject, domain)
    if sign not in (-1, 1):
        raise ArgumentError(f"sign={sign!r} is neither -1 (an odd function) nor 1 (an even one)")
    if isinstance(target.domain, Tokens):
        raise ArgumentError("tokens have no negative; use assert_permutation, assert_padding or assert_prefix")
    batch = _batch(target, points)
    claim = f"f(-x) = {'-' if sign < 0 else ''}f(x)"
    return _compared(target, claim, batch, -batch, atol, sign=sign)


def assert_permutation(
    subject: Any,
    points: torch.Tensor,
    order: Sequence[int] | torch.Tensor,
    *,
    domain: Domain | None = None,
    atol: float | None = None,
) -> Verdict:
    """Require f(x[order]) = f(x) at the points: the output does not see this reordering of the coordinates.

    `order`: a permutation of 0..n-1, such as one drawn by `hypothesis.strategies.permutations(range(n))`; it must leave
    a token domain's frozen positions in place. `atol` and errors as `assert_negation`.
    """
    __tracebackhide__ = True
    target = as_subject(subject, domain)
    batch = _batch(target, points)
    places = [int(place) for place in order]
    count = batch.shape[1]
    if sorted(places) != list(range(count)):
        raise ArgumentError(f"order={places} is not a permutation of 0..{count - 1}; name each coordinate once")
    if isinstance(target.domain, Tokens) and (moved := [p for p in target.domain.frozen if places[p] != p]):
        raise ArgumentError(f"order={places} moves the frozen positions {moved}; leave them in place")
    return _compared(target, "f(x[order]) = f(x)", batch, batch[:, places], atol)


def assert_padding(
    subject: Any,
    points: torch.Tensor,
    *,
    token: int,
    count: int = 1,
    side: str = "right",
    domain: Domain | None = None,
    atol: float | None = None,
) -> Verdict:
    """Require that `count` padding tokens on one side leave the output: f(x, pad, ..., pad) = f(x).

    The domain's encoding must hide `token` from the model (an attention mask, say): that is what is tested. `side`:
    `"right"` or `"left"`. `atol` and errors as `assert_negation`.
    """
    __tracebackhide__ = True
    target = as_subject(subject, domain)
    if side not in ("right", "left") or isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f'side={side!r}, count={count!r}: pad on the "right" or "left", by at least 1')
    batch = _batch(target, points)
    filling = batch.new_full((len(batch), count, *batch.shape[2:]), token)
    padded = torch.cat([batch, filling] if side == "right" else [filling, batch], 1)
    where = "x, pad" if side == "right" else "pad, x"
    return _compared(target, f"f({where}) = f(x) with pad = {count} x {token}", batch, padded, atol)


def assert_prefix(
    subject: Any, points: torch.Tensor, length: int, *, domain: Domain | None = None, atol: float | None = None
) -> Verdict:
    """Require that the first `length` coordinates decide the first outputs: f(x[:length]) = f(x), where both have one.

    For a causal model read with one group of outputs per position (a readout such as
    `lambda output: output.logits.flatten(1)`) this is causality: outputs at a position do not see what follows. For
    one output an input, it says that the rest of the input does not matter. `atol` and errors as `assert_negation`.
    """
    __tracebackhide__ = True
    target = as_subject(subject, domain)
    batch = _batch(target, points)
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length < batch.shape[1]:
        raise ArgumentError(f"length={length!r} is not in 1..{batch.shape[1] - 1}; a prefix is shorter than the input")
    return _compared(target, f"f(x[:{length}]) = f(x)", batch, batch[:, :length], atol)


def _batch(subject: Subject, points: torch.Tensor) -> torch.Tensor:
    """A nonempty batch of plain points, whether one or several were given."""
    if not isinstance(points, torch.Tensor):
        raise ArgumentError(f"points={points!r} is not a tensor; draw it with modelprops.strategies")
    plain = points.detach().as_subclass(torch.Tensor)
    axes = len(getattr(subject.domain, "shape", (None,)))
    if plain.ndim == axes:
        plain = plain[None]
    if plain.ndim != axes + 1 or not len(plain):
        raise ArgumentError(f"points of shape {tuple(points.shape)} are neither one point nor a nonempty batch of them")
    return plain


def _compared(
    subject: Subject,
    claim: str,
    points: torch.Tensor,
    partners: torch.Tensor,
    atol: float | None,
    *,
    sign: int = 1,
) -> Verdict:
    """Evaluate both sides, find the smallest pair that differs, record and decide."""
    __tracebackhide__ = True
    start = time.perf_counter()
    discrete = subject.readout.name in ("sign", "label")
    limit = (0.0 if discrete else 1e-5) if atol is None else require_at_least_zero("atol", atol)
    if points.shape == partners.shape:
        reading = subject.read(torch.cat([points, partners]))
        first, second = _rows(reading, slice(0, len(points))), _rows(reading, slice(len(points), None))
    else:
        first, second = subject.read(points), subject.read(partners)
    distance = _distance(subject, first, second, sign)
    failing = (distance > limit).nonzero()[:, 0]
    row = min(failing.tolist(), key=lambda k: _size(points[k])) if len(failing) else int(distance.argmax())
    estimate = Estimate(
        measure=f"distance of the sides of {claim}",
        value=float(distance[row]),
        low=float(distance[row]),
        high=float(distance.max()),
        confidence=1.0,
        samples=len(points),
        evaluations=2 * len(points),
        method="search",
        seed=defaults().seed,
        seconds=time.perf_counter() - start,
        guarantee="one-sided bound",
    )
    run = current()
    verdict = Verdict(
        "fail" if len(failing) else "pass",
        claim,
        estimate,
        limit,
        "<=",
        0.0,
        Witness(points[row], score=float(distance[row]), partner=partners[row]),
        run.reproduce if run is not None else "",
        subject.name,
        f"f gave {_shown(first, row)} at point and {_shown(second, row)} at partner" if len(failing) else "",
    )
    return required(_recorded(verdict))


def _distance(subject: Subject, first: Reading, second: Reading, sign: int) -> torch.Tensor:
    """(batch,): Euclidean distance of the outputs both have; 0 where a discrete readout is within noise of a tie."""
    one, other = (reading.values.view(len(reading.values), -1) for reading in (first, second))
    shared = min(one.shape[1], other.shape[1])
    distance: torch.Tensor = torch.linalg.vector_norm(other[:, :shared] - sign * one[:, :shared], dim=1)
    if first.margin is not None and second.margin is not None:
        margins = torch.minimum(first.margin.view(len(one), -1).amin(1), second.margin.view(len(other), -1).amin(1))
        distance = torch.where(margins <= subject.noise, 0.0, distance)
    return distance


def _recorded(verdict: Verdict) -> Verdict:
    """Record one verdict a claim and test: the examples of `@given` are counted together, and a failure stands."""
    run = current()
    if run is None:
        return verdict
    for place, earlier in enumerate(run.verdicts):
        if (earlier.claim, earlier.subject) != (verdict.claim, verdict.subject):
            continue
        kept = earlier if earlier.outcome == "fail" and verdict.outcome == "pass" else verdict
        if earlier.outcome == verdict.outcome == "pass" and earlier.estimate.value > verdict.estimate.value:
            kept = earlier
        estimate = replace(
            kept.estimate,
            samples=earlier.estimate.samples + verdict.estimate.samples,
            evaluations=earlier.estimate.evaluations + verdict.estimate.evaluations,
            seconds=earlier.estimate.seconds + verdict.estimate.seconds,
        )
        run.verdicts[place] = replace(kept, estimate=estimate)
        return verdict
    run.record(verdict)
    return verdict


def _size(point: torch.Tensor) -> tuple[float, ...]:
    """How far a point is from the simplest: -1s for ±1 points, the sum of absolute entries for others."""
    if point.dtype == torch.int8:
        return (float((point < 0).sum()),)
    return (float(point.double().abs().sum()),)


def _rows(reading: Reading, rows: slice) -> Reading:
    return Reading(reading.values[rows], None if reading.margin is None else reading.margin[rows])


def _shown(reading: Reading, row: int) -> str:
    values = reading.values[row].reshape(-1)
    shown = ", ".join(f"{value:.6g}" for value in values[:4].tolist())
    return shown if len(values) == 1 else f"[{shown}{', ...' if len(values) > 4 else ''}]"
