"""Ratios of the main job against references measured in the same run.

    pytest benchmarks/bench_main.py --benchmark-only -q        # numbers
    python benchmarks/bench_main.py                            # the ratios, as a table

References: bare forward passes of the same inputs at the best batch size; a per-flip Python loop.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import modelprops as mp
from modelprops.inference.intervals import hoeffding_samples

N, INPUTS, DIRECTIONS, BATCH = 20, 200, 64, 256


class Encoder(torch.nn.Module):
    """Two layers, width 64, one score an input."""

    def __init__(self, n: int = N, width: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(2, width)
        self.positional_encoding = torch.nn.Parameter(torch.randn(n, width) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 1)

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(bits) + self.positional_encoding)[:, -1])[:, 0]


def interleaved(
    repeats: int, *, clock: Callable[[], float] = time.perf_counter, **jobs: Callable[[], object]
) -> dict[str, float]:
    """Median seconds of each job, run in turn so that a drift of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats + 1):
        for name, job in jobs.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread, so that CPU seconds are comparable whatever else the machine does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def sensitivity_ratios(repeats: int = 15) -> dict[str, float]:
    """Average sensitivity of 200 inputs at n = 20 against bare forwards at the best batch size and a per-flip loop."""
    torch.manual_seed(0)
    model = Encoder().eval()
    subject = mp.Subject(model, mp.BooleanCube(N, encoding="bits"), "sign")
    points = subject.domain.sample(INPUTS * (N + 1), torch.Generator().manual_seed(0))
    bits = (points > 0).long()

    def bare(batch: int) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                for part in bits.split(batch):
                    model(part)

        return run

    def loop() -> None:
        with torch.no_grad():
            for x in bits[:20]:
                base = model(x[None])
                for i in range(N):
                    flipped = x.clone()
                    flipped[i] = 1 - flipped[i]
                    (model(flipped[None]) - base).item()

    spent = mp.average_sensitivity(subject, exact=False, budget=INPUTS * (N + 1), width=1e-9, seed=0).evaluations

    def ours_once() -> None:
        mp.average_sensitivity(subject, exact=False, budget=INPUTS * (N + 1), width=1e-9, seed=0)

    sizes = {f"bare{b}": bare(b) for b in (128, 168, 256, 512, 1024)}
    wall = interleaved(repeats, loop=loop, ours=ours_once)
    with one_thread():
        found = interleaved(repeats, clock=time.process_time, ours=ours_once, **sizes)
    best = min(found[name] for name in sizes) / len(bits)
    return {
        "per-flip loop / ours (wall, all cores)": wall["loop"] / (20 * (N + 1)) / (wall["ours"] / spent),
        "ours / bare forwards (CPU, one thread)": found["ours"] / spent / best,
    }


def sharpness_ratio(repeats: int = 15) -> dict[str, float]:
    """64 directions at batch 256 against 65 bare forwards."""
    torch.manual_seed(0)
    model = Encoder().eval()
    subject = mp.Subject(model, mp.BooleanCube(N, encoding="bits"))
    bits = (subject.domain.sample(BATCH, torch.Generator().manual_seed(0)) > 0).long()

    def bare() -> None:
        with torch.no_grad():
            for _ in range(DIRECTIONS + 1):
                model(bits)

    def ours() -> None:
        mp.sharpness(subject, radius=0.1, budget=(DIRECTIONS + 1) * BATCH, width=1e-12, inputs=BATCH, seed=0)

    with one_thread():
        found = interleaved(repeats, clock=time.process_time, bare=bare, ours=ours)
    return {"sharpness / 65 bare forwards (CPU, one thread)": found["ours"] / found["bare"]}


def saving() -> dict[str, float]:
    """Evaluations to decide .005 against .02 (per flip), against fixed-size Hoeffding at the same confidence."""
    n = 32
    spent = []
    for seed in range(40):
        chance = torch.Generator().manual_seed(seed)

        def rare(x: torch.Tensor, chance: torch.Generator = chance) -> torch.Tensor:
            del chance
            # A conjunction of 6 of 32 bits: influence 2^-5 each on 6 coordinates, so as/n = 6/32/32 = .00586.
            return 1.0 - 2.0 * (x[:, :6] < 0).all(1).float()

        subject = mp.Subject(rare, mp.BooleanCube(n), "sign")
        verdict = mp.claim("average_sensitivity <= 0.64", tolerance=0.0).check(subject, exact=False, seed=seed)
        assert verdict.outcome == "pass"
        spent.append(verdict.estimate.samples)
    gap = 0.02 - 6 / 32 / 32
    return {"Hoeffding units / ours (median)": hoeffding_samples(gap, 0.005) / statistics.median(spent)}


def load_time() -> dict[str, float]:
    """Milliseconds to load the plugin beside pytest, median of seven processes."""
    code = "import time, pytest; t = time.perf_counter(); import modelprops.plugin; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(7)
    ]
    return {"plugin load, ms": 1000 * statistics.median(times)}


def test_average_sensitivity_ratios(benchmark: Callable[..., dict[str, float]]) -> None:
    found = benchmark.pedantic(sensitivity_ratios, rounds=1)  # type: ignore[attr-defined]
    assert found["per-flip loop / ours (wall, all cores)"] >= 14
    assert found["ours / bare forwards (CPU, one thread)"] <= 1.10


def test_sharpness_ratio(benchmark: Callable[..., dict[str, float]]) -> None:
    assert benchmark.pedantic(sharpness_ratio, rounds=1)["sharpness / 65 bare forwards (CPU, one thread)"] <= 1.05  # type: ignore[attr-defined]


def test_saving_against_hoeffding(benchmark: Callable[..., dict[str, float]]) -> None:
    assert benchmark.pedantic(saving, rounds=1)["Hoeffding units / ours (median)"] >= 8  # type: ignore[attr-defined]


if __name__ == "__main__":
    for rows in (sensitivity_ratios(), sharpness_ratio(), saving(), load_time()):
        for name, value in rows.items():
            print(f"{name:50s} {value:8.3f}")
