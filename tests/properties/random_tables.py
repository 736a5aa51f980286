"""Random functions given by tables, and slow definitions to compare with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import modelprops as mp


def looked_up(table: np.ndarray, n: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function whose value at a point is `table[row]`, bit i of the row set where x_i = -1."""
    values = torch.from_numpy(table).double()
    weights = 2 ** torch.arange(n)
    return lambda x: values[((x < 0).long() * weights).sum(1)]


def random_subject(n: int, seed: int, real: bool = False) -> tuple[mp.Subject, np.ndarray]:
    """A random ±1 (or standard normal) function of n bits, and its table."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=2**n) if real else rng.choice([-1.0, 1.0], size=2**n)
    return mp.Subject(looked_up(table, n), mp.BooleanCube(n), None if real else "sign", name="table"), table


def slow_sensitivities(table: np.ndarray) -> np.ndarray:
    """1/4 sum_i (f(x) - f(x^i))^2 at every row, flip by flip."""
    n = len(table).bit_length() - 1
    rows = np.arange(len(table))
    return sum(((table - table[rows ^ (1 << i)]) ** 2 / 4 for i in range(n)), np.zeros(len(table)))


def slow_influences(table: np.ndarray) -> np.ndarray:
    """1/4 E (f(x) - f(x^i))^2 for each i."""
    n = len(table).bit_length() - 1
    rows = np.arange(len(table))
    return np.array([((table - table[rows ^ (1 << i)]) ** 2).mean() / 4 for i in range(n)])
