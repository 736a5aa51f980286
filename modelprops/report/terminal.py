"""The summary table on the terminal, from recorded verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from modelprops.inference.multiplicity import holm

COLUMNS = ("claim", "value", "interval", "threshold", "verdict", "evaluations", "seconds")
LEAST = 24
COLORS = {"pass": "green", "fail": "red", "inconclusive": "yellow", "measured": None}


def cells(row: dict[str, Any], *, named: bool = False) -> tuple[str, ...]:
    """Return a recorded verdict as the texts of one table row; `named` puts the subject's name before the claim."""
    verdict, estimate = row["verdict"], row["verdict"]["estimate"]
    value, low, high = (as_numbers(estimate[name]) for name in ("value", "low", "high"))
    if len(value) == 1:
        shown, interval = f"{value[0]:.4g}", f"[{low[0]:.4g}, {high[0]:.4g}]"
    else:
        shown = f"{len(value)} values, max {max(value, default=math.nan):.3g}"
        interval = f"[{min(low, default=math.nan):.3g}, {max(high, default=math.nan):.3g}]"
    threshold = verdict["threshold"]
    return (
        f"{verdict['subject']}: {measure_text(verdict)}" if named and verdict["subject"] else measure_text(verdict),
        shown,
        "exact" if estimate["method"] == "exact" else interval,
        "-" if threshold is None else f"{verdict['comparison']} {float(threshold):.4g}",
        verdict["outcome"],
        f"{estimate['evaluations']:,}",
        f"{float(estimate['seconds']):.1f}",
    )


def measure_text(verdict: dict[str, Any]) -> str:
    """Return the claim without its comparison, which has a column of its own."""
    text: str = verdict["claim"]
    return text if verdict["threshold"] is None else text.rpartition(f" {verdict['comparison']} ")[0] or text


def as_numbers(value: Any) -> list[float]:
    """Return a JSON number, or list of them, as floats."""
    if isinstance(value, list):
        return [number for item in value for number in as_numbers(item)]
    return [float(value)]


def table(rows: Sequence[dict[str, Any]], width: int) -> list[tuple[str, str | None]]:
    """Return the lines of the table with a colour each; the claim column gives way on a narrow terminal."""
    several = len({row["verdict"]["subject"] for row in rows}) > 1
    body = [cells(row, named=several) for row in rows]
    widths = [max(len(line[k]) for line in [COLUMNS, *body]) for k in range(len(COLUMNS))]
    spare = width - sum(widths[1:]) - 2 * (len(COLUMNS) - 1)
    widths[0] = max(min(widths[0], spare), min(widths[0], LEAST))
    lines: list[tuple[str, str | None]] = [(_line(COLUMNS, widths), None)]
    for row, line in zip(rows, body, strict=True):
        lines.append((_line(line, widths), COLORS.get(row["verdict"]["outcome"])))
    return lines


def family_line(rows: Sequence[dict[str, Any]], confidence: float) -> str:
    """Say how many verdicts stand when the error rate is to hold for all claims together (Holm on e-values)."""
    claims = [row["verdict"] for row in rows if row["verdict"]["threshold"] is not None]
    if len(claims) < 2:
        return ""
    level = 1 - confidence
    # A two-sided test at `level` bets half of it on each side: its e-value is weighed by 1/2.
    evidence = [_log_e(claim, level) - math.log(2) for claim in claims]
    standing = sum(
        rejected and claim["outcome"] in ("pass", "fail")
        for rejected, claim in zip(holm(evidence, level), claims, strict=True)
    )
    failed = sum(claim["outcome"] == "fail" for claim in claims)
    open_ = sum(claim["outcome"] == "inconclusive" for claim in claims)
    return (
        f"{len(claims)} claims: {len(claims) - failed - open_} pass, {failed} fail, {open_} inconclusive; "
        f"{standing} of {len(claims)} verdicts also hold family-wise at {confidence:g} (Holm on e-values)"
    )


def _log_e(claim: dict[str, Any], level: float) -> float:
    if claim["log_e"] is not None:
        return float(claim["log_e"])
    if claim["estimate"]["method"] == "exact":
        return math.inf
    return math.log(2 / level) if claim["outcome"] in ("pass", "fail") else 0.0


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    first = texts[0] if len(texts[0]) <= widths[0] else texts[0][: widths[0] - 1] + "…"
    rest = [text.rjust(size) for text, size in zip(texts[1:], widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *rest]).rstrip()
