"""Search against random search: planted bugs and rare bugs with a margin.

    python benchmarks/bench_search.py        # prints both; random search is simulated input by input, up to a cap

A planted bug is a model that is right except where k <= 6 given bits stand (n = 16..64). A rare bug needs k = 16 bits,
and the correct margin shrinks with every matched bit, which only a guided search can use.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch

import modelprops as mp

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "properties"))
from planted import Planted, pattern

CAP = 2_000_000


def guided(model: Planted, seed: int) -> tuple[int, bool, bool]:
    """Evaluations spent, whether the bug was found, whether the counterexample is minimal."""
    try:
        verdict = mp.assert_agrees(model, model.right, domain=mp.BooleanCube(model.n), seed=seed)
    except mp.PropertyViolation as violation:
        point = violation.verdict.witness.point
        nearer = mp.BooleanCube(model.n).simpler(point)
        minimal = not bool((torch.sign(model(nearer)) != model.right(nearer)).any())
        return violation.verdict.estimate.evaluations, True, minimal
    return verdict.estimate.evaluations, False, False


def random_search(model: Planted, seed: int) -> int:
    """How many uniform inputs pass until one is wrong; `CAP` if none of that many is."""
    generator = torch.Generator().manual_seed(seed)
    domain = mp.BooleanCube(model.n)
    for start in range(0, CAP, 10_000):
        points = domain.sample(10_000, generator)
        wrong = (torch.sign(model(points)) != model.right(points)).nonzero()
        if len(wrong):
            return start + int(wrong[0]) + 1
    return CAP


def report(name: str, models: list[Planted]) -> None:
    """Print one line for 20 bugs."""
    found = [guided(model, seed) for seed, model in enumerate(models)]
    uniform = [random_search(model, seed) for seed, model in enumerate(models)]
    median, random_median = statistics.median(row[0] for row in found), statistics.median(uniform)
    print(
        f"{name}: found {sum(row[1] for row in found)} of {len(models)}, minimal {sum(row[2] for row in found)}; "
        f"median evaluations {median:,.0f} (with minimising), random search {random_median:,.0f} (without), "
        f"ratio {random_median / median:.1f}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    report("planted bugs, k = 1..6 bits", [pattern(16 + 48 * seed // 19, 1 + seed % 6, seed) for seed in range(20)])
    report("rare bugs, k = 16 bits", [pattern(64, 16, seed, slope=0.05) for seed in range(20)])
