"""Worst-case sharpness: how much the function can change when its parameters move a little, in the worst direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, NonFiniteOutputError
from modelprops.estimate import Witness
from modelprops.inference.intervals import asymptotic_half_width
from modelprops.inference.sequential import Box, one_sided
from modelprops.properties.claim import require_at_least_zero
from modelprops.properties.hessian_products import Products
from modelprops.properties.measure import Goal, Options, Plan, Solved, measure
from modelprops.properties.perturbation import POSITIONAL, Loss, l2_norm, perturbed_parameters, shaped
from modelprops.properties.sensitivity import squared_change
from modelprops.properties.tables import is_enumerable
from modelprops.seeds import derive
from modelprops.subject import Subject

NORMALISATIONS = ("none", "relative")


@measure(version=1)
def worst_sharpness(
    subject: Subject,
    *,
    radius: float,
    loss: Loss | None = None,
    normalisation: str = "none",
    exclude: str | None = POSITIONAL,
    inputs: int = 256,
    restarts: int = 3,
    steps: int = 10,
) -> Plan:
    """max over |D| = rho of E_x |T_{theta+D}(x) - T_theta(x)|^2, or of E loss(theta + D) - loss(theta) with `loss=`.

    Projected gradient ascent on the sphere, `restarts` times `steps` gradients: the first start of a loss is rho g/|g|
    as in SAM, the others are random and seeded. The direction is found on one sample of `inputs` and judged on a fresh
    one, so it cannot profit from the sample; a domain of at most `inputs` points is used whole. A gradient of norm 0
    gives a random direction, infinite entries are left out.

    Guarantee: one-sided bound. The maximum is at least `low`, a lower confidence bound (asymptotic for an unbounded
    readout or a loss, exact on a whole domain) for the witness direction, which `worst_direction` with the witness's
    `direction_seed` rebuilds. A claim `<=` that passes says only that the search found nothing above.

    `normalisation="relative"`: rho times the norm of the parameters. Raises `ArgumentError` for a readout without a
    gradient (`"sign"`, `"label"`).

    Source: Foret et al. 2021 (SAM); Hahn and Rofin 2024 (spec A.10) for the quantity it bounds from above.
    """
    search = _search(subject, radius, loss, normalisation, exclude, inputs, restarts, steps)

    def solve(options: Options, goal: Goal | None) -> Solved:
        found = search.run(options.seed, options.budget)
        return search.judged(found, options, goal)

    return Plan(solve=solve, hint="worst_direction(subject, radius=..., seed=direction_seed) rebuilds the direction")


def worst_direction(
    subject: Subject,
    *,
    radius: float,
    seed: int,
    loss: Loss | None = None,
    normalisation: str = "none",
    exclude: str | None = POSITIONAL,
    inputs: int = 256,
    restarts: int = 3,
    steps: int = 10,
) -> dict[str, torch.Tensor]:
    """Return the direction that `worst_sharpness` found with this seed, as offsets by parameter name.

    Add them to the weights to see the change. Deterministic for the same arguments. Errors as `worst_sharpness`.
    """
    search = _search(subject, radius, loss, normalisation, exclude, inputs, restarts, steps)
    with subject.steady():
        found = search.run(seed, math.inf)
    return shaped(found.offset, search.parameters)


def _search(
    subject: Subject,
    radius: float,
    loss: Loss | None,
    normalisation: str,
    exclude: str | None,
    inputs: int,
    restarts: int,
    steps: int,
) -> _Search:
    radius = require_at_least_zero("radius", radius)
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} is unknown; use one of {', '.join(NORMALISATIONS)}")
    for name, number in (("inputs", inputs), ("restarts", restarts), ("steps", steps)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ArgumentError(f"{name}={number!r} is not a positive integer")
    parameters = perturbed_parameters(subject, exclude)
    if normalisation == "relative":
        radius *= l2_norm(parameters)
    return _Search(subject, parameters, radius, loss, inputs, restarts, steps)


def ascend(
    value_and_gradient: Callable[[torch.Tensor], tuple[float, torch.Tensor]],
    start: torch.Tensor,
    radius: float,
    steps: int,
    fresh: Callable[[], torch.Tensor],
) -> tuple[float, torch.Tensor, int]:
    """Return (value, offset, overflows): the best of `steps` points of a projected ascent on the sphere of `radius`.

    Each step goes all the way to rho g/|g|, which for a quadratic is power iteration; where that is no better it is
    retried half as far from the best point, renormalised. `fresh` gives a random unit vector for a zero gradient.
    """
    best, place, slope = -math.inf, start, start
    trial, share, overflows = start, 1.0, 0
    for _ in range(steps):
        try:
            value, gradient = value_and_gradient(trial)
        except NonFiniteOutputError:
            value, gradient, overflows = -math.inf, torch.zeros_like(trial), overflows + 1
        if value > best:
            best, place, slope, share = value, trial, unit(gradient, fresh), 1.0
        elif best == -math.inf:
            trial = radius * fresh()
            continue
        else:
            share /= 2
        trial = radius * unit((1 - share) * unit(place, fresh) + share * slope, fresh)
    return best, place, overflows


def unit(vector: torch.Tensor, fresh: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return vector / |vector|; non-finite entries count as 0, and a zero vector gives a fresh random one.

    Scaled by the largest entry first, so that squares neither overflow nor vanish.
    """
    finite = torch.where(torch.isfinite(vector), vector, torch.zeros_like(vector))
    largest = finite.abs().max()
    if float(largest) == 0.0:
        return fresh()
    scaled = finite / largest
    normalised: torch.Tensor = scaled / scaled.norm()
    return normalised


