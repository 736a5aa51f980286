"""Stored baselines: what is written is read again, and nothing else ever passes for one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import toy

import modelprops as mp
from modelprops import baseline as storage_module
from modelprops.baseline import last_name, load_baseline, names, orphans, save_baseline
from modelprops.measurement import Measurement


def save(directory: Path, name: str = "old", seed: int = 0, units: int = 500) -> Path:
    """Store two toy measurements."""
    return save_baseline(name, [toy.measurement(seed, units=units), toy.measurement(seed, name="other")], directory)


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = save(tmp_path)
    read = load_baseline("old", tmp_path)
    again = load_baseline(path)
    assert [str(m) for m in read.measurements] == ["other", "toy"]
    expected = toy.measurement(0, units=500)
    for found in (read.measurements[1], again.measurements[1]):
        assert found.units is not None
        assert expected.units is not None
        np.testing.assert_array_equal(found.units, expected.units)
        assert found.sizes == expected.sizes
        assert found.limits == (0.0, 1.0)
        assert found.estimate.value == expected.estimate.value


def test_the_json_is_readable_and_names_what_the_numbers_depend_on(tmp_path: Path) -> None:
    data = json.loads(save(tmp_path).read_text())
    assert {"schema", "name", "saved", "commit", "environment", "side", "measurements", "sha256"} <= set(data)
    row = data["measurements"][0]
    assert {"measure", "version", "parameters", "domain", "readout", "sizes", "estimate", "subject", "test"} <= set(row)
    assert {"torch", "numpy", "python", "modelprops"} <= set(data["environment"])


def test_the_same_measurements_give_the_same_bytes_apart_from_times(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    texts = []
    for directory in (one, two):
        data = json.loads(save(directory).read_text())
        data.pop("saved"), data.pop("sha256")
        texts.append(json.dumps(data))
    assert texts[0] == texts[1]
    sides = [next(directory.glob("*.npz")) for directory in (one, two)]
    assert sides[0].name == sides[1].name
    assert sides[0].read_bytes() == sides[1].read_bytes()


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "../up", "a/b", "/etc/passwd", "a\\b", "a\0b", "last", "x" * 101, "é", "a.json"]
)
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(mp.ArgumentError, match="not a baseline name"):
        save(tmp_path, name)
    assert not list(tmp_path.iterdir())


def edit(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    """A corruption that rewrites the JSON with a correct hash of its own."""

    def apply(directory: Path) -> None:
        path = directory / "old.json"
        data = json.loads(path.read_text())
        data.pop("sha256")
        change(data)
        data["sha256"] = storage_module._checksum(data)
        path.write_text(json.dumps(data))

    return apply


def flip(suffix: str) -> Callable[[Path], None]:
    """Flip one bit in the middle of a file."""

    def apply(directory: Path) -> None:
        path = next(directory.glob(f"old*{suffix}"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return apply


def truncate(suffix: str, share: float) -> Callable[[Path], None]:
    """Keep the first part of a file."""

    def apply(directory: Path) -> None:
        path = next(directory.glob(f"old*{suffix}"))
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return apply


def swap_sides(directory: Path) -> None:
    """Put the side file of another baseline in the place of this one's."""
    save(directory, "other", seed=9)
    shutil.copy(next(directory.glob("other-*.npz")), next(directory.glob("old-*.npz")))


