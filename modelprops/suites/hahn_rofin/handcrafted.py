"""The theorem without training: PARITY's exact Transformer, its LayerNorm epsilon, and its weights moved a little.

The model computes PARITY at every length with the same weights (spec A.13). T(x) depends on x only through the number
of ones, so means over x are exact sums over that number; means over noise carry intervals over the draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modelprops.estimate import Array
from modelprops.seeds import derive
from modelprops.suites.findings import NOT, PARTLY, REPRODUCED, Finding
from modelprops.suites.hahn_rofin.intervals import mean_interval, shown
from modelprops.theory import bounds
from modelprops.theory.parity import HEADS, HandcraftedFirst, HandcraftedMajority, HandcraftedParity

TITLE = "PARITY's exact Transformer"
LENGTHS = (4, 8, 16, 32, 64, 128)
EPSILONS = (0.0, 1e-5, 1e-3)
SIGMAS = (1e-4, 1e-3, 1e-2, 3e-2)
RISING = SIGMAS[:3]
"""Where the shortest length is not yet past the bound."""

INPUTS = 128
PRINTED = {16: (109.0, 3.3), 32: (39.9, 0.45)}
"""Mean s(T,x) at eps = 1e-5 and 1e-3 as the specification prints it."""


def run(draws: int, seed: int = 0) -> dict[str, Any]:
    """Both tables of spec A.13 and length generalisation after a perturbation; under a minute at 30 draws."""
    exact = [exact_row(n) for n in LENGTHS]
    noisy = [noisy_row(n, sigma, draws, seed) for sigma in SIGMAS for n in LENGTHS]
    with torch.no_grad():
        scaled = [
            float(sign_agreement(HandcraftedFirst(n, log_scaled=scale), n)) for scale in (True, False) for n in LENGTHS
        ]
    return {
        "exact": exact,
        "noisy": noisy,
        "first": {"scaled": scaled[: len(LENGTHS)], "plain": scaled[len(LENGTHS) :]},
    }


@torch.no_grad()
def exact_row(n: int) -> dict[str, Any]:
    """Accuracy, |T|, E Blowup^2 and mean s(T,x) for each epsilon; exact sums over the number of ones."""
    bits, shares = one_input_per_count(n)
    row: dict[str, Any] = {"n": n, "sensitivity": [], "accuracy": [], "size": []}
    for eps in EPSILONS:
        trace = HandcraftedParity(n, eps).trace(bits)
        row["sensitivity"].append(float((shares * local_by_count(trace.output)).sum()))
        row["accuracy"].append(float((shares * right(trace.output, bits)).sum()))
        row["size"].append([float(trace.output.abs().min()), float(trace.output.abs().max())])
        if eps == 0:
            row["mean_square_blowup"] = float((shares * trace.blowup**2).sum())
            row["implied"] = bounds.implied_average_constant(10.0 * n, row["mean_square_blowup"], n, HEADS)
    majority = HandcraftedMajority(n).trace(bits).blowup
    row["majority_peak"] = [int(count) for count in torch.nonzero(majority == majority.max())[:, 0]]
    return row


@torch.no_grad()
def noisy_row(n: int, sigma: float, draws: int, seed: int) -> dict[str, Any]:
    """E (T' - T)^2 / 10, as_n(T')/(10 n) and accuracy of T' with Gaussian noise of std sigma on every parameter.

    Fresh noise and fresh inputs for each draw; the sensitivity flips one random bit of each of `INPUTS` inputs.
    """
    model = HandcraftedParity(n)
    own = {name: weight.detach() for name, weight in model.named_parameters()}
    columns = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(derive(seed, "handcrafted", n, str(sigma), draw))
        bits = torch.randint(0, 2, (INPUTS, n), generator=generator)
        flipped = bits.clone()
        flipped[torch.arange(INPUTS), torch.randint(0, n, (INPUTS,), generator=generator)] ^= 1
        moved = {
            name: weight + sigma * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            for name, weight in own.items()
        }
        after, neighbour = torch.func.functional_call(model, moved, (torch.cat([bits, flipped]),)).chunk(2)
        change, flip = ((after - model(bits)) ** 2).mean() / 10, ((after - neighbour) ** 2).mean() / 40
        columns.append([float(change), float(flip), float(right(after, bits).mean())])
    names = ("sharpness", "sensitivity", "accuracy")
    row = {name: mean_interval(column) for name, column in zip(names, np.array(columns).T, strict=True)}
    return {"n": n, "sigma": sigma, "draws": draws, **row}


def one_input_per_count(n: int) -> tuple[Tensor, Tensor]:
    """Inputs with k = 0..n ones, bits (n + 1, n), and the binomial share of each k."""
    shares = torch.tensor([math.comb(n, k) / 2**n for k in range(n + 1)], dtype=torch.float64)
    return (torch.arange(n) < torch.arange(n + 1).unsqueeze(1)).long(), shares


def local_by_count(outputs: Tensor) -> Tensor:
    """s(T,x) at k = 0..n ones, from T at those: k neighbours have k - 1 ones and n - k have k + 1."""
    n = len(outputs) - 1
    count = torch.arange(n + 1)
    steps = (outputs[1:] - outputs[:-1]) ** 2
    local = torch.zeros_like(outputs)
    local[1:] += count[1:] * steps
    local[:-1] += (n - count[:-1]) * steps
    return local / 4


def right(outputs: Tensor, bits: Tensor) -> Tensor:
    """1 where the output has PARITY's sign."""
    return ((outputs > 0) == (bits.sum(1) % 2 == 1)).double()


