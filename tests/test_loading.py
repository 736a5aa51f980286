"""mp.load on models made on the fly; the expected outputs come from the modules themselves, called directly."""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import modelprops as mp
from modelprops.checkpoints import globals_of, load_weights, state_dict_of
from modelprops.specs import parse_domain, parse_readout

FACTORIES = """
import torch
import modelprops as mp

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
        self.second = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(2, 3)
        self.head = torch.nn.Linear(3, 2, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, bits):
        return self.head(self.embed(bits).mean(1))[:, 0]

def subject():
    return mp.Subject(Net(), mp.BooleanCube(6), "sign", name="mine")

def number():
    return 3

def broken():
    raise ZeroDivisionError("no layers")

made = Net()
constant = 5
"""


class Malice:
    """Pickles to a call that creates a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return open, (str(self.trace), "w")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of factories that is also a module."""
    (tmp_path / "zoo_of_loading.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "zoo_of_loading", raising=False)
    return tmp_path


def loaded(checkpoint: Path | None = None, factory: str = "Net", **options: Any) -> mp.Subject:
    return mp.load(f"zoo_of_loading.py:{factory}", checkpoint=checkpoint, domain=mp.BooleanCube(6), **options)


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    shapes = {"first.weight": (4, 6), "first.bias": (4,), "second.weight": (1, 4), "second.bias": (1,)}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def expected(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(x @ weights["first.weight"].T + weights["first.bias"])
    return (hidden @ weights["second.weight"].T + weights["second.bias"])[:, 0].double()


def test_a_factory_loads_by_module_and_by_file_and_leaves_the_path_alone(here: Path) -> None:
    before = list(sys.path)
    by_module = mp.load("zoo_of_loading:Net", domain="BooleanCube(6)", readout="sign")
    by_file = mp.load("zoo_of_loading.py:Net", domain="BooleanCube(6)")
    assert by_module.domain == by_file.domain == mp.BooleanCube(6)
    assert by_module.readout.name == "sign"
    assert by_module.name == "zoo_of_loading:Net"
    assert sys.path == before


def test_a_factory_may_return_a_subject_or_name_a_made_module(here: Path) -> None:
    assert mp.load("zoo_of_loading:subject").name == "mine"
    changed = mp.load("zoo_of_loading:subject", readout="none", domain="BooleanCube(6, encoding='pm1')", batch_size=2)
    assert changed.readout.name != "sign"
    assert changed.batch_size == 2
    assert isinstance(mp.load("zoo_of_loading:made", domain=mp.BooleanCube(6)).module, torch.nn.Module)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("zoo_of_loading:number", "returned a int"),
        ("zoo_of_loading:constant", "is a int"),
        ("zoo_of_loading:broken", "ZeroDivisionError: no layers"),
        ("zoo_of_loading:absent", "has no 'absent'"),
        ("no_such_module_of_mine:Net", "no module 'no_such_module_of_mine'"),
        ("zoo_of_loading.below:Net", "No module named"),
        ("absent.py:Net", "no file 'absent.py'"),
        (":Net", "lacks a part"),
        ("nowhere/at/all", "no existing path"),
        ("demo:conjunction", "demo:majority"),
        ("weights.safetensors", "give a factory"),
        ("absent.gguf", "not a file"),
        ("absent.pt2", "not a file"),
        (".", "no config.json"),
    ],
)
def test_a_spec_that_cannot_be_loaded_says_why(here: Path, spec: str, reason: str) -> None:
    with pytest.raises(mp.LoadError, match=reason.replace("(", r"\(")):
        mp.load(spec, domain=mp.BooleanCube(6))


def test_a_module_without_a_known_domain_asks_for_one(here: Path) -> None:
    with pytest.raises(mp.ArgumentError, match="give domain="):
        mp.load("zoo_of_loading:Net")
    with pytest.raises(mp.ArgumentError, match=r"mp\.Subject"):
        mp.load(torch.nn.Linear(1, 1))  # type: ignore[arg-type]  # the mistake under test


