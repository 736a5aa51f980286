"""The authored examples hold, run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

EXAMPLES = Path(__file__).parent / "examples"


def test_the_authored_examples_pass(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", str(EXAMPLES), "--modelprops", "-q", "-p", "no:cacheprovider"]
    command += ["--modelprops-report", str(tmp_path), "--hypothesis-seed=0"]
    if not any(point.name == "modelprops" for point in entry_points(group="pytest11")):
        command += ["-p", "modelprops.plugin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
