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
    # CPU time, the best of seven processes, since whatever else the machine does only adds; usually 8 to 15 ms.
    code = "import time, pytest; t = time.process_time(); import modelprops.plugin; print(time.process_time() - t)"
    times = sorted(float(run(code)) for _ in range(7))
    assert times[0] < 0.030, f"load time {times[0] * 1000:.1f} ms"
