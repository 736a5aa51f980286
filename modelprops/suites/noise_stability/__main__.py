"""python -m modelprops.suites.noise_stability --preset standard --out reports/noise_stability"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modelprops.suites.noise_stability.presets import PRESETS
from modelprops.suites.noise_stability.render import markdown, write_figures
from modelprops.suites.noise_stability.run import run_all
from modelprops.training.storage import read_json


def main(arguments: list[str] | None = None) -> int:
    """Run a preset and write `results.json`, `report.md` and the figures; 0 if every theory check holds."""
    parser = argparse.ArgumentParser(prog="python -m modelprops.suites.noise_stability")
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report; runs are cached in its runs/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="start nothing new after this time")
    parser.add_argument("--text", type=Path, help="next-token prediction on this UTF-8 file as well (WikiText-2)")
    parser.add_argument("--render-only", action="store_true", help="write the page again from results.json")
    chosen = parser.parse_args(arguments)
    if chosen.text is not None and not chosen.text.is_file():
        parser.error(f"--text {chosen.text}: there is no such file; give a UTF-8 text, such as WikiText-2's train file")
    if chosen.render_only:
        data = read_json(chosen.out / "results.json")
    else:
        data = run_all(chosen.preset, seed=chosen.seed, out=chosen.out, minutes=chosen.minutes, text=chosen.text)
    (chosen.out / "report.md").write_text(markdown(data), encoding="utf-8")
    write_figures(data, chosen.out)
    return 0 if all(row["holds"] for row in data["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
