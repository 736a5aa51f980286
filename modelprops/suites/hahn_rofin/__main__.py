"""python -m modelprops.suites.hahn_rofin --preset standard --out reports/hahn_rofin"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modelprops.suites.hahn_rofin.experiments import MODULES
from modelprops.suites.hahn_rofin.presets import PRESETS
from modelprops.suites.hahn_rofin.render import markdown, write_figures
from modelprops.suites.hahn_rofin.run import run_all
from modelprops.training.storage import read_json


def main(arguments: list[str] | None = None) -> int:
    """Run a preset and write `results.json`, `report.md` and the figures; 0 if every theory check holds."""
    parser = argparse.ArgumentParser(prog="python -m modelprops.suites.hahn_rofin")
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report; runs are cached in its runs/")
    parser.add_argument("--only", choices=MODULES, action="append", default=[], help="one experiment (repeatable)")
    parser.add_argument("--device", default="cpu", help="where models are trained, such as cuda for `full`")
    parser.add_argument("--render-only", action="store_true", help="write the page again from results.json")
    chosen = parser.parse_args(arguments)
    if chosen.render_only:
        data = read_json(chosen.out / "results.json")
    else:
        data = run_all(chosen.preset, out=chosen.out, only=chosen.only, device=chosen.device)
    (chosen.out / "report.md").write_text(markdown(data), encoding="utf-8")
    write_figures(data, chosen.out)
    return 0 if all(row["holds"] for row in data["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
