"""Hugging Face directories: tiny random models saved to a temporary directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import modelprops as mp

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT encoder with a tokenizer's files and a Llama with tied embeddings."""
    root = tmp_path_factory.mktemp("pretrained")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bert = transformers.BertModel(
            transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=10, pad_token_id=0)
        )
        llama = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, intermediate_size=32, tie_word_embeddings=True, pad_token_id=2)
        )
    bert.save_pretrained(root / "bert")
    llama.save_pretrained(root / "llama")
    special = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    added = [{"id": token, "content": text, "special": True} for text, token in special.items()]
    (root / "bert" / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    names = {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}, "unk_token": "[UNK]"}
    (root / "bert" / "special_tokens_map.json").write_text(json.dumps(names))
    return {"bert": root / "bert", "llama": root / "llama"}


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target / source.name))


def test_an_encoder_loads_with_special_tokens_frozen_and_excluded(saved: dict[str, Path]) -> None:
    subject = mp.load(saved["bert"])
    assert subject.domain == mp.Tokens(40, 10, frozen={0: 2, 9: 3}, exclude=(0, 1, 2, 3, 4))
    model = transformers.BertModel.from_pretrained(saved["bert"]).eval()
    points = subject.domain.sample(5, torch.Generator().manual_seed(0))
    with torch.no_grad():
        pooled = model(points).last_hidden_state.double().mean(1)
    assert torch.allclose(subject(points), pooled / pooled.norm(dim=1, keepdim=True), atol=1e-6)


def test_the_ids_are_found_in_a_vocabulary_file_alone(saved: dict[str, Path], tmp_path: Path) -> None:
    directory = copied(saved["bert"], tmp_path)
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "a", "[CLS]", "[SEP]", "b"]))
    assert mp.load(directory).domain == mp.Tokens(40, 10, frozen={0: 2, 9: 3}, exclude=(0, 2, 3))


def test_a_causal_model_reads_one_frozen_next_token_and_computes_the_last_logits_only(saved: dict[str, Path]) -> None:
    subject = mp.load(saved["llama"])
    assert subject.domain == mp.Tokens(40, 32, frozen={}, exclude=(1, 2))
    assert subject.readout.name == "next-token-probability frozen"
    shapes: list[tuple[int, ...]] = []
    head = subject.module.lm_head
    handle = head.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
    points = subject.domain.sample(4, torch.Generator().manual_seed(0))
    values = subject(points)
    handle.remove()
    assert {shape[1:] for shape in shapes} == {(1, 40)}
    model = transformers.LlamaForCausalLM.from_pretrained(saved["llama"]).eval()
    token = int(subject.readout.name.split()[-1])
    with torch.no_grad():
        wanted = torch.softmax(model(points).logits[:, -1].double(), -1)[:, token]
    assert torch.allclose(values, wanted, atol=1e-6)


