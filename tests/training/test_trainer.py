"""The regulariser and the monitor inside a Hugging Face Trainer, on tiny random models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import modelprops as mp
from modelprops.training import EmbeddingNoise, LayerNoise, Monitor, StabilityRegulariser
from modelprops.training.trainer import RegularisedTrainerMixin, monitor_callback, token_penalty

transformers = pytest.importorskip("transformers")


def tiny_bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def tiny_gpt() -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=30, n_positions=12, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    )


def rows(count: int, causal: bool) -> list[dict[str, Any]]:
    ids = torch.randint(1, 30, (count, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, 6:] = 0
    return [
        {"input_ids": ids[i], "attention_mask": mask[i], "labels": ids[i] if causal else int(ids[i, 0]) % 2}
        for i in range(count)
    ]


def trained(regulariser: Any, folder: Path, *, causal: bool, **options: Any) -> tuple[list[float], Any]:
    """Losses of the steps as the Trainer logs them, and the Trainer."""

    class StableTrainer(RegularisedTrainerMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
        pass

    StableTrainer.regulariser = regulariser
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=options.pop("batch", 8),
        gradient_accumulation_steps=options.pop("accumulate", 1),
        learning_rate=0.0,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        max_grad_norm=0.0,
    )
    model = tiny_gpt() if causal else tiny_bert()
    trainer = StableTrainer(model=model, args=arguments, train_dataset=rows(16, causal), **options)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], trainer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_with_everything_kept_the_loss_rises_by_the_confidence(tmp_path: Path, causal: bool, accumulate: int) -> None:
    # keep = 1 draws nothing, so the penalty is gamma sum p^2 over the same batches, here recomputed by hand; the
    # learning rate is 0, so the model stays as it is.
    options = {"causal": causal, "accumulate": accumulate, "batch": 8 // accumulate}
    plain, _ = trained(StabilityRegulariser(0.0, direction="discourage", keep=1.0), tmp_path, **options)
    confident, trainer = trained(StabilityRegulariser(2.0, direction="discourage", keep=1.0), tmp_path, **options)
    data = rows(16, causal)
    with torch.no_grad():
        squared = (
            trainer.model.cpu()(
                input_ids=torch.stack([row["input_ids"] for row in data]),
                attention_mask=torch.stack([row["attention_mask"] for row in data]),
            ).logits.softmax(-1)
            ** 2
        ).sum(-1)
    expected = 2 * float(squared[:, :6].mean() if causal else squared.mean())
    assert sum(confident) / 2 - sum(plain) / 2 == pytest.approx(expected, rel=2e-3)


def test_every_term_goes_through_the_same_interface() -> None:
    model, batch = (
        tiny_bert(),
        {key: torch.stack([row[key] for row in rows(8, True)[:8]]) for key in ("input_ids", "attention_mask")},
    )
    outputs = model(**batch)
    for term in (
        StabilityRegulariser(1.0, direction="encourage", keep=0.5, resample_from=30, protected=(0,)),
        EmbeddingNoise(1.0, scale=0.1),
        LayerNoise(1.0, layers=("bert.encoder.layer.0", "bert.encoder.layer.1")),
    ):
        value = token_penalty(term, model, batch, outputs)
        assert value.requires_grad
        assert torch.isfinite(value)
    with pytest.raises(mp.ArgumentError, match="input_ids"):
        token_penalty(EmbeddingNoise(1.0, scale=0.1), model, {"pixels": torch.zeros(1)}, outputs)


def test_the_monitor_logs_its_numbers(tmp_path: Path) -> None:
    monitor = Monitor(mp.Tokens(30, 8), ("average_sensitivity",), readout="probability", every=1, budget=64)
    term = StabilityRegulariser(0.1, direction="discourage", keep=0.9, resample_from=30)
    _, trainer = trained(term, tmp_path, causal=False, callbacks=[monitor_callback(monitor)])
    logged = [row for row in trainer.state.log_history if "modelprops/average_sensitivity" in row]
    assert [row["step"] for row in logged] == [1, 2]
    assert all(row["modelprops/average_sensitivity"] >= 0 for row in logged)


def test_transformers_is_not_imported_by_the_training_package() -> None:
    code = "import sys; from modelprops.training import monitor_callback; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
