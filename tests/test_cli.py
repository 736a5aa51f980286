"""The command line: what is stored, for people."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy

from modelprops import cli
from modelprops.baseline import save_baseline


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Three baselines: old, new (slightly shifted) and worse."""
    for name, shift in (("old", 0.0), ("new", 0.001), ("worse", 0.1)):
        save_baseline(name, [toy.measurement(0, shift, 0.02 if shift else 0.0)], tmp_path)
    return str(tmp_path)


def run(store: str, *arguments: str) -> int:
    """Run the command line on a storage directory."""
    return cli.main(["--storage", store, *arguments])


def test_list_shows_every_baseline_in_order_of_saving(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "old", "new", "worse"]


def test_show_prints_measures_and_environment(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "show", "old") == 0
    out = capsys.readouterr().out
    assert "BooleanCube(n=4)" in out
    assert "torch" in out
    assert "toy" in out


def test_compare_gives_the_interval_of_the_paired_change(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "compare", "old", "worse") == 0
    row = capsys.readouterr().out.splitlines()[1]
    change = float(row.split("+")[1].split()[0])
    assert change == pytest.approx(0.1, abs=0.02)  # the shift of the toy


def test_history_compares_with_first_and_previous(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(store, "history") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["old", "new", "worse"]
    assert lines[3].count("[") == 2


def test_prune_removes_leftovers_and_old_baselines(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    left = Path(store) / "old-0123456789abcdef.npz"
    left.write_bytes(b"")
    (Path(store) / ".old.json.x1y2").write_text("")
    assert run(store, "prune") == 0
    assert not left.exists()
    assert run(store, "prune", "--keep", "1") == 0
    assert sorted(path.suffix for path in Path(store).glob("[!.]*")) == [".json", ".npz"]
    capsys.readouterr()
    assert run(store, "list") == 0
    assert "worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [("show", "nope"), ("show", "../x"), ("compare", "old", "nope"), ("prune", "--keep", "0")]
)
def test_a_mistake_is_one_line_and_status_2(
    store: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(store, *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("modelprops: ")
    assert len(err.splitlines()) == 1


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path), "list") == 0
    assert "--modelprops-save" in capsys.readouterr().out


def test_rich_draws_the_table_on_a_terminal(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(store, "list") == 0
    assert any(line in capsys.readouterr().out for line in "┃│|")