def sign_agreement(model: torch.nn.Module, n: int) -> Tensor:
    """Share of the two hardest inputs on which sign T = x_1: x_1 against all other bits."""
    bits = torch.tensor([[1] + [0] * (n - 1), [0] + [1] * (n - 1)])
    share: Tensor = ((model(bits) > 0) == (bits[:, 0] == 1)).double().mean()
    return share


def findings(data: Mapping[str, Any]) -> list[Finding]:
    """What the exact models show, then what noise on the weights does."""
    return [*exact_findings(data), *noise_findings(data["noisy"])]


def exact_findings(data: Mapping[str, Any]) -> list[Finding]:
    """Accuracy 1 and s = 10 n at eps = 0, collapse at eps > 0, what the trade-off implies, FIRST's lengths."""
    exact = data["exact"]
    perfect = all(row["accuracy"][0] == 1 and abs(row["sensitivity"][0] - 10 * row["n"]) < 1e-6 for row in exact)
    by_n = {row["n"]: row for row in exact}
    close = all(
        abs(by_n[n]["sensitivity"][1 + k] - printed) <= 0.2 * printed
        for n, pair in PRINTED.items()
        for k, printed in enumerate(pair)
    )
    fades = {n: by_n[n]["sensitivity"][1] for n in (4, 16, 32, 128)}
    first, implied = data["first"], [row["implied"] for row in exact]
    return [
        Finding(
            "PARITY is representable at every length by one set of weights, with sensitivity 10 n (eps = 0)",
            "A.13, B.1",
            REPRODUCED if perfect else NOT,
            f"accuracy 1 and s = 10 n at n = {', '.join(str(row['n']) for row in exact)}"
            if perfect
            else f"accuracy {[row['accuracy'][0] for row in exact]}",
        ),
        Finding(
            "With LayerNorm's eps > 0 its sensitivity rises and then falls, as eps^(L/2) (not e^(L/2)) allows",
            "A.6, B.1",
            REPRODUCED if close and fades[4] < fades[16] > fades[32] > fades[128] else NOT,
            "mean s at eps = 1e-5: " + ", ".join(f"{value:.3g} (n = {n})" for n, value in fades.items()),
        ),
        Finding(
            "The constant that the average trade-off implies stays bounded as n grows (fixed weights, eps = 0)",
            "A.9, A.11",
            REPRODUCED if all(a >= b for a, b in itertools.pairwise(implied)) else NOT,
            f"C implied by as_n = 10 n and E Blowup^2: {implied[0]:.2g} at n = 4, {implied[-1]:.2g} at 128",
        ),
        Finding(
            "MAJORITY's blowup is largest at or next to balanced inputs",
            "A.12",
            REPRODUCED
            if all(abs(2 * count - row["n"]) <= 2 for row in exact for count in row["majority_peak"])
            else NOT,
            "ones at the peak: " + ", ".join(f"{row['majority_peak'][0]} of {row['n']}" for row in exact),
        ),
        Finding(
            "FIRST generalises in length if attention logits are scaled by log n, else not",
            "A.12, E",
            REPRODUCED if min(first["scaled"]) == 1 and first["plain"][-1] < 1 else NOT,
            f"hardest inputs right: {first['scaled'][-1]:.0%} with scaling, {first['plain'][-1]:.0%} without (n = 128)",
        ),
    ]


