"""results.json and summary.md: the one record that every later renderer reads."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from modelprops.report.markdown import summary
from modelprops.settings import Settings

SCHEMA = 1


def document(rows: Sequence[dict[str, Any]], settings: Settings, exit_status: int) -> dict[str, Any]:
    """Return the record of a run: schema, environment, settings, counts and every verdict, in a fixed order."""
    return {
        "schema": SCHEMA,
        "environment": environment(),
        "settings": dict(vars(settings)),
        "exit_status": exit_status,
        "outcomes": dict(sorted(Counter(row["verdict"]["outcome"] for row in rows).items())),
        "verdicts": list(rows),
    }


def environment() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    packages = ("modelprops", "torch", "numpy", "scipy", "pytest", "transformers")
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "platform": sys.platform, "machine": platform.machine(), **found}


def write(data: dict[str, Any], directory: Path) -> Path:
    """Write results.json and summary.md, each whole or not at all; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "results.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    write_atomically(directory / "summary.md", summary(data))
    return directory


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target, then rename: a reader sees the old file or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
