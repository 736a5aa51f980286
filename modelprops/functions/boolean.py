"""A Boolean function as a torch module that knows its own exact answers."""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import numpy as np
import torch

from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.functions.walsh import level_weights as weights_by_level
from modelprops.functions.walsh import walsh_hadamard

LARGEST_TABLE = 20
_ROWS_AT_ONCE = 2**15
Rule = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Answers:
    """What is known in closed form; what is None follows from the level weights, or from enumeration (n <= 20)."""

    level_weights: Callable[[], Array] | None = None
    influences: Callable[[], Array] | None = None
    average_sensitivity: Callable[[], float] | None = None
    noise_stability: Callable[[float], float] | None = None


def whole(value: object, name: str, least: int = 1) -> int:
    """Return `value` as an int of at least `least` (numpy integers count), or raise `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ArgumentError(f"{name}={value!r} is not a whole number of at least {least}; give one")
    return operator.index(value)


def real(value: object, name: str) -> float:
    """Return `value` as a float, or raise `ArgumentError` for NaN and what is no real number."""
    if not isinstance(value, numbers.Real) or math.isnan(value):
        raise ArgumentError(f"{name}={value!r} is not a real number; give one")
    return float(value)


class BooleanFunction(torch.nn.Module):
    """f: {-1, +1}^n -> [-1, 1], evaluated on points (batch, n) of any dtype; returns float64 (batch,).

    The answers are exact: closed forms where they are known, else by enumeration, which needs n <= 20
    (`ArgumentError` above). `repr` is the expression that builds the function.
    """

    range = (-1.0, 1.0)

    def __init__(self, expression: str, n: int, rule: Rule, answers: Answers | None = None) -> None:
        super().__init__()
        self.n = whole(n, "n")
        self._expression = expression
        self._rule = rule
        self._answers = answers or Answers()

    def __repr__(self) -> str:
        return f"modelprops.functions.{self._expression}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis would show the call of the strategy's internals.
        printer.text(repr(self))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Evaluate at ±1 points of shape (batch, n). Integer points are checked, so that 0/1 bits are refused."""
        if not isinstance(points, torch.Tensor):
            raise ArgumentError(f"{self._short()} takes a torch tensor, not {type(points).__name__}")
        if points.ndim != 2 or points.shape[1] != self.n:
            raise ArgumentError(f"{self._short()} takes points (batch, {self.n}), not shape {tuple(points.shape)}")
        if not points.is_floating_point() and bool(((points != 1) & (points != -1)).any()):
            raise ArgumentError(f"{self._short()} takes points of -1 and +1; turn bits b in 0/1 into 2 * b - 1")
        return self._rule(points.double()).double()

    def _short(self) -> str:
        return self._expression if len(self._expression) <= 60 else f"{self._expression[:57]}..."

    def table(self) -> Array:
        """All 2^n values; in row r coordinate i is -1 where bit i of r is set."""
        if self.n > LARGEST_TABLE:
            raise ArgumentError(
                f"{self._short()} has no closed form for this, and n={self.n} is above {LARGEST_TABLE}, too many to "
                "enumerate; measure it by sampling"
            )
        values = np.empty(2**self.n)
        for start in range(0, len(values), _ROWS_AT_ONCE):
            rows = torch.arange(start, min(start + _ROWS_AT_ONCE, len(values)))
            points = 1.0 - 2.0 * ((rows[:, None] >> torch.arange(self.n)) & 1).double()
            values[start : start + len(rows)] = self(points).numpy()
        return values

    def level_weights(self) -> Array:
        """W^0..W^n: the squared Walsh coefficients by degree."""
        if self._answers.level_weights is not None:
            return self._answers.level_weights()
        return weights_by_level(walsh_hadamard(self.table()))

    def influences(self) -> Array:
        """Inf_i = E (f(x) - f(x^i))^2 / 4 for every coordinate: for ±1 functions P(flip i changes f)."""
        if self._answers.influences is not None:
            return self._answers.influences()
        table = self.table()
        rows = np.arange(len(table))
        return np.array([float(((table - table[rows ^ (1 << i)]) ** 2).mean()) / 4 for i in range(self.n)])

    def average_sensitivity(self) -> float:
        """as(f) = sum_i Inf_i = sum_j j W^j."""
        if self._answers.average_sensitivity is not None:
            return self._answers.average_sensitivity()
        if self._answers.influences is not None or self._answers.level_weights is None:
            return float(self.influences().sum())
        return float(self.level_weights() @ np.arange(self.n + 1))

    def noise_stability(self, rho: float) -> float:
        """Stab_rho(f) = sum_j rho^j W^j."""
        rho = real(rho, "rho")
        if not -1 <= rho <= 1:
            raise ArgumentError(f"rho={rho!r} is not a correlation; give a number in [-1, 1]")
        if self._answers.noise_stability is not None:
            return self._answers.noise_stability(rho)
        return float(self.level_weights() @ np.power(rho, np.arange(self.n + 1)))


class Family:
    """Functions of one kind for every length: `family(n)` is the module, `family.average_sensitivity(n)` an answer."""

    def __init__(self, make: Callable[..., BooleanFunction]) -> None:
        update_wrapper(self, make)
        self._make = make
        self._signature = inspect.signature(make)

    def __call__(self, *size: Any, **parameters: Any) -> BooleanFunction:
        try:
            self._signature.bind(*size, **parameters)
        except TypeError as error:
            raise ArgumentError(f"{self._make.__name__}: {error}; it takes {self._signature}") from None
        return self._make(*size, **parameters)

    def __repr__(self) -> str:
        return f"<family {self._make.__name__}>"

    def average_sensitivity(self, *size: Any, **parameters: Any) -> float:
        """Average sensitivity of the member of this size."""
        return self(*size, **parameters).average_sensitivity()

    def influences(self, *size: Any, **parameters: Any) -> Array:
        """Influences of the member of this size."""
        return self(*size, **parameters).influences()

    def noise_stability(self, *size_and_rho: Any, rho: float | None = None, **parameters: Any) -> float:
        """Noise stability: `family.noise_stability(n, rho)` or `family.noise_stability(n, rho=rho)`."""
        size = size_and_rho
        if rho is None:
            if not size:
                raise ArgumentError("noise_stability needs rho, as in parity.noise_stability(12, 0.9)")
            *rest, rho = size
            size = tuple(rest)
        return self(*size, **parameters).noise_stability(rho)

    def level_weights(self, *size: Any, **parameters: Any) -> Array:
        """Level weights of the member of this size."""
        return self(*size, **parameters).level_weights()
