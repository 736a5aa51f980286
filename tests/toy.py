"""A measure that costs microseconds, so that gates can be simulated by the thousand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from modelprops.estimate import Estimate
from modelprops.inference.sequential import Chunk, Design, Sample, bounds, chunks
from modelprops.measurement import Measurement
from modelprops.properties.measure import Options, Plan


def design(shift: float = 0.0, noise: float = 0.02, changed: float = 0.2) -> Design:
    """Units in [0, 1] with mean 1/4 and deviation 1/4 for the old checkpoint; the new one differs in a fifth of them.

    The mean of new - old is `shift`: the changed units move by shift/changed on average.
    """

    def draw(seed: int, size: int) -> Chunk:
        rng = np.random.default_rng(seed)
        old = 0.03 + 0.74 * rng.beta(0.3, 0.7, size)
        moved = rng.random(size) < changed
        step = np.where(moved, shift / changed + noise * rng.uniform(-1, 1, size), 0.0)
        return Chunk((old + (step if shift or noise else 0.0))[:, None], size)

    return Design(draw, ((0.0, 1.0),), 1)


def measurement(
    seed: int,
    shift: float = 0.0,
    noise: float = 0.0,
    units: int = 2_000,
    name: str = "toy",
    *,
    with_interval: bool = False,
) -> Measurement:
    """A stored measurement of the toy on `units` units."""
    sample = Sample(list(chunks(design(shift, noise), seed, units)))
    value, low, high = float(sample.values.mean()), 0.0, 1.0
    if with_interval:
        box = bounds(design(), sample, 0.01)
        low, high = float(box.low), float(box.high)
    estimate = Estimate(name, value, low, high, 0.99, sample.units, units, "fixed", seed, 0.0)
    return Measurement(
        test=f"test_{name}",
        measure=name,
        version=1,
        parameters={},
        opaque=(),
        subject={"name": "toy", "fixture": True, "dtype": None, "kernel": None, "fingerprint": None},
        domain="BooleanCube(n=4)",
        coordinates=4,
        readout="raw",
        sizes=tuple(len(chunk.values) for chunk in sample.chunks),
        limits=(0.0, 1.0),
        estimate=estimate,
        units=sample.values,
    )


def plan(shift: float = 0.0, noise: float = 0.02) -> Plan:
    """The plan of the new checkpoint."""
    return Plan(design=design(shift, noise))


def options(seed: int, confidence: float = 0.99, budget: int = 1_000_000) -> Options:
    """Options as a gate has them."""
    return Options(confidence, budget, budget, seed, None, False)


def without_units(measurement: Measurement) -> Measurement:
    """The same as if its units had been too many to store."""
    return replace(measurement, units=None)
