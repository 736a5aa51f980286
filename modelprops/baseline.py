"""Baselines: the stored measurements of a checkpoint, with all it takes to draw the same units again.

A baseline is a readable `NAME.json` in the storage directory, and beside it `NAME-<hash>.npz` with the values of every
unit. The JSON names the hash of its side file and carries one of itself, so that half a pair, a flipped bit and an
edited number are all seen. The side file is written first and the JSON renamed over the old one last: a process that
dies at any moment leaves the old baseline or the new one. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modelprops.errors import ArgumentError, BaselineError
from modelprops.estimate import Array
from modelprops.measurement import Measurement, arrays_of, compressed
from modelprops.report.record import environment, write_atomically

SCHEMA = 1
STORAGE = ".modelprops"
LAST = "last"
MOST_MEASUREMENTS = 10_000
MOST_BYTES = 2**26
FORMAT = "modelprops baseline"

UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Older schema version -> what turns its document into one of the next version; applied in turn when reading."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True)
class Baseline:
    """The measurements of one checkpoint under a name; `saved` is a UTC time, `commit` the git commit if any."""

    name: str
    measurements: tuple[Measurement, ...]
    saved: str = ""
    commit: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def save_baseline(name: str, measurements: Sequence[Measurement], storage: str | os.PathLike[str] = STORAGE) -> Path:
    """Write a baseline, replacing one of that name, and return the path of its JSON.

    Of several measurements of one quantity the one with most units is kept. Raises `ArgumentError` for a bad name or
    for no measurements.
    """
    check_name(name)
    kept = _distinct(measurements)
    if not kept:
        raise ArgumentError(f"baseline {name!r} would be empty: nothing was measured; run tests that measure a subject")
    directory = Path(storage)
    directory.mkdir(parents=True, exist_ok=True)
    units = {f"u{k}": m.units for k, m in enumerate(kept) if m.units is not None}
    side = compressed(units)
    digest = hashlib.sha256(side).hexdigest()
    data = {
        "format": FORMAT,
        "schema": SCHEMA,
        "name": name,
        "saved": datetime.now(UTC).isoformat(),
        "commit": _commit(),
        "environment": environment(),
        "side": {"file": f"{name}-{digest[:16]}.npz", "sha256": digest},
        "measurements": [{**m.to_dict(), "units": f"u{k}" if f"u{k}" in units else None} for k, m in enumerate(kept)],
    }
    text = json.dumps({**data, "sha256": _checksum(data)}, indent=1, ensure_ascii=False) + "\n"
    text = re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    with locked(directory):
        _write_bytes(directory / str(data["side"]["file"]), side)  # type: ignore[index]  # a dict of the literal above
        write_atomically(directory / f"{name}.json", text)
        _remove_stale(directory, name, f"{name}-{digest[:16]}.npz")
    return directory / f"{name}.json"


def load_baseline(name: str | os.PathLike[str], storage: str | os.PathLike[str] = STORAGE) -> Baseline:
    """Read a baseline by its name, or by the path of its JSON; `"last"` is the one saved last.

    Raises `BaselineError`, in one line, where it is missing, empty, truncated, altered, of another program or of a
    newer schema.
    """
    text = os.fspath(name)
    if text.endswith(".json"):
        return _load(Path(text))
    if text == LAST:
        text = last_name(storage)
    check_name(text)
    path = Path(storage) / f"{text}.json"
    if not path.is_file():
        found = ", ".join(names(storage)) or "none"
        raise BaselineError(f"no baseline {text!r} in {os.fspath(storage)} (found: {found}); make one with "
                            f"--modelprops-save {text}")  # fmt: skip
    baseline = _load(path)
    if baseline.name != text:
        raise BaselineError(
            f"{path} holds the baseline {baseline.name!r}; a baseline keeps the name it was saved under"
        )
    return baseline


def names(storage: str | os.PathLike[str] = STORAGE) -> list[str]:
    """Return the names of the stored baselines, sorted."""
    return sorted(path.stem for path in Path(storage).glob("*.json") if _NAME.fullmatch(path.stem))


def last_name(storage: str | os.PathLike[str] = STORAGE) -> str:
    """Return the name of the baseline saved last; `BaselineError` where there is none, or one cannot be read."""
    found = [(_document(Path(storage) / f"{name}.json")["saved"], name) for name in names(storage)]
    if not found:
        raise BaselineError(f"no baseline in {os.fspath(storage)}; make one with --modelprops-save NAME")
    return str(max(found)[1])


def check_name(name: str) -> str:
    """Return a name that is one: letters, digits, `._+-`, no leading dot, at most 100 characters."""
    if not _NAME.fullmatch(name) or name == LAST or name.endswith(".json"):
        raise ArgumentError(
            f"{name!r} is not a baseline name; use letters, digits and ._+- (no path, no leading dot, not {LAST!r})"
        )
    return name


def orphans(storage: str | os.PathLike[str] = STORAGE) -> list[Path]:
    """Return side files and temporary files that no baseline names, left by saves that were killed."""
    directory = Path(storage)
    named = {str(_document(directory / f"{name}.json")["side"]["file"]) for name in names(storage)}
    left = [path for path in directory.glob("*.npz") if path.name not in named]
    return sorted([*left, *directory.glob(".*.json.*"), *directory.glob(".*.npz.*")])


def _distinct(measurements: Sequence[Measurement]) -> list[Measurement]:
    best: dict[tuple[str, ...], Measurement] = {}
    for m in sorted(measurements, key=lambda m: m.test):
        key = (str(m.subject.get("name")), str(m), m.domain, m.readout)
        if key not in best or _weight(m) > _weight(best[key]):
            best[key] = m
    return [best[key] for key in sorted(best)]


def _weight(m: Measurement) -> float:
    return float("inf") if m.estimate.method == "exact" else sum(m.sizes)


def _load(path: Path) -> Baseline:
    try:
        return _read(path)
    except FileNotFoundError:
        return _read_or_missing(path)  # a save may have replaced the pair between the two reads: look once more


def _read_or_missing(path: Path) -> Baseline:
    try:
        return _read(path)
    except FileNotFoundError as error:
        raise BaselineError(f"{path}: {error.filename} is missing; save the baseline again") from None


def _read(path: Path) -> Baseline:
    data = _document(path)
    try:
        arrays = _side(path, data["side"])
        rows = tuple(Measurement.from_dict(row, arrays[row["units"]] if row["units"] else None)
                     for row in data["measurements"])  # fmt: skip
        baseline = Baseline(str(data["name"]), rows, str(data["saved"]), data["commit"], data["environment"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BaselineError(f"{path} is not a baseline of schema {SCHEMA} ({_in_line(error)}); save it again") from None
    if not rows:
        raise BaselineError(f"{path} holds no measurements, so nothing can be compared with it; save it again")
    return baseline


def _document(path: Path) -> dict[str, Any]:
    """Return a checked document in the present schema."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise BaselineError(f"{path} has {size:,} bytes, more than the {MOST_BYTES:,} of any baseline; save it again")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{path} is not JSON ({_in_line(error)}): truncated or altered; save it again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BaselineError(f"{path} is not a baseline of modelprops; give one made with --modelprops-save")
    schema = data.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or (schema != SCHEMA and schema not in UPGRADES):
        newer = isinstance(schema, int) and schema > SCHEMA
        remedy = "upgrade modelprops, or save it again" if newer else "save it again"
        raise BaselineError(f"{path} has schema {schema!r:.40}, this version reads up to {SCHEMA}; {remedy}")
    stated = data.pop("sha256", None)
    if stated != _checksum(data):
        raise BaselineError(f"{path} was altered after it was saved (its hash does not match); save it again")
    while data["schema"] != SCHEMA:
        data = UPGRADES[data["schema"]](data)
    rows = data.get("measurements")
    if not isinstance(rows, list) or len(rows) > MOST_MEASUREMENTS:
        count = len(rows) if isinstance(rows, list) else 0
        raise BaselineError(f"{path} lists {count:,} measurements, not 1 to {MOST_MEASUREMENTS:,}; save it again")
    if not isinstance(data.get("saved"), str) or not isinstance(data.get("side"), dict) or "file" not in data["side"]:
        raise BaselineError(f"{path} is not a baseline of schema {SCHEMA} (no time or side file); save it again")
    checked: dict[str, Any] = data
    return checked


def _side(path: Path, side: Mapping[str, Any]) -> dict[str, Array]:
    name = str(side["file"])
    if Path(name).name != name or not name.endswith(".npz"):
        raise BaselineError(f"{path} names a side file outside its directory ({name!r:.60}); save it again")
    content = (path.parent / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != side["sha256"]:
        raise BaselineError(f"{path.parent / name} is not the side file that {path.name} was saved with (its hash does "
                            "not match); save the baseline again")  # fmt: skip
    return arrays_of(content)


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _write_bytes(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _remove_stale(directory: Path, name: str, current: str) -> None:
    pattern = re.compile(re.escape(name) + r"-[0-9a-f]{16}\.npz")
    for path in directory.glob("*.npz"):
        if pattern.fullmatch(path.name) and path.name != current:
            path.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One save at a time, so that none removes the side file that another has just written."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _commit() -> str | None:
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def _in_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]
