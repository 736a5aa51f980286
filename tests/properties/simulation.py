"""Vectorised simulation of sampled intervals: many repeats of a measure's own design on an enumerated subject."""

from __future__ import annotations

import numpy as np

from modelprops.inference.sequential import Box, Chunk, Design, Sample, bounds
from modelprops.properties.measure import Plan


def boxes(plan: Plan, *, repeats: int, chunks: int, size: int, level: float) -> list[Box]:
    """Boxes of `repeats` samples of `chunks` chunks each, all cut from one long draw, whose units are independent."""
    design: Design = plan.design  # type: ignore[assignment]  # the caller gives a sampled plan
    values = design.draw(1, repeats * chunks * size).values.reshape(repeats, chunks, size, -1)
    return [bounds(design, Sample([Chunk(part, size) for part in one]), level) for one in values]


def coverage(found: list[Box], truth: object) -> float:
    """Share of the boxes that hold the truth in every component."""
    exact = np.asarray(truth, dtype=np.float64)
    held = [bool(np.all((np.asarray(b.low) <= exact + 1e-9) & (exact <= np.asarray(b.high) + 1e-9))) for b in found]
    return float(np.mean(held))
