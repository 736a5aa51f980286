"""Models with a planted bug, for the search and its benchmark."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Planted:
    """MAJORITY (ties +1) that is wrong exactly where `signs` stands at `places`.

    With `slope` > 0 the correct margin shrinks by `slope` with every bit of the pattern that is matched.
    """

    n: int
    places: tuple[int, ...]
    signs: tuple[int, ...]
    slope: float = 0.0

    def right(self, points: torch.Tensor) -> torch.Tensor:
        """What the model should say, ±1."""
        return torch.where(points.float().sum(1) >= 0, 1.0, -1.0)

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """The score, whose sign is wrong at the pattern."""
        matched = (points[:, list(self.places)] == torch.tensor(self.signs, dtype=points.dtype)).sum(1)
        margin = 1 - self.slope * matched.float()
        return self.right(points) * torch.where(matched == len(self.places), -0.1, margin.clamp_min(0.05))


def pattern(n: int, k: int, seed: int, slope: float = 0.0) -> Planted:
    """A random pattern of k bits among n."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(n, generator=generator)[:k].tolist()
    signs = (1 - 2 * torch.randint(0, 2, (k,), generator=generator)).tolist()
    return Planted(n, tuple(places), tuple(signs), slope)
