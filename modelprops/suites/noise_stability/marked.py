"""How many positions carry a share of the influence, certified from inputs with one random neighbour each.

Redraw a uniform position J of an input X and *mark* the pair with probability change/(greatest change). Then
P(marked, J = j) is proportional to Inf_j: positions of marked pairs are independent draws from the distribution of the
influence over positions. How many it takes to hold 90% is then a question about binomials, which needs far fewer inputs
than an interval for each position. For a Boolean-valued f marked pairs are those where f changes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import special, stats

import modelprops as mp
from modelprops.domains import generator_of
from modelprops.errors import ArgumentError
from modelprops.inference.sequential import collect
from modelprops.properties.sensitivity import sensitivities
from modelprops.seeds import derive
from modelprops.subject import Subject

Counts = np.ndarray[Any, np.dtype[np.int64]]


def marked_positions(subject: Subject, *, budget: int, seed: int, level: float) -> Counts:
    """Marked pairs by position, from the pairs that `average_sensitivity(neighbours=1)` draws with this seed."""
    plan = mp.average_sensitivity.planned(subject, {"neighbours": 1})
    assert plan.design is not None
    sample, _ = collect(plan.design, width=1e-9, level=level, budget=budget, seed=seed)
    coins = generator_of(derive(seed, "marks"))
    counts = torch.zeros(subject.domain.coordinates, dtype=torch.int64)
    for index, chunk in enumerate(sample.chunks):
        generator = generator_of(derive(seed, index))
        points = subject.domain.sample(len(chunk.values), generator)
        change, places, _, _ = sensitivities(subject, points, generator, 1)
        marked = torch.rand(len(points), generator=coins, dtype=torch.float64) < change[:, 0] / (subject.diameter / 2)
        counts += torch.bincount(places[marked, 0], minlength=len(counts))
    found: Counts = counts.numpy()
    return found


def junta_bounds(counts: Counts, mass: float, level: float) -> tuple[int, int]:
    """Least and greatest number of positions that hold `mass` of the influence, wrong with probability <= `level`.

    Size k is ruled out as too small where the k fullest positions hold so few of the marked pairs that a set with
    P(S) >= mass, wherever it is, would hold more; it is certified as enough where they hold so many that none of the
    C(n, k) sets with P(S) < mass would. Sizes are tested in order until one is not rejected, half the level a side.
    Confidence bound. Raises `ArgumentError` for a mass outside (0, 1).
    """
    if not 0 < mass < 1:
        raise ArgumentError(f"mass={mass!r} is not a share strictly between 0 and 1")
    total, positions = int(counts.sum()), len(counts)
    fullest = np.cumsum(np.sort(counts)[::-1])
    allowed = math.log(level / 2)
    least = greatest = None
    for size in range(1, positions):
        if least is None and stats.binom.logcdf(fullest[size - 1], total, mass) > allowed:
            least = size
        larger = positions - size
        sets = special.gammaln(positions + 1) - special.gammaln(size + 1) - special.gammaln(larger + 1)
        if greatest is None and sets + stats.binom.logsf(fullest[larger - 1] - 1, total, mass) > allowed:
            greatest = larger + 1
    return least or positions, greatest or 1
