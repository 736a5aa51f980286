"""Loading the plugin is cheap: no torch, no hypothesis, no transformers, and milliseconds."""

from __future__ import annotations

import subprocess
import sys

HEAVY = "torch numpy scipy hypothesis transformers"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_plugin_imports_nothing_heavy() -> None:
    code = f"import sys, pytest, modelprops.plugin; print([m for m in '{HEAVY}'.split() if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_importing_modelprops_does_not_import_torch() -> None:
    code = f"import sys, modelprops; print([m for m in '{HEAVY}'.split() if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_a_run_without_the_flag_does_not_import_torch(tmp_path: object) -> None:
    code = (
        "import sys, pathlib, tempfile, pytest\n"
        "d = pathlib.Path(tempfile.mkdtemp()); (d / 'test_x.py').write_text('def test_x(): pass')\n"
        "code = pytest.main([str(d), '-q', '-p', 'no:hypothesispytest'])\n"
        "print(int(code), 'torch' in sys.modules)"
    )
    assert run(code).strip().splitlines()[-1] == "0 False"


def test_the_plugin_loads_in_milliseconds() -> None:
    # Median of five processes; the limit of 30 ms leaves a factor of three to this machine's usual 8 ms.
    code = "import time, pytest; t = time.perf_counter(); import modelprops.plugin; print(time.perf_counter() - t)"
    times = sorted(float(run(code)) for _ in range(5))
    assert times[2] < 0.030, f"median load time {times[2] * 1000:.1f} ms"
