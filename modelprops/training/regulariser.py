"""The stability regulariser (Haris, Zhang and Yoshida 2026, Definition 6.1): agreement of the outputs at X and at Y.

Y is a noisy copy of X, drawn afresh at every step. Encouraging the agreement is the paper's proposal; in the runs of
this project it *stopped* generalisation on modular addition and discouraging it helped (spec C5), so the direction
has no default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from modelprops.errors import ArgumentError, OutputError

DIRECTIONS = ("encourage", "discourage")
OUTPUTS = ("logits", "probabilities", "real")
Forward = Callable[[Tensor], Any]


@dataclass(frozen=True)
class StabilityRegulariser:
    """gamma (-1)^S E_x <M(X), M(Y)>, to be added to the loss: S = 1 (minus) encourages agreement, S = 0 discourages it.

    M is the softmax of the logits (`outputs="logits"`), the output itself (`"probabilities"`), or a real output
    (`"real"`, where the product is f(X) f(Y)). Logits may be (batch, classes), or (batch, length, classes) as of a
    language model: then the agreement is averaged over the positions as well.

    The noise is named by what it is. `keep=p`: each token is kept with probability p, else drawn from `resample_from`
    (it may come out the same); its correlation is p. `rho=r` is the textbook pair of correlation r: keep = r for
    tokens, Y = m + r (X - m) + sqrt(1 - r^2) s Z for embeddings, with m and s the mean and deviation of each feature
    in the batch. The paper's "keep with (1 + rho)/2, else resample" is `from_paper(gamma, rho)`: its correlation is
    (1 + rho)/2 (spec B3). `keep=` on embeddings replaces whole vectors by others of the batch.

    `resample_from`: the number U of tokens (uniform on 0..U-1), a tuple of ids (uniform on those), or `"batch"` (the
    batch's own tokens, in proportion). `positions`: the indices that may change, default all. `protected`: token ids
    that never change (padding, CLS, SEP). `stop_gradient`: no gradient through M(Y).

    Cost: one more forward and backward pass; with `stop_gradient` one more forward only. A step took 2.0 and 1.5 times
    as long (CPU, one thread, `examples/stable_training.py`). keep = 1 is the control that only rewards
    confidence, sum_i M(X)_i^2. Raises `ArgumentError` for arguments outside what is named here.

    Source: spec A16, B3, B17; the paper leaves open which gradients flow, which positions change and the averaging.
    """

    gamma: float
    _: KW_ONLY
    direction: str
    keep: float | None = None
    rho: float | None = None
    resample_from: int | tuple[int, ...] | str = "batch"
    positions: tuple[int, ...] | None = None
    protected: tuple[int, ...] = ()
    stop_gradient: bool = False
    outputs: str = "logits"

    def __post_init__(self) -> None:
        require_weight(self.gamma)
        if self.direction not in DIRECTIONS:
            raise ArgumentError(f"direction={self.direction!r} is unknown; use one of {', '.join(DIRECTIONS)}")
        if self.outputs not in OUTPUTS:
            raise ArgumentError(f"outputs={self.outputs!r} is unknown; use one of {', '.join(OUTPUTS)}")
        if (self.keep is None) == (self.rho is None):
            raise ArgumentError(f"keep={self.keep!r}, rho={self.rho!r}: give one of them, the other follows")
        if not 0 <= self.correlation <= 1:
            raise ArgumentError(f"a correlation of {self.correlation!r} cannot be drawn; give a number in [0, 1]")
        if isinstance(self.resample_from, str) and self.resample_from != "batch":
            raise ArgumentError(f'resample_from={self.resample_from!r} is unknown; use "batch", a number or ids')
        if self.resample_from == () or (isinstance(self.resample_from, int) and self.resample_from < 1):
            raise ArgumentError(f"resample_from={self.resample_from!r} leaves no token to draw; give at least one")

    @classmethod
    def from_paper(
        cls, gamma: float, rho: float, *, direction: str = "encourage", **options: Any
    ) -> StabilityRegulariser:
        """The paper's setting (gamma, rho): keep with probability (1 + rho)/2, else resample; it used "encourage"."""
        if not -1 <= rho <= 1:
            raise ArgumentError(f"rho={rho!r} is outside the paper's range; give a number in [-1, 1]")
        return cls(gamma, direction=direction, keep=(1 + rho) / 2, **options)

    @property
    def correlation(self) -> float:
        """The correlation of each coordinate of X and Y: keep, or rho."""
        return float(self.keep if self.keep is not None else self.rho)  # type: ignore[arg-type]  # one is given

    def partner(self, inputs: Tensor, generator: torch.Generator | None = None, mask: Tensor | None = None) -> Tensor:
        """Y for X = `inputs`: tokens (batch, length), or embeddings (batch, length, features).

        Positions where `mask` (batch, length) is 0 are padding: they neither change nor are drawn from.
        """
        free = self._free(inputs, mask)
        if not inputs.is_floating_point():
            changed = free & (_uniform(inputs.shape, generator, inputs.device) >= self.correlation)
            return torch.where(changed, self._tokens(inputs, generator, mask), inputs)
        if self.keep is not None:
            changed = free & (_uniform(inputs.shape[:2], generator, inputs.device) >= self.keep)
            pool = inputs.flatten(0, 1) if mask is None else inputs[mask.bool()]
            others = pool[_integers(len(pool), inputs.shape[:2], generator, inputs.device)]
            return torch.where(changed[..., None], others, inputs)
        known = (inputs.flatten(0, 1) if mask is None else inputs[mask.bool()]).detach()
        centre, spread = known.mean(0), known.std(0, correction=0)
        noise = _normal(inputs.shape, generator, inputs.device).to(inputs.dtype) * spread
        noisy = centre + self.correlation * (inputs - centre) + (1 - self.correlation**2) ** 0.5 * noise
        return torch.where(free[..., None], noisy, inputs)

    def penalty(
        self,
        model: Forward,
        inputs: Tensor,
        output: Any,
        generator: torch.Generator | None = None,
        *,
        mask: Tensor | None = None,
        forward: Forward | None = None,
    ) -> Tensor:
        """The scalar to add to the loss. `output` is the model's at `inputs`; `forward` (default: model) gives it at Y.

        `mask` (batch, length): 0 on padding. Without `generator` the noise comes from torch's global one. Raises
        `OutputError` for an output that is no distribution over classes.
        """
        other = self.partner(inputs, generator, mask)
        if self.stop_gradient:
            with torch.no_grad():
                noisy = logits_of((forward or model)(other))
        else:
            noisy = logits_of((forward or model)(other))
        agreement = self._agreement(logits_of(output), noisy)
        sign = -1.0 if self.direction == "encourage" else 1.0
        return self.gamma * sign * average(agreement, mask)

    def _agreement(self, first: Tensor, second: Tensor) -> Tensor:
        if self.outputs == "real":
            return first * second
        if first.ndim < 2 or first.shape[-1] < 2:
            raise OutputError(
                f"an output of shape {tuple(first.shape)} is no distribution over classes; give the model at least two "
                'logits, or say outputs="real" for f(X) f(Y)'
            )
        if self.outputs == "logits":
            first, second = first.softmax(-1), second.softmax(-1)
        return (first * second).sum(-1)

    def _free(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Which positions may change, (batch, length)."""
        if inputs.ndim != (3 if inputs.is_floating_point() else 2):
            raise ArgumentError(
                f"inputs of shape {tuple(inputs.shape)} and dtype {inputs.dtype}: give token ids (batch, length) or "
                "embeddings (batch, length, features)"
            )
        length = inputs.shape[1]
        free = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        if self.positions is not None:
            if wrong := [position for position in self.positions if not -length <= position < length]:
                raise ArgumentError(f"positions {wrong} are outside an input of {length} tokens")
            free = torch.zeros_like(free)
            free[:, list(self.positions)] = True
        if self.protected and not inputs.is_floating_point():
            free &= ~torch.isin(inputs, torch.tensor(self.protected, device=inputs.device))
        return free if mask is None else free & mask.bool()

    def _tokens(self, inputs: Tensor, generator: torch.Generator | None, mask: Tensor | None) -> Tensor:
        if isinstance(self.resample_from, int):
            return _integers(self.resample_from, inputs.shape, generator, inputs.device)
        if self.resample_from == "batch":
            pool = inputs.flatten() if mask is None else inputs[mask.bool()]
            if self.protected:
                pool = pool[~torch.isin(pool, torch.tensor(self.protected, device=pool.device))]
            if not len(pool):
                return inputs
        else:
            pool = torch.tensor(self.resample_from, device=inputs.device)
        return pool[_integers(len(pool), inputs.shape, generator, inputs.device)]


def require_weight(gamma: float) -> None:
    """Raise `ArgumentError` unless gamma is a finite number of at least 0."""
    if not isinstance(gamma, (int, float)) or not 0 <= gamma < float("inf"):
        raise ArgumentError(f"gamma={gamma!r} is no weight; give a finite number of at least 0")


def logits_of(output: Any) -> Tensor:
    """The tensor a model returned, or `.logits` of a Hugging Face output."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise OutputError(f"a model output of type {type(output).__name__} has no logits; return a tensor or `.logits`")
    return logits


def average(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the batch, and over the positions where `mask` is not 0 if values have positions."""
    if mask is None or values.ndim < 2:
        return values.mean()
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum()


def _device(generator: torch.Generator | None, device: torch.device) -> torch.device:
    return device if generator is None else generator.device


def _uniform(shape: torch.Size, generator: torch.Generator | None, device: torch.device) -> Tensor:
    return torch.rand(shape, generator=generator, device=_device(generator, device)).to(device)


def _normal(shape: torch.Size, generator: torch.Generator | None, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=generator, device=_device(generator, device)).to(device)


def _integers(count: int, shape: torch.Size, generator: torch.Generator | None, device: torch.device) -> Tensor:
    return torch.randint(0, count, shape, generator=generator, device=_device(generator, device)).to(device)
