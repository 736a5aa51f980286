"""What a reference suite reports: numbers beside what they should be, and claims beside what was found."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modelprops.errors import LoadError

REPRODUCED, PARTLY, NOT, OUT = "reproduced", "partly", "not reproduced", "out of reach here"


@dataclass(frozen=True)
class Check:
    """One number of the theory: where it stands, what it should be, what the package gives."""

    name: str
    source: str
    expected: float
    found: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """|found - expected| <= tolerance."""
        return abs(self.found - self.expected) <= self.tolerance


@dataclass(frozen=True)
class Finding:
    """One row of the claim-by-claim table; `status` is one of the four constants above.

    `doubtful`: the package's own report does not bear the claim out either, so that a contradiction is no surprise.
    """

    claim: str
    source: str
    status: str
    evidence: str
    doubtful: bool = False


def machine() -> Mapping[str, Any]:
    """What the times were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": "cpu",
    }


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The lines of a table, with an empty line before it."""
    yield from ("", "| " + " | ".join(map(_cell, header)) + " |", "|" + " --- |" * len(header))
    for row in rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|")


def claims_table(findings: Iterable[Finding]) -> Iterator[str]:
    """The claim-by-claim section."""
    yield from ("", "## Claim by claim")
    rows = ((row.claim, row.source, f"**{row.status}**", row.evidence) for row in findings)
    yield from markdown_table(("claim", "source", "status", "evidence"), rows)


def checks_table(checks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The section of theory numbers, from `Check`s as mappings with `holds`."""
    yield from ("", "## Theory")
    rows = (
        (row["name"], row["source"], f"{row['expected']:.9g}", f"{row['found']:.9g}", row["holds"]) for row in checks
    )
    yield from markdown_table(("number", "spec", "expected", "found", "holds"), rows)


def pyplot() -> Any:
    """Matplotlib without a display. Raises `LoadError` where it is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise LoadError("figures need matplotlib; install it, or leave the figures out") from None
    return plt
