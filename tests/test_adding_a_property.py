"""docs/adding-a-property.md is followed to the letter in a copy of the project, and its own test passes there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks(text: str) -> list[tuple[str, str, str]]:
    """(kind, target, code) of every marked block of the page."""
    return re.findall(r"<!-- (file|line|row): (\S+) -->\n```\w+\n(.*?)```", text, flags=re.DOTALL)


def test_the_guide_adds_a_working_property(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "modelprops", tmp_path / "modelprops", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for kind, target, code in blocks((ROOT / "docs" / "adding-a-property.md").read_text()):
        path = tmp_path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text(code)
        elif kind == "line":
            path.write_text(path.read_text().replace("    # errors\n", code + "    # errors\n"))
        else:
            anchor = "| `noise_stability`"
            path.write_text(path.read_text().replace(anchor, code + anchor))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/properties/test_balance.py"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    assert "3 passed" in result.stdout, result.stdout + result.stderr
