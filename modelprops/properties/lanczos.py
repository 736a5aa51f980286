"""Lanczos tridiagonalisation of a symmetric operator known by its products, with full reorthogonalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal

from modelprops.errors import CurvatureError
from modelprops.estimate import Array

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Ritz:
    """Eigenpairs of the tridiagonal matrix T = Q'HQ, ascending, and the residual norms |Hy - theta y|."""

    values: Array
    vectors: Array
    residuals: Array

    @property
    def top(self) -> float:
        """The largest Ritz value: never above the largest eigenvalue."""
        return float(self.values[-1])

    @property
    def residual(self) -> float:
        """Residual norm r of the largest: an eigenvalue lies within r of it."""
        return float(self.residuals[-1])

    @property
    def error(self) -> float:
        """min(r, r^2 / gap): how far the eigenvalue is, the gap to the rest of the spectrum read off Ritz values."""
        if len(self.values) < 2:
            return self.residual
        gap = self.top - float(self.values[-2]) - float(self.residuals[-2])
        return min(self.residual, self.residual**2 / gap) if gap > 0 else self.residual


@dataclass
class Krylov:
    """An orthonormal basis Q of span(b, Hb, H^2 b, ...), grown a product at a time.

    `tolerance` bounds the asymmetry |Q'HQ - T| relative to |Hq| that rounding explains; a larger one is a
    `CurvatureError`, because then there are no real eigenvalues to speak of.
    """

    product: Product
    start: torch.Tensor
    capacity: int
    tolerance: float
    diagonal: list[float] = field(default_factory=list)
    off_diagonal: list[float] = field(default_factory=list)
    asymmetry: float = 0.0
    exhausted: bool = False
    _basis: torch.Tensor = field(init=False, repr=False)
    _next: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.capacity = min(self.capacity, len(self.start))
        self._basis = torch.empty((self.capacity, len(self.start)), dtype=self.start.dtype, device=self.start.device)
        self._next = self.start / self.start.norm()

    @property
    def steps(self) -> int:
        """How many products were spent."""
        return len(self.diagonal)

    @property
    def full(self) -> bool:
        """Whether no further step is possible: an invariant subspace was found, or the capacity is used up."""
        return self.exhausted or self.steps >= self.capacity

    @property
    def basis(self) -> torch.Tensor:
        """Q, shape (steps, p)."""
        return self._basis[: self.steps]

    def step(self) -> None:
        """Spend one product on one more basis vector."""
        vector = self._next
        self._basis[self.steps] = vector
        image = self.product(vector)
        size = float(image.norm())
        coefficients = self._basis[: self.steps + 1] @ image
        expected = torch.zeros_like(coefficients)
        expected[-1] = coefficients[-1]
        if self.off_diagonal:
            expected[-2] = self.off_diagonal[-1]
        if size > 0:
            self.asymmetry = max(self.asymmetry, float((coefficients - expected).norm()) / self._scale(size))
        if self.asymmetry > self.tolerance:
            raise CurvatureError(
                f"the products are not symmetric: q'Hv and v'Hq differ by {self.asymmetry:.3g} of |Hv| (allowed "
                f"{self.tolerance:.0e}), so a second derivative is wrong. Exclude layers with exclude= to find which"
            )
        self.diagonal.append(float(coefficients[-1]))
        basis = self.basis
        image = image - basis.T @ coefficients
        image = image - basis.T @ (basis @ image)
        length = float(image.norm())
        self.off_diagonal.append(length)
        if length <= 10 * torch.finfo(image.dtype).eps * self._scale(size):
            self.off_diagonal[-1] = 0.0
            self.exhausted = True
        else:
            self._next = image / length

    def ritz(self) -> Ritz:
        """Return the eigenpairs of T with their residuals |beta s_last|."""
        values, vectors = eigh_tridiagonal(np.array(self.diagonal), np.array(self.off_diagonal[:-1]))
        return Ritz(values, vectors, np.abs(self.off_diagonal[-1] * vectors[-1]))

    def vector(self, coefficients: Array) -> torch.Tensor:
        """Return the vector of the space with these coefficients."""
        return self.basis.T @ torch.as_tensor(coefficients, dtype=self.start.dtype, device=self.start.device)

    def _scale(self, size: float) -> float:
        return max([size, *map(abs, self.diagonal), *self.off_diagonal])


def upper_confidence_bound(ritz: Ritz, steps: int, size: int, level: float) -> float:
    """Return a bound that the largest eigenvalue exceeds with probability at most `level` over the random start.

    After k steps from a uniform start, P(lambda_1 - theta_1 > e (lambda_1 - lambda_p)) <= 1.648 sqrt(p)
    exp(-sqrt(e) (2k - 1)), and alike at the other end; both together bound the spread by the Ritz values'. In exact
    arithmetic, to which full reorthogonalisation comes near. Source: Kuczynski and Wozniakowski, SIAM J. Matrix Anal.
    Appl. 13 (1992), theorem 4.2, applied to H - lambda_p I and lambda_1 I - H.
    """
    if steps >= size:
        return ritz.top
    share = (math.log(1.648 * math.sqrt(size) / (level / 2)) / (2 * steps - 1)) ** 2
    if share >= 0.5:
        return math.inf
    return ritz.top + share / (1 - 2 * share) * (ritz.top - float(ritz.values[0]))
