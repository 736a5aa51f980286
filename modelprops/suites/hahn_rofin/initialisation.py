"""Random Transformers compute insensitive functions: average sensitivity and its profile at initialisation.

The function is sign(T(x) - median of T), so that it is balanced; everything is exact on the cube, and means over models
carry intervals. A uniformly random Boolean function has as_n/n = 1/2 and PARITY 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import modelprops as mp
from modelprops.seeds import derive
from modelprops.suites.findings import NOT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import mean_interval, shown
from modelprops.suites.hahn_rofin.theory_checks import to_bits
from modelprops.theory.transformer import EncoderTransformer

TITLE = "At initialisation"
LIMIT = 0.4
"""Spec E: mean as_n/n stays below this at the largest length (random functions: 0.5)."""


@dataclass(frozen=True)
class Family:
    """A way to draw a random model: `fill` overwrites every parameter, None keeps PyTorch's defaults."""

    name: str
    d_model: int
    layers: int
    fill: Callable[[torch.Tensor], torch.Tensor] | None = None


FAMILIES = (
    Family("PyTorch default", 32, 2),
    Family("N(0, 1)", 32, 2, nn.init.normal_),
    Family("U[-10, 10]", 32, 2, lambda weight: nn.init.uniform_(weight, -10, 10)),
    Family("one layer, N(0, 1)", 32, 1, nn.init.normal_),
)


def run(lengths: Sequence[int], draws: int, seed: int = 0) -> dict[str, Any]:
    """One row a family and length."""
    return {"rows": [row(family, n, draws, seed) for family in FAMILIES for n in lengths]}


def row(family: Family, n: int, draws: int, seed: int) -> dict[str, Any]:
    """as_n/n over models (mean, interval, largest), how often some input has s(f,x) <= n/4, and the mean profile.

    `profile`: P[s(f,x) = k] for k = 0..n over inputs, averaged over models.
    """
    averages, least, profiles = [], [], []
    for draw in range(draws):
        subject = random_subject(family, n, derive(seed, "initialisation", family.name, n, draw))
        averages.append(mp.average_sensitivity(subject).value / n)
        profiles.append(np.asarray(mp.sensitivity_profile(subject).value, dtype=np.float64))
        least.append(mp.sensitivity_profile(subject, quantity="minimum").value)
    return {
        "family": family.name,
        "n": n,
        "sensitivity": mean_interval(averages),
        "largest": max(averages),
        "insensitive_share": sum(value <= n / 4 for value in least) / draws,
        "all_sensitive": sum(value == n for value in least),
        "profile": np.mean(profiles, axis=0).tolist(),
        "draws": draws,
    }


def random_subject(family: Family, n: int, seed: int) -> mp.Subject:
    """sign(T - median T) of a random encoder, as a subject on the cube."""
    cube = mp.BooleanCube(n, encoding=to_bits)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = EncoderTransformer(n, family.d_model, family.layers).eval()
        if family.fill is not None:
            for weight in model.parameters():
                family.fill(weight)
        values = mp.Subject(model, cube).read(cube.exhaustive()).values.sort().values
        middle = values[len(values) // 2 - 1 : len(values) // 2 + 1].mean()
        model.head.bias.copy_(model.head.bias - middle)
    return mp.Subject(model, cube, "sign", name=family.name)


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """Low sensitivity at every initialisation, less at larger n, and inputs of low sensitivity in nearly all models."""
    rows = data["rows"]
    longest = max(row["n"] for row in rows)
    last = [row for row in rows if row["n"] == longest]
    low = all(row["sensitivity"]["high"] < LIMIT for row in last)
    below_random = all(row["sensitivity"]["high"] < 0.5 for row in rows)
    falling = {
        family.name: _falls([row["sensitivity"] for row in rows if row["family"] == family.name]) for family in FAMILIES
    }
    insensitive = min(row["insensitive_share"] for row in rows)
    return [
        Finding(
            f"Random Transformers have low average sensitivity: as_n/n < {LIMIT} at n = {longest}",
            "A.12, E (Bhattamishra et al.)",
            REPRODUCED if low else PARTLY if below_random else NOT,
            "; ".join(f"{row['family']}: {shown(row['sensitivity'])}" for row in last) + "; a random function: 0.5",
        ),
        Finding(
            "as_n/n of random Transformers falls with n, also with one layer",
            "A.12, E",
            REPRODUCED if all(falling.values()) else PARTLY if any(falling.values()) else NOT,
            "falls (first and last interval apart): " + (", ".join(k for k, v in falling.items() if v) or "none"),
        ),
        Finding(
            "Random Transformers have inputs of low sensitivity (min s <= n/4); none computes ±PARITY",
            "E (Kövér et al.)",
            REPRODUCED
            if insensitive >= 0.9 and not any(row["all_sensitive"] for row in rows)
            else PARTLY
            if insensitive >= 0.5
            else NOT,
            f"in at least {insensitive:.0%} of the models of every initialisation and length",
        ),
    ]


def _falls(intervals: Sequence[Mapping[str, Any]]) -> bool:
    return bool(intervals[-1]["high"] < intervals[0]["low"])


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """One table."""
    header = (
        "initialisation",
        "n",
        "mean as_n/n",
        "largest",
        "models with min s <= n/4",
        "inputs with s = 0, 1, 2, ...",
    )
    yield (
        header,
        [
            [
                row["family"],
                str(row["n"]),
                shown(row["sensitivity"]),
                f"{row['largest']:.3f}",
                f"{row['insensitive_share']:.0%}",
                ", ".join(f"{share:.2f}" for share in row["profile"]),
            ]
            for row in data["rows"]
        ],
    )


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """as_n/n against n."""
    for family in FAMILIES:
        rows = [row for row in data["rows"] if row["family"] == family.name]
        values = [row["sensitivity"]["value"] for row in rows]
        below = [row["sensitivity"]["value"] - row["sensitivity"]["low"] for row in rows]
        axis.errorbar([row["n"] for row in rows], values, below, label=family.name, capsize=2)
    axis.axhline(0.5, color="gray", linestyle=":", label="random function")
    axis.set(xlabel="length n", ylabel="as_n / n", title="random models", ylim=(0, 0.6))
    axis.legend(fontsize="small")
