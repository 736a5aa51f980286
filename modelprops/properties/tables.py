"""A subject's values at every point of an enumerable product domain: the ground of every exact form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from modelprops.domains import EXHAUSTIVE_LIMIT, BooleanCube, Domain
from modelprops.estimate import Array, Witness
from modelprops.subject import Subject

_ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class Table:
    """Values (points, outputs) at `domain.exhaustive()`, coordinate 0 running fastest over its `levels`.

    `ties` marks points whose thresholded value is within rounding noise of the other one.
    """

    subject: Subject
    levels: tuple[int, ...]
    values: Array
    ties: np.ndarray[tuple[int], np.dtype[np.bool_]]

    @property
    def tie_share(self) -> float:
        """Share of the points that are ties."""
        return float(self.ties.mean()) if len(self.ties) else 0.0

    def grid(self) -> Array:
        """Values of shape (levels of the last coordinate, ..., levels of coordinate 0, outputs)."""
        return self.values.reshape(*reversed(self.levels), -1)

    def variance(self) -> float:
        """Var f, summed over outputs."""
        return float(self.values.var(axis=0).sum())

    def second_moment(self) -> float:
        """E |f|^2."""
        return float((self.values**2).sum(axis=1).mean())

    def local_sensitivity(self) -> Array:
        """s(f, x) at every point; its mean is the average sensitivity.

        sum_i of 1/2 E |f(x) - f(x^(i))|^2 over the resampled coordinate, which on the cube is 1/4 |f(x) - f(x^i)|^2.
        """
        return self.coordinate_changes(reduce=True)

    def coordinate_changes(self, *, reduce: bool = False) -> Array:
        """(coordinates, points): the expected half squared change when one coordinate is redrawn; or their sum."""
        grid = self.grid()
        tied = self.ties.reshape(*reversed(self.levels), 1)
        count = len(self.levels)
        total = np.zeros(grid.shape[:-1])
        rows = []
        for coordinate in range(count):
            axis = count - 1 - coordinate
            if not self.ties.any():
                mean = grid.mean(axis=axis, keepdims=True)
                square = (grid**2).mean(axis=axis, keepdims=True)
                change = ((grid**2 - 2 * grid * mean + square) / 2).sum(-1)
                change = np.maximum(change, 0.0)
            else:
                change = np.zeros(grid.shape[:-1])
                for step in range(1, self.levels[coordinate]):
                    other, close = np.roll(grid, step, axis), np.roll(tied, step, axis) | tied
                    change += (np.where(close, 0.0, (grid - other) ** 2)).sum(-1) / 2 / self.levels[coordinate]
            if reduce:
                total += change
            else:
                rows.append(change.reshape(-1))
        return total.reshape(-1) if reduce else np.stack(rows)

    def smoothed(self, rho: float) -> Array:
        """T_rho f at every point: each coordinate kept with probability rho, else averaged over (rho < 0: negated)."""
        grid = self.grid()
        for axis in range(len(self.levels)):
            grid = rho * grid + (1 - rho) * grid.mean(axis=axis, keepdims=True)
        return grid.reshape(self.values.shape)

    def witness(self, row: int, score: float) -> Witness:
        """The point of a row, with the coordinate whose redrawing changes it most."""
        point = points_at(self.subject.domain, torch.tensor([row]))[0]
        return Witness(point, int(self._changes_at(row).argmax()), score=score)

    def _changes_at(self, row: int) -> Array:
        place = np.unravel_index(row, tuple(reversed(self.levels)))
        grid, tied = self.grid(), self.ties.reshape(tuple(reversed(self.levels)))
        changes = []
        for coordinate in range(len(self.levels)):
            axis = len(self.levels) - 1 - coordinate
            line: tuple[Any, ...] = (*place[:axis], slice(None), *place[axis + 1 :])
            close = tied[line] | tied[place]
            changes.append(float(np.where(close[:, None], 0.0, (grid[line] - grid[place]) ** 2).sum()))
        return np.array(changes)


def is_enumerable(domain: object) -> int:
    """Return how many points an enumerable domain has, 0 if it has none or too many."""
    levels = getattr(domain, "levels", None)
    if not levels or not hasattr(domain, "exhaustive"):
        return 0
    count = math.prod(levels)
    return count if count <= EXHAUSTIVE_LIMIT else 0


def points_at(domain: Domain, rows: torch.Tensor) -> torch.Tensor:
    """Return the points of `exhaustive()` with the given row numbers, on the cube without building the rest."""
    if isinstance(domain, BooleanCube):
        return domain.points_of(rows)
    points: torch.Tensor = domain.exhaustive()[rows]  # type: ignore[attr-defined]  # callers checked `is_enumerable`
    return points


def all_points(domain: Domain) -> Iterator[torch.Tensor]:
    """Yield all points of an enumerable domain in blocks, in the order of `exhaustive()`."""
    count = is_enumerable(domain)
    for start in range(0, count, _ROWS_AT_ONCE):
        yield points_at(domain, torch.arange(start, min(start + _ROWS_AT_ONCE, count)))


def table_of(subject: Subject) -> Table:
    """Evaluate a subject at every point of its domain."""
    levels: tuple[int, ...] = subject.domain.levels  # type: ignore[attr-defined]  # callers checked `is_enumerable`
    values, ties = [], []
    for points in all_points(subject.domain):
        reading = subject.read(points)
        values.append(reading.values.view(len(points), -1).numpy())
        if reading.margin is None:
            ties.append(np.zeros(len(points), dtype=bool))
        else:
            ties.append((reading.margin.view(len(points), -1) < subject.noise).any(1).numpy())
    return Table(subject, levels, np.concatenate(values), np.concatenate(ties))
