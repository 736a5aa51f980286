"""`modelprops`: what the stored baselines hold, for people. Measuring is pytest's; nothing here runs a model.

Tables are drawn by rich where it is installed (extra `report`) and the output is a terminal, as plain text otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from modelprops.baseline import STORAGE, Baseline, load_baseline, locked, names, orphans
from modelprops.errors import ArgumentError, ModelpropsError
from modelprops.estimate import Estimate
from modelprops.measurement import Measurement
from modelprops.series import change_between

LEVEL = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 2 with one line on standard error where something is wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = given.run
    try:
        run(given)
    except (ModelpropsError, OSError) as error:
        print(f"modelprops: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="modelprops", description="Look at stored baselines (pytest makes them).")
    parser.add_argument("--storage", metavar="DIR", default=STORAGE, help=f"where baselines are (default {STORAGE})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    command("list", _list, "the stored baselines, newest last")
    command("show", _show, "one baseline in full").add_argument("name", metavar="NAME")
    compare = command("compare", _compare, "two baselines side by side, with the interval of each change")
    compare.add_argument("old", metavar="A")
    compare.add_argument("new", metavar="B")
    prune = command("prune", _prune, "remove what killed saves left, and old baselines")
    prune.add_argument("--keep", metavar="N", type=int, help="keep the N baselines saved last and remove the others")
    command("history", _history, "each measure over all baselines, with its change from the first and the previous")
    return parser


def _list(given: argparse.Namespace) -> None:
    rows = [
        (b.name, b.saved[:19].replace("T", " "), (b.commit or "-")[:10], _subjects(b), str(len(b.measurements)))
        for b in _all(given.storage)
    ]
    _table(("name", "saved (UTC)", "commit", "subject", "measurements"), rows)


def _show(given: argparse.Namespace) -> None:
    baseline = load_baseline(given.name, given.storage)
    versions = ", ".join(f"{name} {number}" for name, number in baseline.environment.items())
    print(f"{baseline.name}, saved {baseline.saved}, commit {baseline.commit or '-'}\n{versions}")
    for m in baseline.measurements:
        s = m.subject
        print(f"{s.get('name')}: {m.domain}, readout {m.readout}, {s.get('dtype')} on {s.get('device')}, "
              f"attention {s.get('kernel')}, weights {s.get('fingerprint')}")  # fmt: skip
    rows = [
        (str(m), _number(m.estimate.value), _interval(m.estimate), m.estimate.method, f"{m.estimate.samples:,}",
         "exact" if m.estimate.method == "exact" else "yes" if m.units is not None else "no", str(m.estimate.seed))
        for m in baseline.measurements
    ]  # fmt: skip
    _table(("measure", "value", "interval", "method", "samples", "paired", "seed"), rows)


def _compare(given: argparse.Namespace) -> None:
    old, new = (load_baseline(name, given.storage) for name in (given.old, given.new))
    rows = []
    for before, after in _matched(old, new):
        differs = _differences(before, after)
        change = "-" if differs else _change(before, after)
        rows.append((str(before), _number(before.estimate.value), _number(after.estimate.value), change, differs))
    _table(("measure", old.name, new.name, "change (99% interval)", "unlike"), rows)
    _alone(old, new)
    _alone(new, old)


def _prune(given: argparse.Namespace) -> None:
    directory = Path(given.storage)
    if not directory.is_dir():
        raise ArgumentError(f"no directory {given.storage}; give --storage")
    if given.keep is not None:
        if given.keep < 1:
            raise ArgumentError(f"--keep {given.keep} would leave no baseline; give at least 1")
        for baseline in _all(given.storage)[: -given.keep]:
            (directory / f"{baseline.name}.json").unlink()
            print(f"removed {baseline.name}, saved {baseline.saved}")
    with locked(directory):  # what a save is writing just now is no leftover
        left = orphans(directory)
        for path in left:
            path.unlink(missing_ok=True)
            print(f"removed {path}")
    if not left:
        print("no files without a baseline")


def _history(given: argparse.Namespace) -> None:
    baselines = _all(given.storage)
    rows = []
    for key in sorted({_key(m) for b in baselines for m in b.measurements if m.scalar}):
        seen: list[Measurement] = []
        for baseline in baselines:
            for m in (m for m in baseline.measurements if m.scalar and _key(m) == key):
                from_first = _change(seen[0], m) if seen else "-"
                from_previous = _change(seen[-1], m) if seen else "-"
                seen.append(m)
                rows.append((str(m), baseline.name, _number(m.estimate.value), from_previous, from_first))
    _table(("measure", "baseline", "value", "from previous", "from first"), rows)


def _all(storage: str) -> list[Baseline]:
    return sorted((load_baseline(name, storage) for name in names(storage)), key=lambda b: (b.saved, b.name))


def _key(m: Measurement) -> tuple[str, str, str]:
    return str(m), m.domain, m.readout


def _matched(old: Baseline, new: Baseline) -> list[tuple[Measurement, Measurement]]:
    by_name = {str(m): m for m in new.measurements}
    return [(m, by_name[str(m)]) for m in old.measurements if str(m) in by_name and m.scalar and by_name[str(m)].scalar]


def _alone(one: Baseline, other: Baseline) -> None:
    names_there = {str(m) for m in other.measurements}
    if missing := sorted({str(m) for m in one.measurements} - names_there):
        print(f"only in {one.name}: {', '.join(missing)}")


def _differences(old: Measurement, new: Measurement) -> str:
    rows = {"domain": (old.domain, new.domain), "readout": (old.readout, new.readout)}
    rows |= {"version": (str(old.version), str(new.version))}
    rows |= {part: (str(old.subject.get(part)), str(new.subject.get(part))) for part in ("dtype", "kernel")}
    return "; ".join(f"{name}: {was} / {now}" for name, (was, now) in rows.items() if was != now)


def _change(old: Measurement, new: Measurement) -> str:
    change = change_between(old, new, LEVEL)
    if change.low == change.high:
        return f"{float(change.value):+.4g} (exact)"
    return f"{float(change.value):+.4g} [{float(change.low):+.4g}, {float(change.high):+.4g}]"


def _subjects(baseline: Baseline) -> str:
    return ", ".join(sorted({str(m.subject.get("name")) for m in baseline.measurements}))


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, (int, float)) else f"{getattr(value, 'size', 0)} values"


def _interval(estimate: Estimate) -> str:
    return estimate.interval() if isinstance(estimate.value, float) else "-"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        print("nothing stored; pytest --modelprops --modelprops-save NAME makes a baseline")
        return
    if sys.stdout.isatty() and _rich_table(columns, rows):
        return
    widths = [max(len(row[k]) for row in [columns, *rows]) for k in range(len(columns))]
    for row in [columns, *rows]:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
    return True