def test_a_file_that_exits_is_a_load_error_and_is_forgotten(here: Path) -> None:
    (here / "leaver.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(mp.LoadError, match="SystemExit"):
        mp.load("leaver.py:Net", domain=mp.BooleanCube(6))
    assert "modelprops_model_leaver" not in sys.modules


def test_loading_leaves_the_global_random_state(here: Path) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    after = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    loaded()
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == after


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_state_dict_gives_the_module_its_weights(here: Path, suffix: str, prefix: str) -> None:
    weights = tensors()
    path = here / f"weights{suffix}"
    renamed = {prefix + name: value for name, value in weights.items()}
    if suffix == ".safetensors":
        save_file(renamed, path)
    else:
        torch.save({"state_dict": renamed, "epoch": 3} if prefix else renamed, path)
    subject = loaded(path)
    points = mp.BooleanCube(6).exhaustive()
    assert torch.allclose(subject(points), expected(weights, points.float()), atol=1e-6)
    assert subject.name.endswith(f"@ weights{suffix}")


def test_a_checkpoint_also_fills_a_factorys_subject(here: Path) -> None:
    weights = tensors()
    save_file(weights, here / "w.safetensors")
    subject = mp.load("zoo_of_loading:subject", checkpoint="w.safetensors")
    points = mp.BooleanCube(6).exhaustive()
    assert torch.equal(subject(points), torch.where(expected(weights, points.float()) >= 0, 1.0, -1.0).double())
    assert subject.name == "mine @ w.safetensors"


def test_keys_that_do_not_fit_are_all_listed_and_nothing_is_loaded(here: Path) -> None:
    weights = tensors()
    weights["second.weight"] = torch.zeros(2, 4)
    weights["extra"] = torch.zeros(1)
    del weights["first.bias"]
    module = loaded().module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(mp.LoadError) as caught:
        load_weights(module, weights, "w.pt")
    text = str(caught.value)
    assert "missing: first.bias" in text
    assert "unexpected: extra" in text
    assert "second.weight has shape (2, 4), not (1, 4)" in text
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_one_of_two_tied_weights_is_enough_and_two_must_agree(here: Path) -> None:
    table = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
    torch.save({"embed.weight": table}, here / "one.pt")
    torch.save({"embed.weight": table, "head.weight": table}, here / "both.pt")
    torch.save({"embed.weight": table, "head.weight": table + 1}, here / "apart.pt")
    for name in ("one.pt", "both.pt"):
        module = loaded(here / name, "Tied").module
        assert module.head.weight is module.embed.weight
        assert torch.equal(module.embed.weight, table)
    with pytest.raises(mp.LoadError, match=r"differs from embed\.weight"):
        loaded(here / "apart.pt", "Tied")


def test_integers_are_not_cast_into_floating_weights(here: Path) -> None:
    torch.save({name: value.long() for name, value in tensors().items()}, here / "ints.pt")
    with pytest.raises(mp.LoadError, match=r"dtype torch\.int64"):
        loaded(here / "ints.pt")


def test_damaged_missing_and_foreign_checkpoints_say_what_they_are(here: Path) -> None:
    save_file(tensors(), here / "whole.safetensors")
    (here / "cut.safetensors").write_bytes((here / "whole.safetensors").read_bytes()[:60])
    torch.save(tensors(), here / "whole.pt")
    (here / "cut.pt").write_bytes((here / "whole.pt").read_bytes()[:200])
    (here / "text.pt").write_text("not a checkpoint")
    torch.save(torch.zeros(3), here / "tensor.pt")
    torch.save({"optimizer": {"lr": 1}, "epoch": 2}, here / "mixed.pt")
    (here / "weights.npz").write_bytes(b"")
    faults = {
        "cut.safetensors": "not a whole safetensors file",
        "cut.pt": "not a whole torch checkpoint",
        "text.pt": "not a whole torch checkpoint",
        "absent.pt": "not a file",
        "tensor.pt": "a Tensor, not a state dict",
        "mixed.pt": "optimizer, epoch",
        "weights.npz": "no known kind",
    }
    for name, reason in faults.items():
        with pytest.raises(mp.LoadError, match=reason) as caught:
            loaded(here / name)
        assert not isinstance(caught.value, mp.UnsafeCheckpointError)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_runs_code_is_refused_and_leaves_no_trace(here: Path, zipped: bool, protocol: int) -> None:
    trace = here / "trace"
    torch.save({"w": Malice(trace)}, here / "bad.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    with pytest.raises(mp.UnsafeCheckpointError, match=r"would import and run (io|_io|builtins)\.open"):
        loaded(here / "bad.pt")
    assert not trace.exists()


def test_a_bare_pickle_and_a_pickled_module_are_refused_by_name(here: Path) -> None:
    trace = here / "trace"
    (here / "bare.bin").write_bytes(pickle.dumps(Malice(trace)))
    with pytest.raises(mp.UnsafeCheckpointError, match=r"open"):
        loaded(here / "bare.bin")
    assert not trace.exists()
    torch.save(torch.nn.Linear(2, 2), here / "module.pt")
    with pytest.raises(mp.UnsafeCheckpointError, match=r"torch\.nn\.modules\.linear\.Linear"):
        loaded(here / "module.pt")


def test_names_are_read_from_memoised_strings_too() -> None:
    stream = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x930h\x00h\x01\x93."
    assert globals_of(io.BytesIO(stream)) == ["posix.system"]


def exported(path: Path, *, dynamic: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).eval()
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    torch.export.save(torch.export.export(module, (torch.randn(4, 6),), dynamic_shapes=shapes), path)
    return module


def rewritten(source: Path, target: Path, change: Any) -> None:
    """Copy an archive member by member through `change(name, content)`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))


def test_an_exported_program_loads_and_a_single_batch_size_is_refused(tmp_path: Path) -> None:
    module = exported(tmp_path / "m.pt2")
    subject = mp.load(tmp_path / "m.pt2", domain="BooleanCube(6)")
    points = mp.BooleanCube(6).exhaustive()
    with torch.no_grad():
        assert torch.allclose(subject(points), module(points.float())[:, 0].double(), atol=1e-6)
    exported(tmp_path / "fixed.pt2", dynamic=False)
    with pytest.raises(mp.LoadError, match="batch size 4 alone"):
        mp.load(tmp_path / "fixed.pt2", domain="BooleanCube(6)")


def test_an_exported_transformer_passes_the_inspection(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.TransformerEncoder(layer, 2), torch.nn.Flatten())
    batch = torch.export.Dim("batch")
    program = torch.export.export(module.eval(), (torch.zeros(4, 5).long(),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "t.pt2")
    subject = mp.load(tmp_path / "t.pt2", domain="Tokens(20, 5)")
    points = subject.domain.sample(3, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(subject(points), module(points).double(), atol=1e-5)


def test_an_exported_program_that_would_run_code_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    exported(tmp_path / "m.pt2")
    trace = tmp_path / "trace"
    buffer = io.BytesIO()
    torch.save(Malice(trace), buffer)

    def sample(name: str, content: bytes) -> bytes:
        return buffer.getvalue() if name.endswith("sample_inputs/model.pt") else content

    def weight(name: str, content: bytes) -> bytes:
        if name.endswith("weights/weight_0"):
            return buffer.getvalue()
        return content.replace(b'"use_pickle": false', b'"use_pickle": true') if name.endswith(".json") else content

    def expression(name: str, content: bytes) -> bytes:
        call = b'"expr_str": ' + json.dumps(f"open({str(trace)!r}, 'w')").encode() + b', "hint"'
        return re.sub(rb'"expr_str": "[^"]*", "hint"', lambda _: call, content)

    def operator(name: str, content: bytes) -> bytes:
        return content.replace(b"torch.ops.aten.tanh.default", b"torch.serialization.os.remove")

    def name(member: str, content: bytes) -> bytes:
        return content.replace(b'"input"', b'"input=print()"') if "models/" in member else content

    def guard(member: str, content: bytes) -> bytes:
        code = json.dumps([f"open({str(trace)!r}, 'w')"]).encode()
        return re.sub(rb'"guards_code": \[[^]]*\](?=[,}])', lambda _: b'"guards_code": ' + code, content)

    rewritten(tmp_path / "m.pt2", tmp_path / "guard.pt2", guard)
    assert trace.name.encode() in (tmp_path / "guard.pt2").read_bytes()
    mp.load(tmp_path / "guard.pt2", domain="BooleanCube(6)")(mp.BooleanCube(6).exhaustive())
    assert not trace.exists()

    cases = {sample: r"sample_inputs/model\.pt.*open", weight: r"weight_0.*open", expression: "the expression .open"}
    for change, reason in {**cases, operator: r"serialization\.os\.remove", name: "source code"}.items():
        path = tmp_path / f"{change.__name__}.pt2"
        rewritten(tmp_path / "m.pt2", path, change)
        with pytest.raises(mp.UnsafeCheckpointError, match=reason):
            mp.load(path, domain="BooleanCube(6)")
        assert not trace.exists()
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "m.pt2").read_bytes()[:300])
    with pytest.raises(mp.LoadError, match=r"not a torch\.export program"):
        mp.load(tmp_path / "cut.pt2", domain="BooleanCube(6)")


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("BooleanCube(12)", mp.BooleanCube(12)),
        ("BooleanCube(12, encoding='bits')", mp.BooleanCube(12, "bits")),
        ("Tokens(50257, 64)", mp.Tokens(50257, 64)),
        ("Tokens(10, length=4, frozen={0: 1}, exclude=(1, 2))", mp.Tokens(10, 4, {0: 1}, (1, 2))),
        ("Gaussian((3, 8))", mp.Gaussian((3, 8))),
    ],
)
def test_a_domain_is_read_from_text(text: str, domain: Any) -> None:
    assert parse_domain(text) == domain


@pytest.mark.parametrize("text", ["Cube(3)", "Tokens(3)", "BooleanCube(__import__('os'))", "BooleanCube(0)", "", "3"])
def test_a_domain_text_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(mp.ArgumentError):
        parse_domain(text)


def test_a_readout_is_read_from_text() -> None:
    assert parse_readout("sign") == "sign"
    assert parse_readout("none") is None
    assert parse_readout("logit 3") == ("logit", 3)
    assert parse_readout("next-token-probability frozen") == ("next-token-probability", "frozen")
    assert parse_readout("('next-token-probability', 7)") == ("next-token-probability", 7)
    for text in ("signs", "logit", "logit x", "(1, 2)", "(open('x'),)"):
        with pytest.raises(mp.ArgumentError):
            parse_readout(text)


def test_a_safetensors_file_is_read_as_it_was_saved(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "w.safetensors")
    assert all(torch.equal(value, tensors()[name]) for name, value in state_dict_of(tmp_path / "w.safetensors").items())


def test_a_demo_comes_with_its_domain_readout_and_claims() -> None:
    subject = mp.load("demo:parity")
    assert subject.domain == mp.BooleanCube(12, "bits")
    assert subject.readout.name == "sign"
    assert subject.claims
    points = subject.domain.exhaustive()
    assert torch.equal(subject(points).abs(), torch.ones(4096, dtype=torch.float64))
    assert mp.load("demo:majority").claims == subject.claims