@dataclass(frozen=True)
class _Found:
    offset: torch.Tensor
    value: float
    spent: int
    starts: int
    overflows: int


@dataclass(frozen=True)
class _Search:
    subject: Subject
    parameters: dict[str, torch.nn.Parameter]
    radius: float
    loss: Loss | None
    inputs: int
    restarts: int
    steps: int

    @property
    def whole(self) -> bool:
        return 0 < is_enumerable(self.subject.domain) <= self.inputs

    def run(self, seed: int, budget: float) -> _Found:
        """Ascend from every start that the budget allows, one evaluation an input and gradient."""
        products = self._products(seed)
        each = self.steps * len(products.points)
        starts = int(min(self.restarts, (budget - 2 * len(products.points)) // each)) if budget < math.inf else 0
        starts = self.restarts if budget == math.inf else starts
        if starts < 1:
            raise ArgumentError(f"budget={budget} is less than one ascent of {each} model evaluations; raise budget=")
        outcomes = []
        for k in range(starts):
            generator = generator_of(derive(seed, "start", k))

            def fresh(generator: torch.Generator = generator) -> torch.Tensor:
                noise = torch.randn(products.size, generator=generator, dtype=products.dtype).to(products.device)
                return noise.div(noise.norm())

            start = fresh()
            if k == 0 and self.loss is not None:
                start = unit(products.gradient(), fresh)
            outcomes.append(ascend(products.value_and_gradient, self.radius * start, self.radius, self.steps, fresh))
        value, offset, _ = max(outcomes, key=lambda outcome: outcome[0])
        return _Found(offset, value, products.spent, starts, sum(outcome[2] for outcome in outcomes))

    def judged(self, found: _Found, options: Options, goal: Goal | None) -> Solved:
        """Measure the direction found on fresh inputs."""
        points = self._points(derive(options.seed, "judge"))
        rows = self._changes(points, found.offset)
        value = float(rows.mean())
        low = self._lower_bound(rows, value, options.level)
        details = {
            "radius": self.radius,
            "value_on_search_inputs": found.value,
            "restarts": found.starts,
            "steps": self.steps,
            "overflows": found.overflows,
        }
        witness = Witness(direction_seed=options.seed, score=value)
        outcome = None
        if goal is not None and goal.comparison == "<=" and low <= goal.threshold - goal.tolerance:
            outcome = "pass" if value <= goal.threshold else "inconclusive"
        box = Box(value, low, math.inf)
        spent = found.spent + 2 * len(points)
        return Solved(box, len(points), spent, "search", "one-sided bound", details, witness, None, outcome)

    def _products(self, seed: int) -> Products:
        points = self._points(derive(seed, "search"))
        targets = self.subject.read(points).values if self.loss is None else None
        products = Products(self.subject, self.parameters, self.loss or _distance, points, targets=targets)
        products.spent += len(points) if self.loss is None else 0
        return products

    def _points(self, seed: int) -> torch.Tensor:
        if self.whole:
            points: torch.Tensor = self.subject.domain.exhaustive()  # type: ignore[attr-defined]  # `whole` implies it
            return points
        return self.subject.domain.sample(self.inputs, generator_of(seed))

    def _changes(self, points: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        steps = shaped(offset, self.parameters)
        moved = {name: (weight.detach() + steps[name]).to(weight.dtype) for name, weight in self.parameters.items()}
        base, after = self.subject.read(points), self.subject.read(points, moved)
        if self.loss is None:
            return squared_change(base, after, self.subject.noise)[0]
        return self.loss(after.values, points).double() - self.loss(base.values, points).double()

    def _lower_bound(self, rows: torch.Tensor, value: float, level: float) -> float:
        if self.whole:
            return value
        if rows.ndim == 0:
            return -math.inf  # a mean over the batch does not tell its spread
        if self.loss is None and math.isfinite(self.subject.diameter):
            return one_sided(rows.numpy(), (0.0, self.subject.diameter), level)
        low = value - asymptotic_half_width(float(rows.var()), len(rows), level)
        return max(0.0, low) if self.loss is None else low


def _distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    change: torch.Tensor = (outputs - targets.to(outputs.device)) ** 2
    return change if change.ndim == 1 else change.sum(1)
