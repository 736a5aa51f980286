"""Claims of the paper beside what was found: reproduced, partly, not reproduced, or out of reach here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelprops.suites.findings import NOT, OUT, PARTLY, REPRODUCED, Finding
from modelprops.suites.noise_stability.language import is_below, overlaps

FASTER = 0.85
"""Spec C4: median steps must fall by at least 15%, and the paired test must give p < 0.05."""

SIGNIFICANT = 0.05
FEW = 10
"""Spec C1: at most this many positions hold 90% of the influence (paper: 5-10 of 256)."""


def findings(data: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The rows for what `run.run_all` measured."""
    rows = [theory_finding(data["checks"]), *(row for model in data["models"] for row in model_findings(model))]
    rows += [row for experiment in data["experiments"] for row in experiment_findings(experiment)]
    rows.append(
        Finding(
            "Table 1, Figure 1 and the speed-ups at the paper's own sizes (K = 113, 256 tokens, WikiText-2)",
            "C2-C4",
            OUT,
            "the paper leaves f, rho, samples, architecture, optimiser and threshold open; `--preset full` on a GPU",
        )
    )
    return tuple(rows)


def theory_finding(checks: Sequence[Mapping[str, Any]]) -> Finding:
    """All closed forms, in the corrected versions."""
    failed = [row["name"] for row in checks if not row["holds"]]
    evidence = f"{len(checks) - len(failed)} of {len(checks)} numbers agree; Lemma 1 with log_rho and the fixed point "
    evidence += ".2172 (not 2/(3 pi)) as corrected"
    return Finding(
        "Theorems 5.1-5.3, Lemma 1, recursion, identities of Stab and I (corrected)",
        "A, B1-B4",
        NOT if failed else REPRODUCED,
        evidence + (f"; failed: {', '.join(failed)}" if failed else ""),
    )


def model_findings(model: Mapping[str, Any]) -> list[Finding]:
    """The rows of each f of a model; the first f is the one fixed beforehand, the model's own readout comes after."""
    return [row for function in model["functions"] for row in function_rows(model, function)]


def function_rows(model: Mapping[str, Any], function: Mapping[str, Any]) -> list[Finding]:
    """Table 1's comparison, its repeat with another seed, and Figure 1's concentration for one f.

    Where certified intervals do not decide, the claim is out of reach at that budget; what rests on point estimates
    alone is never more than partly reproduced.
    """
    name, junta, bias = f"{model['model']}, f = {function['readout']}", function["junta"], function["bias"]
    rows = [
        tail_row(name, function["tail"]),
        Finding(
            f"{name}: few tokens carry 90% of the influence (at most {FEW})",
            "Figure 1, C1",
            REPRODUCED if junta["high"] <= FEW else NOT if junta["low"] > FEW else OUT,
            f"certified between {junta['low']:.0f} and {junta['high']:.0f} from {sum(junta['marked'])} marked pairs"
            + (f", estimated {bias['smallest_count']}" if bias else "")
            + f" ({model['measure']})",
        ),
    ]
    if repeat := function.get("repeat"):
        rows.insert(1, repeat_row(name, function["tail"], repeat))
    if bias is not None:
        rows.append(
            Finding(
                f"{name}: the first or the last token has the largest influence",
                "Figure 1, C1",
                PARTLY if bias["first_or_last_largest"] else NOT if _inner_is_largest(function["influences"]) else OUT,
                f"shares: first {bias['first_share']:.1%}, last {bias['last_share']:.1%}; largest at free position "
                f"{bias['largest']} (point estimates)",
            )
        )
    if sink := function.get("sink"):
        rows.append(
            Finding(
                f"{name}: influence follows attention mass (a hypothesis of this project)",
                "E5",
                OUT if sink["p_value"] >= SIGNIFICANT else PARTLY if sink["correlation"] > 0 else NOT,
                f"Spearman {sink['correlation']:.2f} (p = {sink['p_value']:.2g}); mass on position 0: "
                f"{sink['first_mass']:.2f} (point estimates of the influence)",
            )
        )
    return rows


def _inner_is_largest(influences: Mapping[str, Any]) -> bool:
    """Whether the intervals show that some inner position has more influence than the first and the last."""
    low, high = influences["low"], influences["high"]
    return bool(max(low[1:-1], default=0.0) > max(high[0], high[-1]))


def tail_row(name: str, table: Mapping[str, Any]) -> Finding:
    """Table 1: decided where the intervals of the two columns are disjoint."""
    smaller, larger = is_below(table, "stability", "sensitivity"), is_below(table, "sensitivity", "stability")
    return Finding(
        f"{name}: the stability bound on the tail at 15 is below the sensitivity bound",
        "Table 1, C2, B9",
        REPRODUCED if smaller else NOT if larger else OUT,
        f"sensitivity {_interval(table['sensitivity'])}, stability {_interval(table['stability'])}, "
        f"programme <= {float(table['best']['high']):.3g}, "
        f"relative to Var f <= {float(table['best / variance']['high']):.3g}"
        + ("" if smaller or larger else "; the intervals do not separate the columns at this budget"),
    )


def repeat_row(name: str, table: Mapping[str, Any], repeat: Mapping[str, Any]) -> Finding:
    """The tail table with another seed: the two intervals of each column that has two ends must overlap."""
    columns = ("sensitivity", "stability")
    apart = [column for column in columns if not overlaps(table[column], repeat["tail"][column])]
    return Finding(
        f"{name}: the tail table comes out the same with another seed, within its intervals",
        "D4",
        NOT if apart else REPRODUCED,
        f"{len(columns) - len(apart)} of {len(columns)} columns overlap with those of seed {repeat['seed']}"
        + (f"; apart: {', '.join(apart)}" if apart else ""),
    )


def experiment_findings(experiment: Mapping[str, Any]) -> list[Finding]:
    """Steps and wall time to the threshold: encourage is the paper's claim, discourage its opposite."""
    rows = []
    for comparison in experiment["comparisons"]:
        if comparison["arm"] in ("encourage", "discourage"):
            paper, least = comparison["arm"] == "encourage", 2.0 ** (1 - comparison["seeds"])
            rows.append(
                Finding(
                    f"{experiment['name']}: {comparison['arm']} reaches the threshold in fewer steps"
                    + ("" if paper else " (the opposite sign; no claim of the paper)"),
                    "C3-C5, B17" if paper else "C5",
                    speed_status(experiment, comparison),
                    f"{comparison['reached']} of {comparison['seeds']} seeds reached it; median steps x "
                    f"{comparison['ratio']:.2f}, wall time x {comparison['time_ratio']:.2f}, faster in "
                    f"{comparison['faster']}, p = {comparison['p_value']:.3g}"
                    + (f" (at least {least:.2g} with so few seeds)" if least >= SIGNIFICANT else ""),
                )
            )
    return rows


def speed_status(experiment: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """Spec C4's criterion; out of reach where most runs of neither arm reached the threshold."""
    base = [run for run in experiment["runs"] if run["arm"] == "none"]
    if (
        2 * sum(run["steps"] is not None for run in base) < len(base)
        and 2 * comparison["reached"] < comparison["seeds"]
    ):
        return OUT
    if comparison["ratio"] > FASTER:
        return NOT
    return REPRODUCED if comparison["p_value"] < SIGNIFICANT else PARTLY


def _interval(estimate: Mapping[str, Any]) -> str:
    value, low, high = (float(estimate[key]) for key in ("value", "low", "high"))
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"
