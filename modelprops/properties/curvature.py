"""Curvature: top eigenvalue, trace and spectral density of the Hessian, or Gauss-Newton matrix, of a batch loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError
from modelprops.estimate import Verdict
from modelprops.inference.sequential import Box
from modelprops.properties.claim import claim
from modelprops.properties.density import estimate_density
from modelprops.properties.hessian_products import (
    ATTENTION_KERNEL,
    OPERATORS,
    Products,
    in_single_precision,
    self_check,
)
from modelprops.properties.lanczos import Krylov, upper_confidence_bound
from modelprops.properties.measure import Goal, Options, Plan, Solved, measure
from modelprops.properties.perturbation import Loss, perturbed_parameters
from modelprops.properties.tables import is_enumerable
from modelprops.properties.trace import DEFLATION, ESTIMATORS, estimate_trace
from modelprops.seeds import derive
from modelprops.subject import Subject

QUANTITIES = ("top", "trace", "density")
RELATIVE_ERROR = 1e-3
"""The top eigenvalue is sought until its estimated error is this share of it, unless `width=` says otherwise."""

_RELATIVE_WIDTH = 0.1
_DENSITY_PROBES, _DENSITY_STEPS = 8, 40
_BASIS_BYTES = 2**31
_LARGEST_BASIS = 128
_FEWEST_PRODUCTS = 3


@measure(version=1)
def curvature(
    subject: Subject,
    *,
    loss: Loss,
    quantity: str = "top",
    operator: str = "hessian",
    exclude: str | None = None,
    inputs: int = 256,
    chunk: int | None = None,
    estimator: str = "hutch++",
) -> Plan:
    """Curvature of l(theta) = mean of loss(T_theta(x), x) over `inputs` points, the whole domain if it is smaller.

    `operator`: `"hessian"` H = d^2 l / d theta^2, or `"ggn"` G = J' (d^2 loss / dT^2) J, positive semidefinite for a
    convex loss. `loss`: a function of (outputs, points), torch operations on the readout's float64 values, one value
    an input or their mean. `quantity`:

    - `"top"`: the largest eigenvalue (not the largest in size), by Lanczos from a seeded start, to a relative error of
      1e-3 estimated by r^2/gap. The interval is value ± r, r = |Hy - value y| the residual norm: guarantee *residual
      bound*. For a claim the upper end is a *confidence bound* over the random start (see
      `lanczos.upper_confidence_bound`).
    - `"trace"`: `estimator="hutch++"` or `"hutchinson"`; guarantee *asymptotic*, with `standard_error` in `details`.
    - `"density"`: of the eigenvalues at the points `details["grid"]`, by stochastic Lanczos quadrature; asymptotic,
      pointwise.

    All statements are about the batch drawn with `seed`. `exclude`: a regular expression of parameter names left out;
    `"^(?!head)"` keeps only those of `head`. Frozen parameters count, tied ones once, the padding row of an
    embedding not (torch defines its gradient as 0). `chunk`: inputs differentiated
    at a time; by default all, with the graph kept between products, where that fits a GiB, else as many as fit.
    Half-precision weights are taken as stored and computed with in float32. Attention runs in the MATH kernel
    (recorded in `details`): fused kernels have no second derivative. A product of m inputs counts m evaluations.

    Every call first checks symmetry u'Hv = v'Hu and one central difference. Raises `CurvatureError` when either fails,
    `ArgumentError` for a readout without a gradient, `OutputError` for a loss of another shape.

    Source: Pearlmutter 1994 (products); Golub and Van Loan, 10.1 (residual bound); Meyer et al. 2021 (Hutch++);
    Ghorbani et al. 2019 (density).
    """
    for name, value, known in (
        ("quantity", quantity, QUANTITIES),
        ("operator", operator, OPERATORS),
        ("estimator", estimator, ESTIMATORS),
    ):
        if value not in known:
            raise ArgumentError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
    for name, number in (("inputs", inputs), ("chunk", 1 if chunk is None else chunk)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ArgumentError(f"{name}={number!r} is not a positive number of inputs")
    if not callable(loss):
        raise ArgumentError(f"loss={loss!r} is not callable; give a function of (outputs, points)")
    perturbed_parameters(subject, exclude)

    def solve(options: Options, goal: Goal | None) -> Solved:
        if quantity == "density" and goal is not None:
            raise ArgumentError("a density is a curve and has no threshold; claim quantity='top' or 'trace'")
        precise = in_single_precision(subject)
        points = _batch(subject, inputs, options.seed)
        products = Products(precise, perturbed_parameters(precise, exclude), loss, points, operator, chunk)
        return _Spectrum(products, options, goal).solve(quantity, estimator)

    return Plan(solve=solve, hint="the eigenvalue belongs to the batch drawn with this seed; see curvature's docstring")


def assert_bounded_curvature(
    subject: Any,
    at_most: float,
    *,
    loss: Loss,
    tolerance: float | None = None,
    operator: str = "hessian",
    exclude: str | None = None,
    inputs: int = 256,
    chunk: int | None = None,
    **options: Any,
) -> Verdict:
    """Require that the largest eigenvalue of the batch's Hessian (or Gauss-Newton matrix) is <= `at_most`.

    A fail rests on a Rayleigh quotient, which never exceeds the eigenvalue; a pass on a bound that holds with the
    asked confidence over the random start. Returns the `Verdict`; raises `PropertyViolation`, `Inconclusive`,
    `CurvatureError`. `options`: domain, confidence, budget, seed. See `curvature`.
    """
    __tracebackhide__ = True
    changed = {
        "operator": (operator, "hessian"),
        "exclude": (exclude, None),
        "inputs": (inputs, 256),
        "chunk": (chunk, None),
    }
    parameters = {name: value for name, (value, default) in changed.items() if value != default}
    return claim(curvature, "<=", at_most, tolerance=tolerance, loss=loss, **parameters).require(subject, **options)


def _batch(subject: Subject, inputs: int, seed: int) -> torch.Tensor:
    if 0 < is_enumerable(subject.domain) <= inputs:
        return subject.domain.exhaustive()  # type: ignore[attr-defined, no-any-return]  # enumerable implies it
    return subject.domain.sample(inputs, generator_of(derive(seed, "inputs")))


@dataclass
class _Spectrum:
    """One solve: the products, what is asked of them, and what the self-check found."""

    products: Products
    options: Options
    goal: Goal | None

    def solve(self, quantity: str, estimator: str) -> Solved:
        self.checks = self_check(self.products, (self._random("check", 0), self._random("check", 1)))
        left = (self.options.budget - self.products.spent) // len(self.products.points)
        if left < _FEWEST_PRODUCTS:
            raise ArgumentError(
                f"budget={self.options.budget} is less than {_FEWEST_PRODUCTS} products of "
                f"{len(self.products.points)} inputs after a self-check; raise budget= or lower inputs="
            )
        if quantity == "top":
            return self._top(left)
        return self._trace(left, estimator) if quantity == "trace" else self._density(left)

    def _top(self, left: int) -> Solved:
        krylov = self._krylov("start", 0)
        bound, steps = float("inf"), 0
        while True:
            krylov.step()
            steps += 1
            ritz = krylov.ritz()
            if steps == krylov.steps:  # the bound speaks of a random start, not of a restart
                peek = self.options.level / (2 * _LARGEST_BASIS)
                bound = min(bound, upper_confidence_bound(ritz, krylov.steps, self.products.size, peek))
            residual = 0.0 if krylov.exhausted else ritz.residual
            if krylov.exhausted:
                bound = ritz.top
            box = self._top_box(ritz.top, residual, bound)
            error = min(ritz.error, residual)
            if krylov.exhausted or steps >= left or self._top_is_enough(box, error, residual):
                break
            if krylov.full:
                if self.goal is not None:
                    break
                krylov = self._krylov(krylov.vector(ritz.vectors[:, -1]))
        found = {
            "residual": residual,
            "error_estimate": error,
            "smallest_ritz_value": float(ritz.values[0]),
            "upper_confidence_bound": bound,
            "products": steps,
            "asymmetry": krylov.asymmetry,
        }
        return self._solved(box, steps, "residual bound" if self.goal is None else "confidence bound", found)

    def _top_box(self, top: float, residual: float, bound: float) -> Box:
        if self.goal is None:
            return Box(top, top - residual, top + residual)
        rounding = 100 * torch.finfo(self.products.dtype).eps * abs(top)
        return Box(top, top - rounding, max(bound, top + rounding))

    def _top_is_enough(self, box: Box, error: float, residual: float) -> bool:
        if self.goal is not None:
            return self.goal.outcome(box) != "inconclusive"
        if self.options.width is not None:
            return 2 * residual <= self.options.width
        return error <= RELATIVE_ERROR * abs(float(box.value))

    def _trace(self, left: int, estimator: str) -> Solved:
        krylov = self._krylov("start", 0)
        deflate = DEFLATION if estimator == "hutch++" else 0
        found = estimate_trace(
            krylov, deflate, left, self.options.level, derive(self.options.seed, "trace"), self._trace_is_enough
        )
        details = {
            "standard_error": found.standard_error,
            "deflated_trace": found.deflated,
            "products": krylov.steps + found.probes,
            "estimator": estimator,
            "asymmetry": krylov.asymmetry,
        }
        return self._solved(found.box, found.probes, "asymptotic", details)

    def _trace_is_enough(self, box: Box) -> bool:
        if self.goal is not None:
            return self.goal.outcome(box) != "inconclusive"
        width = self.options.width
        wanted = _RELATIVE_WIDTH * abs(float(box.value)) if width is None else width
        return float(box.high) - float(box.low) <= wanted

    def _density(self, left: int) -> Solved:
        steps = max(2, min(_DENSITY_STEPS, left // _DENSITY_PROBES))
        probes, spent = [], 0
        for k in range(min(_DENSITY_PROBES, left // steps)):
            krylov = self._krylov("probe", k, capacity=steps)
            while not krylov.full:
                krylov.step()
            spent += krylov.steps
            probes.append(krylov.ritz())
        found = estimate_density(probes, self.options.level)
        details = {"grid": found.grid.tolist(), "broadening": found.broadening, "products": spent}
        return self._solved(found.box, len(probes), "asymptotic", details)

    def _krylov(self, start: str | torch.Tensor, index: int = 0, capacity: int | None = None) -> Krylov:
        vector = self._random(start, index) if isinstance(start, str) else start
        fits = _BASIS_BYTES // (vector.numel() * vector.element_size())
        tolerance = 1e-8 if vector.dtype == torch.float64 else 1e-3
        return Krylov(self.products.product, vector, capacity or max(8, min(_LARGEST_BASIS, fits)), tolerance)

    def _random(self, name: str, index: int) -> torch.Tensor:
        generator = generator_of(derive(self.options.seed, name, index))
        products = self.products
        return torch.randn(products.size, generator=generator, dtype=products.dtype).to(products.device)

    def _solved(self, box: Box, samples: int, guarantee: str, found: Mapping[str, Any]) -> Solved:
        products = self.products
        details = {
            **found,
            "attention_kernel": ATTENTION_KERNEL,
            "operator": products.operator,
            "parameters": products.size,
            "inputs": len(products.points),
            "chunk": products.chunk,
            "dtype": str(products.dtype).removeprefix("torch."),
            **self.checks,
        }
        method = "fixed" if self.goal is None else "sequential"
        return Solved(box, samples, products.spent, method, guarantee, details)