def noise_findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Sharpness through the Boolean bound, and failure at large lengths."""
    noisy = {(row["sigma"], row["n"]): row for row in rows}
    crossed = [
        sigma for sigma in RISING if noisy[sigma, 4]["sharpness"]["high"] < noisy[sigma, 128]["sharpness"]["low"]
    ]
    bound = (
        noisy[1e-2, 4]["sharpness"]["high"] < 0.6
        and noisy[1e-2, 16]["sharpness"]["low"] > 0.9
        and noisy[1e-3, 8]["sharpness"]["high"] < 0.1
        and noisy[1e-3, 64]["sharpness"]["low"] > 0.9
        and noisy[1e-2, 128]["sharpness"]["low"] > 1
    )
    failing = noisy[1e-3, 4]["accuracy"]["low"] > 0.95 and noisy[1e-3, 128]["accuracy"]["high"] < 0.6
    return [
        Finding(
            "At a fixed perturbation sharpness grows with length and passes the Boolean bound 1",
            "A.10 (Theorem 6)",
            REPRODUCED if bound and len(crossed) == len(RISING) else PARTLY if crossed else NOT,
            f"sigma = .01: {shown(noisy[1e-2, 4]['sharpness'])} at n = 4, {shown(noisy[1e-2, 16]['sharpness'])} at 16, "
            f"{shown(noisy[1e-2, 128]['sharpness'])} at 128",
        ),
        Finding(
            "Weights that compute PARITY at all lengths stop doing so at large n after a small perturbation",
            "A.12",
            REPRODUCED if failing else NOT,
            f"sigma = .001: accuracy {shown(noisy[1e-3, 4]['accuracy'])} at n = 4, "
            f"{shown(noisy[1e-3, 128]['accuracy'])} at 128",
        ),
    ]


def tables(data: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """The two tables."""
    header = (
        "n",
        "accuracy",
        "|T|, eps = 0",
        "E Blowup^2, eps = 0",
        "implied C",
        *(f"mean s, eps = {eps:g}" for eps in EPSILONS),
    )
    yield (
        header,
        [
            [
                str(row["n"]),
                " / ".join(f"{value:.3f}" for value in row["accuracy"]),
                f"{row['size'][0][1]:.4f}",
                f"{row['mean_square_blowup']:.2g}",
                f"{row['implied']:.2g}",
                *(f"{value:.3g}" for value in row["sensitivity"]),
            ]
            for row in data["exact"]
        ],
    )
    yield (
        ("sigma", "n", "E (T' - T)^2 / 10", "as_n(T') / (10 n)", "accuracy of T'"),
        [
            [
                f"{row['sigma']:g}",
                str(row["n"]),
                *(shown(row[name]) for name in ("sharpness", "sensitivity", "accuracy")),
            ]
            for row in data["noisy"]
        ],
    )


def draw(axis: Any, data: Mapping[str, Any]) -> None:
    """Sharpness against length for every sigma, with the Boolean bound."""
    for sigma in SIGMAS:
        rows = [row for row in data["noisy"] if row["sigma"] == sigma]
        bars: Array = np.array([[row["sharpness"][name] for row in rows] for name in ("low", "value", "high")])
        axis.errorbar(LENGTHS, bars[1], (bars[1] - bars[0], bars[2] - bars[1]), label=f"sigma = {sigma:g}", capsize=2)
    axis.axhline(1, color="gray", linestyle=":", label="Boolean bound")
    axis.set(xscale="log", xlabel="length n", ylabel="E (T' - T)^2 / 10", title="exact PARITY, weights moved")
    axis.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    axis.minorticks_off()
    axis.legend(fontsize="small")