def test_loading_is_silent_offline_and_leaves_random_state_and_settings(
    saved: dict[str, Path], capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    log = transformers.utils.logging
    level, bars, state = log.get_verbosity(), log.is_progress_bar_enabled(), torch.get_rng_state()
    mp.load(saved["llama"], checkpoint=saved["llama"] / "model.safetensors")
    mp.load(saved["bert"])
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == (level, bars)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_state_dict_beside_a_directory_takes_the_place_of_its_weights(saved: dict[str, Path], tmp_path: Path) -> None:
    weights = {name: value * 1.5 for name, value in load_file(saved["llama"] / "model.safetensors").items()}
    assert "lm_head.weight" not in weights
    save_file(weights, tmp_path / "step2.safetensors")
    subject = mp.load(saved["llama"], checkpoint=tmp_path / "step2.safetensors")
    own = dict(subject.module.named_parameters())
    assert all(torch.equal(own[name], value) for name, value in weights.items())
    assert subject.module.lm_head.weight is subject.module.model.embed_tokens.weight


def test_a_directory_as_checkpoint_replaces_a_directory_or_fills_a_factory(
    saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mp.load(saved["bert"], checkpoint=saved["llama"]).name == "llama"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import transformers\ndef make():\n"
        f"    return transformers.BertModel(transformers.BertConfig.from_pretrained({str(saved['bert'])!r}))\n"
    )
    subject = mp.load("own.py:make", checkpoint=saved["bert"], domain="Tokens(40, 6)", readout="embedding")
    points = subject.domain.sample(3, torch.Generator().manual_seed(0))
    assert torch.equal(subject(points), mp.load(saved["bert"], domain="Tokens(40, 6)")(points))


def test_a_dtype_is_met_when_loading(saved: dict[str, Path]) -> None:
    assert next(mp.load(saved["bert"], dtype="float64").module.parameters()).dtype == torch.float64


def spoiled(directory: Path, change: Any) -> None:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_do_not_fit_a_directory_are_listed(saved: dict[str, Path], tmp_path: Path) -> None:
    name = "encoder.layer.0.output.dense.bias"

    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["stranger"] = weights.pop(name)
        weights["pooler.dense.bias"] = torch.zeros(3)

    directory = copied(saved["bert"], tmp_path)
    spoiled(directory, change)
    with pytest.raises(mp.LoadError) as caught:
        mp.load(directory)
    assert f"missing: {name}" in str(caught.value)
    assert "unexpected: stranger" in str(caught.value)
    assert "of another shape: pooler.dense.bias" in str(caught.value)


def configured(directory: Path, **changes: Any) -> None:
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**content, **changes}))


def test_a_directory_that_cannot_be_loaded_says_why(saved: dict[str, Path], tmp_path: Path) -> None:
    directory = copied(saved["bert"], tmp_path)
    configured(directory, architectures=["NoSuchModel"])
    with pytest.raises(mp.LoadError, match="architecture 'NoSuchModel'"):
        mp.load(directory)
    configured(directory, model_type="martian", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    with pytest.raises(mp.LoadError, match="its own Python code"):
        mp.load(directory)
    assert not (tmp_path / "trace").exists()
    (directory / "config.json").write_text("{")
    with pytest.raises(mp.LoadError, match="could not be loaded"):
        mp.load(directory)


def test_damaged_absent_and_unsafe_weights_of_a_directory_are_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    directory = copied(saved["bert"], tmp_path)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(mp.LoadError, match="could not be loaded"):
        mp.load(directory)
    weights.unlink()
    with pytest.raises(mp.LoadError, match="could not be loaded"):
        mp.load(directory)
    torch.save(torch.nn.Linear(2, 2), directory / "pytorch_model.bin")
    with pytest.raises(mp.UnsafeCheckpointError, match="Linear"):
        mp.load(directory)


def test_a_safe_bin_file_is_read(saved: dict[str, Path], tmp_path: Path) -> None:
    directory = copied(saved["bert"], tmp_path)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    points = torch.randint(5, 40, (3, 10), generator=torch.Generator().manual_seed(0))
    assert torch.equal(mp.load(directory)(points), mp.load(saved["bert"])(points))


def test_a_file_that_is_no_gguf_says_so(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(mp.LoadError, match="could not be loaded"):
        mp.load(tmp_path / "m.gguf")


def test_a_gguf_without_its_packages_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "gguf" else real(name, *more))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(mp.LoadError, match=r"modelprops\[transformers\]"):
        mp.load(tmp_path / "m.gguf")


def test_only_the_hub_spec_goes_online(saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, bool]] = []

    def fetch(name: str, *, local_files_only: bool, **_rest: Any) -> str:
        asked.append((name, local_files_only))
        return str(saved["bert"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert mp.load(saved["bert"]).name == "bert"
    assert asked == []
    assert mp.load("hf:someone/bert").name == "someone/bert"
    assert asked == [("someone/bert", False)]


def test_an_encoder_decoder_asks_for_a_factory(tmp_path: Path) -> None:
    transformers.T5Config(vocab_size=20, d_model=8, num_layers=1).save_pretrained(tmp_path)
    with pytest.raises(mp.LoadError, match="encoder-decoder"):
        mp.load(tmp_path)
