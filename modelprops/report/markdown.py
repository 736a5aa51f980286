"""summary.md: the table for a job summary or a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modelprops.report.terminal import COLUMNS, cells, family_line

_MARKS = {"pass": "✅ pass", "fail": "❌ fail", "inconclusive": "❔ inconclusive", "measured": "measured"}


def summary(data: dict[str, Any]) -> str:
    """Return the run's verdicts as a Markdown page: the table, then each failure in full."""
    rows = data["verdicts"]
    settings, versions = data["settings"], data["environment"]
    lines = ["# Properties of the model", "", _row(COLUMNS), _row(["---"] * len(COLUMNS))]
    for row in rows:
        texts = [text.replace("|", "\\|") for text in cells(row, named=True)]
        lines.append(_row([_MARKS.get(text, text) for text in texts]))
    if line := family_line(rows, settings["confidence"]):
        lines += ["", line]
    for row in rows:
        if row["verdict"]["outcome"] in ("fail", "inconclusive"):
            lines += _details(row)
    lines += [
        "",
        f"Confidence {settings['confidence']:g}, budget {settings['budget']:,} evaluations a claim, "
        f"seed {settings['seed']}; " + ", ".join(f"{name} {number}" for name, number in versions.items()),
        "",
    ]
    return "\n".join(lines)


def _details(row: dict[str, Any]) -> list[str]:
    verdict = row["verdict"]
    lines = ["", f"## {verdict['outcome']}: {verdict['claim']}", "", f"- test: `{row['test']}`"]
    if verdict["witness"]:
        lines.append(f"- worst found: `{_witness(verdict['witness'])}`")
    return [
        *lines,
        f"- reproduce: `{verdict['reproduce']}`",
        *([f"- hint: {verdict['hint']}"] if verdict["hint"] else []),
    ]


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _witness(data: dict[str, Any]) -> str:
    parts = [f"{name}={data[name]['values']}" for name in ("point", "partner") if name in data]
    parts += [f"{name}={data[name]}" for name in ("coordinate", "direction_seed", "score") if name in data]
    return ", ".join(parts)
