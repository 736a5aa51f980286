"""Search for the worst input: everything where that is feasible, else Hypothesis and hill-climbing over single changes.

For claims about *all* inputs. A found violation is proof; that none was found is not, and the result says how many
inputs were tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
from hypothesis import strategies as st

from modelprops.domains import BooleanCube, Domain, generator_of
from modelprops.errors import ArgumentError
from modelprops.properties.tables import is_enumerable
from modelprops.seeds import derive
from modelprops.settings import seed_of
from modelprops.subject import Subject, as_subject

EXHAUSTIVE = 2**14
DEFAULT_BUDGET = 100_000
_BATCH = 256
_CLIMBERS = 4
Score = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Found:
    """The highest-scoring input of a search, minimised if it exceeds the threshold.

    `tried` counts inputs scored. `exhaustive` says that they were all inputs, so that the maximum is exact.
    """

    point: torch.Tensor
    score: float
    tried: int
    exhaustive: bool
    violates: bool


class _Stop(Exception):
    """Ends a Hypothesis run early: a violation was found or the budget is spent."""


def search(
    subject: Any,
    score: Score,
    *,
    domain: Domain | None = None,
    above: float = math.inf,
    budget: int = DEFAULT_BUDGET,
    exhaustive_up_to: int = EXHAUSTIVE,
    seed: int | None = None,
) -> Found:
    """Look for an input whose `score` is as high as possible, and stop once it exceeds `above`.

    `score` maps points (batch, ...) of the domain to (batch,) numbers. `budget`: inputs that may be scored. Guarantee:
    exact where the domain has at most `exhaustive_up_to` points (and at most `budget`), else a one-sided bound: the
    maximum is at least `Found.score`. Deterministic for a given seed.

    A violation is minimised: no single step toward the simplest input (a -1 set to +1, a token to the lowest id) keeps
    it. Source of the search: Hypothesis's targeted generation, and steepest ascent over all single changes with one
    forward pass a step.
    """
    target_subject = as_subject(subject, domain)
    if budget < 1:
        raise ArgumentError(f"budget={budget!r} is not a positive number of inputs")
    hunt = _Hunt(target_subject, score, above, budget, seed_of("search") if seed is None else seed)
    count = is_enumerable(target_subject.domain)
    with target_subject.steady():
        complete = 0 < count <= min(budget, exhaustive_up_to)
        if complete:
            hunt.everything(count)
        else:
            hunt.look()
        assert hunt.best is not None
        violates = hunt.best_score > above
        if violates:
            hunt.minimise()
    return Found(hunt.best, hunt.best_score, hunt.tried, complete, violates)


class _Hunt:
    """The best input so far and what is left of the budget."""

    def __init__(self, subject: Subject, score: Score, above: float, budget: int, root: int) -> None:
        self.domain = subject.domain
        self.score = score
        self.above = above
        self.budget = budget
        self.root = root
        self.tried = 0
        self.best: torch.Tensor | None = None
        self.best_score = -math.inf

    def everything(self, count: int) -> None:
        """Score every point; ties go to the first, the simplest."""
        for start in range(0, count, 2**12):
            rows = torch.arange(start, min(start + 2**12, count))
            points = (
                self.domain.points_of(rows) if isinstance(self.domain, BooleanCube) else self.domain.exhaustive()[rows]  # type: ignore[attr-defined]  # it is enumerable
            )
            self.rate(points)

    def rate(self, points: torch.Tensor) -> torch.Tensor:
        """Score points and keep the best."""
        scores = self.score(points).double()
        if scores.shape != (len(points),):
            raise ArgumentError(
                f"score returned shape {tuple(scores.shape)} for {len(points)} points; return one number a point"
            )
        self.tried += len(points)
        row = int(scores.argmax())
        if float(scores[row]) > self.best_score:
            self.best, self.best_score = points[row].clone(), float(scores[row])
        return scores

    @property
    def done(self) -> bool:
        """Whether a violation was found or the budget is spent."""
        return self.best_score > self.above or self.tried >= self.budget

    def look(self) -> None:
        """Alternate random starts with climbing, then let Hypothesis aim for the score, until done."""
        turn = 0
        while not self.done:
            generator = generator_of(derive(self.root, "start", turn))
            points = self.domain.sample(min(_BATCH, self.budget - self.tried), generator)
            scores = self.rate(points)
            for row in scores.topk(min(_CLIMBERS, len(points))).indices.tolist():
                if not self.done:
                    self.climb(points[row], float(scores[row]), generator)
            if not self.done and turn % 4 == 0:
                self.aim(turn)
            turn += 1

    def climb(self, point: torch.Tensor, score: float, generator: torch.Generator) -> None:
        """Steepest ascent: score all single changes in one pass and take the best, while it rises."""
        while not self.done:
            near = self.changes(point, generator)[: self.budget - self.tried]
            scores = self.rate(near)
            row = int(scores.argmax())
            if not float(scores[row]) > score:
                return
            point, score = near[row], float(scores[row])

    def changes(self, point: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """All flips on the cube; elsewhere each coordinate redrawn once."""
        if isinstance(self.domain, BooleanCube):
            return self.domain.neighbours(point[None])[0]
        redrawn = [self.domain.resample(point[None], place, generator) for place in range(self.domain.coordinates)]
        return torch.cat(redrawn)

    def aim(self, turn: int) -> None:
        """Hypothesis proposes batches and is told their best score."""
        from modelprops.strategies import inputs_of

        batches = st.lists(inputs_of(self.domain), min_size=1, max_size=8)

        @seed(derive(self.root, "aim", turn))
        # Nothing is left to the user's profile, so that the same seed searches the same inputs under any.
        @settings(
            max_examples=50,
            derandomize=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            backend="hypothesis",
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.target],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(batches)
        def propose(points: list[torch.Tensor]) -> None:
            if self.done:
                raise _Stop
            scores = self.rate(torch.stack([point.as_subclass(torch.Tensor) for point in points]))
            best = float(scores.max())
            if math.isfinite(best):
                target(best)

        try:
            propose()
        except _Stop:
            return

    def minimise(self) -> None:
        """Take single steps toward the simplest input for as long as the violation stays."""
        simpler = getattr(self.domain, "simpler", None)
        while simpler is not None and self.best is not None:
            candidates = simpler(self.best)
            if not len(candidates):
                return
            scores = self.score(candidates).double()
            self.tried += len(candidates)
            still = (scores > self.above).nonzero()[:, 0]
            if not len(still):
                return
            self.best, self.best_score = candidates[int(still[0])].clone(), float(scores[int(still[0])])
