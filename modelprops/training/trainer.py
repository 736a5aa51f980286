"""The regulariser and the monitor in a Hugging Face `Trainer`; `transformers` is imported only where it is used.

class StableTrainer(RegularisedTrainerMixin, transformers.Trainer):
    regulariser = StabilityRegulariser(0.1, direction="discourage", keep=0.9, resample_from=vocabulary)

StableTrainer(model, arguments, train_dataset=data, callbacks=[monitor_callback(monitor)]).train()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from modelprops.training.configuration import Observer, Regulariser

INPUTS = ("input_ids", "inputs_embeds")


class RegularisedTrainerMixin:
    """Put in front of `transformers.Trainer`: adds `regulariser.penalty` to the training loss.

    The regulariser sees `input_ids` (or `inputs_embeds`), the logits of the Trainer's own forward pass and the
    attention mask, so that padding neither changes nor counts; its second pass gets all other inputs except the
    labels. The noise comes from torch's global generator, which the Trainer seeds and checkpoints. Evaluation losses
    are left as they are. Gradient accumulation: every micro-batch adds its share, as the Trainer's own losses do.
    """

    regulariser: Regulariser

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The Trainer's loss, and in training the penalty on top."""
        kept = dict(inputs)
        loss, outputs = super().compute_loss(  # type: ignore[misc]  # the Trainer behind this mixin
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        if model.training:
            penalty = token_penalty(self.regulariser, model, kept, outputs)
            if self._is_scaled(num_items_in_batch):
                penalty = penalty / self._micro_batches()
            loss = loss + penalty
        return (loss, outputs) if return_outputs else loss

    def _micro_batches(self) -> int:
        """How many backward passes this optimiser step adds up; fewer than asked at the end of an epoch."""
        asked = self.args.gradient_accumulation_steps  # type: ignore[attr-defined]  # the Trainer's
        return int(getattr(self, "current_gradient_accumulation_steps", asked))

    def _is_scaled(self, num_items_in_batch: Any) -> bool:
        """Whether the Trainer takes the loss as normalised over all micro-batches, and will not divide it."""
        stated = getattr(self, "loss_is_scaled_for_ga", None)
        if stated is not None:
            return bool(stated)
        by_model = getattr(self, "model_accepts_loss_kwargs", False) and num_items_in_batch is not None
        return bool(by_model or getattr(self, "compute_loss_func", None) is not None)


def token_penalty(regulariser: Regulariser, model: nn.Module, inputs: Mapping[str, Any], outputs: Any) -> Tensor:
    """`regulariser.penalty` for a Hugging Face model and its batch, a dict with input_ids or inputs_embeds.

    `outputs` is the model's output on `inputs`. Raises `ArgumentError` if the batch has neither.
    """
    from modelprops.errors import ArgumentError

    name = next((name for name in INPUTS if inputs.get(name) is not None), None)
    if name is None:
        raise ArgumentError(f"a batch with {', '.join(inputs)} has no {' or '.join(INPUTS)}; the noise acts on those")
    rest = {key: value for key, value in inputs.items() if key not in (name, "labels")}
    return regulariser.penalty(
        model,
        inputs[name],
        outputs,
        mask=inputs.get("attention_mask"),
        forward=lambda noisy: model(**{name: noisy}, **rest),
    )


def monitor_callback(observer: Observer) -> Any:
    """A `transformers.TrainerCallback` that measures every `observer.every` steps and logs under `modelprops/`.

    The numbers are in `trainer.state.log_history` and go to the Trainer's reporters. Needs `transformers`.
    """
    from transformers import TrainerCallback

    from modelprops.preserve import preserved

    class MonitorCallback(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            if state.global_step % observer.every or not state.is_world_process_zero:
                return
            with preserved(model):
                numbers = observer.measure(model, state.global_step)
            row = {f"modelprops/{key}": value for key, value in numbers.items()}
            state.log_history.append({"step": state.global_step, "epoch": state.epoch, **row})

    return MonitorCallback()