CORRUPTIONS: dict[str, Callable[[Path], object]] = {
    "flipped bit in the json": flip(".json"),
    "flipped bit in the side file": flip(".npz"),
    "json cut in half": truncate(".json", 0.5),
    "empty json": truncate(".json", 0),
    "side file cut in half": truncate(".npz", 0.5),
    "empty side file": truncate(".npz", 0),
    "side file gone": lambda d: next(d.glob("old-*.npz")).unlink(),
    "both gone": lambda d: [path.unlink() for path in d.glob("old*")],
    "swapped side files": swap_sides,
    "newer schema": edit(lambda data: data.update(schema=99)),
    "schema is a word": edit(lambda data: data.update(schema="one")),
    "no schema": edit(lambda data: data.pop("schema")),
    "of another program": lambda d: (d / "old.json").write_text('{"benchmarks": [], "version": "5.1.0"}'),
    "a list": lambda d: (d / "old.json").write_text("[1, 2]"),
    "no measurements": edit(lambda data: data.update(measurements=[])),
    "measurements missing": edit(lambda data: data.pop("measurements")),
    "a million measurements": edit(lambda data: data.update(measurements=[{}] * 10**6)),
    "wrong rows": edit(lambda data: data.update(measurements=[{"measure": "toy"}, 3])),
    "another name": edit(lambda data: data.update(name="prod")),
    "side file elsewhere": edit(lambda data: data.update(side={"file": "../x.npz", "sha256": "0"})),
    "binary": lambda d: (d / "old.json").write_bytes(os.urandom(2000)),
    "deeply nested": lambda d: (d / "old.json").write_text("[" * 100_000),
    "a directory": lambda d: ((d / "old.json").unlink(), (d / "old.json").mkdir()),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupt_baseline_is_a_one_line_error(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    CORRUPTIONS[name](tmp_path)
    with pytest.raises(mp.BaselineError) as caught:
        load_baseline("old", tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = save(tmp_path)
    content = path.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        place = rng.randrange(len(content) - 1)  # the last byte is the newline after the document
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            found = load_baseline("old", tmp_path)
        except mp.BaselineError:
            continue
        # white space between tokens may become other white space
        assert json.loads(changed) == json.loads(content)
        assert found.name == "old"


def test_an_older_schema_is_upgraded_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)

    def second(data: dict[str, object]) -> dict[str, object]:
        return {**data, "schema": 2}

    def third(data: dict[str, object]) -> dict[str, object]:
        return {**data, "schema": 3, "commit": "from 2"}

    monkeypatch.setattr(storage_module, "SCHEMA", 3)
    monkeypatch.setattr(storage_module, "UPGRADES", {1: second, 2: third})
    assert load_baseline("old", tmp_path).commit == "from 2"
    monkeypatch.setattr(storage_module, "UPGRADES", {2: third})
    with pytest.raises(mp.BaselineError, match="schema 1"):
        load_baseline("old", tmp_path)


def test_nothing_measured_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(mp.ArgumentError, match="empty"):
        save_baseline("old", [], tmp_path)


def test_last_is_the_one_saved_last_and_an_unreadable_one_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(mp.BaselineError, match="no baseline"):
        load_baseline("last", tmp_path)
    save(tmp_path, "b")
    save(tmp_path, "a")
    assert last_name(tmp_path) == "a"
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(mp.BaselineError, match=r"a\.json"):
        load_baseline("last", tmp_path)


def test_saving_again_replaces_the_pair_and_leaves_no_files_behind(tmp_path: Path) -> None:
    save(tmp_path, seed=1)
    save(tmp_path, seed=2)
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert orphans(tmp_path) == []


def test_of_one_quantity_measured_twice_the_one_with_most_units_is_kept(tmp_path: Path) -> None:
    save_baseline("old", [toy.measurement(0, units=100), toy.measurement(1, units=300)], tmp_path)
    (kept,) = load_baseline("old", tmp_path).measurements
    assert kept.estimate.samples == 300


def test_a_measurement_travels_whole(tmp_path: Path) -> None:
    old = toy.measurement(3, units=64)
    again = Measurement.unpacked(json.loads(json.dumps(old.packed())))
    assert again.units is not None
    assert old.units is not None
    np.testing.assert_array_equal(again.units, old.units)
    assert again.to_dict() == old.to_dict()


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a child process; return its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_save_killed_at_any_moment_leaves_a_whole_baseline(tmp_path: Path) -> None:
    contents = [[toy.measurement(seed, units=3_000)] for seed in (1, 2)]
    save_baseline("old", contents[0], tmp_path)
    seeds = {m[0].estimate.seed for m in contents}

    def work() -> None:
        for k in range(10_000):
            save_baseline("old", contents[k % 2], tmp_path)

    rng = random.Random(0)
    seen = set()
    for _ in range(50):
        child = forked(work)
        time.sleep(rng.uniform(0.0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (found,) = load_baseline("old", tmp_path).measurements
        assert found.units is not None
        assert found.estimate.value == found.units.mean()
        seen.add(found.estimate.seed)
    assert seen <= seeds
    assert names(tmp_path) == ["old"]
    for path in orphans(tmp_path):
        path.unlink()
    assert load_baseline("old", tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_that_save_together_leave_one_complete_baseline(tmp_path: Path) -> None:
    contents = [[toy.measurement(seed, units=1_000)] for seed in (1, 2)]
    save_baseline("old", contents[0], tmp_path)
    children = [forked(lambda own=own: [save_baseline("old", own, tmp_path) for _ in range(20)]) for own in contents]  # type: ignore[misc]
    for _ in range(20):
        assert load_baseline("old", tmp_path).measurements
    for child in children:
        os.waitpid(child, 0)
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert load_baseline("old", tmp_path).measurements
