"""Linearity over GF(2): is a ±1 function a product of input bits?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from modelprops.domains import BooleanCube, generator_of
from modelprops.errors import ArgumentError, DomainError
from modelprops.estimate import Array, Verdict, Witness
from modelprops.functions.walsh import walsh_hadamard
from modelprops.inference.betting import lower_bound
from modelprops.inference.sequential import Chunk, Design
from modelprops.properties.claim import claim
from modelprops.properties.measure import Exact, Plan, measure
from modelprops.properties.tables import is_enumerable, points_at, table_of
from modelprops.subject import Subject


@measure(version=1)
def linearity_violation(subject: Subject, *, affine: bool = False) -> Plan:
    """Rejection probability of the linearity test: P_{x,y}[f(x) f(y) != f(x y)] for ±1 f, x y the entrywise product.

    Blum, Luby and Rubinfeld's test of whether f is a product prod_{i in S} x_i. It equals 1/2 - 1/2 sum_S f^(S)^3, and
    *the distance of f from the nearest such product is at most this number* (and at least a third of it);
    `details["distance_at_most"]` is that bound with the confidence of the interval. `affine=True` also allows the
    negated products: P[f(x) f(y) f(z) != f(x y z)] = 1/2 - 1/2 sum_S f^(S)^4, with the same bound.

    Guarantee: exact by enumeration (a Walsh transform, n <= 24); a confidence bound otherwise. The unit is one pair
    (triple) of inputs, cost 3 (4) evaluations. Near-ties are taken as they fall.

    Source: Blum, Luby and Rubinfeld 1993; Bellare et al. 1996; O'Donnell, Analysis of Boolean Functions, 1.6.
    """
    domain = subject.domain
    if not isinstance(domain, BooleanCube):
        raise DomainError(f"linearity over GF(2) is defined on mp.BooleanCube(n), not on {type(domain).__name__}")
    if subject.outputs != 1:
        raise ArgumentError(f"the readout has {subject.outputs} outputs; linearity is tested on one: readout='sign'")
    factors = 3 if affine else 2

    def draw(seed: int, size: int) -> Chunk:
        return _draw(subject, factors, seed, size)

    enumerable = is_enumerable(domain)
    return Plan(
        design=Design(draw, ((0.0, 1.0),), factors + 1),
        exact=(lambda: _exact(subject, affine)) if enumerable else None,
        exact_evaluations=enumerable,
        details=_distance,
        hint="for the two inputs above f(x) f(y) differs from f(x y); a function at distance d from every product is "
        "rejected with probability at least d",
    )


def assert_linear(
    subject: Any, *, at_most: float = 0.0, affine: bool = False, tolerance: float | None = 0.01, **options: Any
) -> Verdict:
    """Require that f is a product of input bits (`affine=True`: or its negation), by the test of Blum et al.

    A pass certifies that f differs from some product on less than `at_most + tolerance` of the inputs; with
    `at_most=0` a single rejected pair is a failure. `options`: domain, confidence, budget, seed, exact.
    """
    __tracebackhide__ = True
    parameters = {"affine": True} if affine else {}
    return claim(linearity_violation, "<=", at_most, tolerance=tolerance, **parameters).require(subject, **options)


def _draw(subject: Subject, factors: int, seed: int, size: int) -> Chunk:
    points = subject.domain.sample(factors * size, generator_of(seed)).view(factors, size, -1)
    product = points.prod(0).to(points.dtype)
    values = _signs(subject, torch.cat([points.flatten(0, 1), product])).view(factors + 1, size)
    rejected = values.prod(0) < 0
    row = int(rejected.long().argmax())
    witness = None
    if rejected[row] and factors == 2:
        witness = Witness(points[0, row].clone(), partner=points[1, row].clone(), score=1.0)
    elif rejected[row]:
        witness = Witness(product[row].clone(), score=1.0)
    return Chunk(rejected.double()[:, None].numpy(), size * (factors + 1), witness)


def _signs(subject: Subject, points: torch.Tensor) -> torch.Tensor:
    values = subject(points)
    if not bool((values.abs() == 1).all()):
        wrong = float(values[values.abs() != 1][0])
        raise ArgumentError(
            f"the output {wrong:.4g} is not ±1, and linearity over GF(2) is a property of ±1 functions; use "
            'readout="sign"'
        )
    return values


def _exact(subject: Subject, affine: bool) -> Exact:
    table = table_of(subject)
    column = table.values[:, 0]
    if not (np.abs(column) == 1).all():
        _signs(subject, points_at(subject.domain, torch.tensor([int((np.abs(column) != 1).argmax())])))
    coefficients = walsh_hadamard(column.copy())
    # Rounding could leave a tiny negative number.
    rejection = max(0.0, 0.5 - 0.5 * float((coefficients ** (4 if affine else 3)).sum()))
    largest = np.abs(coefficients).max() if affine else coefficients.max()
    details = {"distance_at_most": rejection, "distance": float(0.5 - 0.5 * largest)}
    highest = _pair(subject, column) if rejection > 1e-12 and not affine else None
    return Exact(rejection if rejection > 1e-12 else 0.0, len(column), highest=highest, details=details)


def _pair(subject: Subject, column: Array) -> Witness | None:
    """A rejected pair: the product of rows is their exclusive or, since bit i of a row is 1 where x_i = -1."""
    domain = subject.domain
    assert isinstance(domain, BooleanCube)
    rows = np.arange(len(column))
    # Every row is a sum of unit rows, so a function that passes with those and with row 0 is linear.
    for first in (0, *(1 << bit for bit in range(domain.n))):
        rejected = column[first] * column != column[rows ^ first]
        if rejected.any():
            points = domain.points_of(torch.tensor([first, int(rejected.argmax())]))
            return Witness(points[0], partner=points[1], score=1.0)
    return None


def _distance(values: Array, level: float) -> dict[str, Any]:
    return {"distance_at_most": 1.0 - lower_bound(1.0 - values[:, 0], level)}
