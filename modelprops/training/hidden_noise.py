"""Control regularisers with noise inside the model: on the embeddings (R3F, NEFTune) and on hidden layers (LNSR)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError
from modelprops.training.regulariser import Forward, average, logits_of, require_weight

DISTRIBUTIONS = ("normal", "uniform")


@dataclass(frozen=True)
class EmbeddingNoise:
    """gamma * KL(p(X) || p(X')) + KL(p(X') || p(X)), with noise on the embeddings of X: R3F; a control for stability.

    `distribution="normal"` adds N(0, scale^2) to every entry; `"uniform"` adds U(-1, 1) scale / sqrt(length features),
    the noise of NEFTune. `at`: the name of the submodule whose output is disturbed, default the first `nn.Embedding`.
    Cost: one more forward and backward pass. Raises `ArgumentError` if there is no such submodule.

    Source: spec E7 (Aghajanyan et al. 2021, R3F; Jain et al. 2024, NEFTune, which trains on the noisy pass itself).
    """

    gamma: float
    _: KW_ONLY
    scale: float
    distribution: str = "normal"
    at: str | None = None

    def __post_init__(self) -> None:
        require_weight(self.gamma)
        if self.distribution not in DISTRIBUTIONS or not self.scale >= 0:
            raise ArgumentError(
                f"distribution={self.distribution!r}, scale={self.scale!r}: use {' or '.join(DISTRIBUTIONS)} and a "
                "scale of at least 0"
            )

    def penalty(
        self,
        model: nn.Module,
        inputs: Tensor,
        output: Any,
        generator: torch.Generator | None = None,
        *,
        mask: Tensor | None = None,
        forward: Forward | None = None,
    ) -> Tensor:
        """The scalar to add to the loss; `output` is the model's at `inputs`."""

        def disturb(_module: nn.Module, _inputs: Any, hidden: Tensor) -> Tensor:
            if self.distribution == "normal":
                return hidden + self.scale * _noise(hidden, generator)
            spread = self.scale / math.sqrt(hidden.shape[-1] * hidden.shape[-2])
            return hidden + spread * (2 * _noise(hidden, generator, uniform=True) - 1)

        with _hooked([(_submodule(model, self.at), disturb)]):
            noisy = logits_of((forward or model)(inputs)).log_softmax(-1)
        clean = logits_of(output).log_softmax(-1)
        # KL both ways: sum (p - q)(log p - log q).
        distance = ((clean.exp() - noisy.exp()) * (clean - noisy)).sum(-1)
        return average(distance, mask) * self.gamma


@dataclass(frozen=True)
class LayerNoise:
    """gamma * sum_{l >= b} E |h_l(x; noise at b) - h_l(x)|^2 / features: LNSR; a control for stability.

    `layers`: names of submodules from the disturbed one on; noise goes on the output of the first, differences are
    taken at all of them, and so at the first it is the noise itself. `scale`: the norm of the noise at a position as
    a share of the hidden vector's own (0.05 in the source's figure). Cost: two more forward and backward passes.

    Source: spec E2 (Hua et al. 2021).
    """

    gamma: float
    _: KW_ONLY
    layers: tuple[str, ...]
    scale: float = 0.05

    def __post_init__(self) -> None:
        require_weight(self.gamma)
        if not self.layers or not self.scale >= 0:
            raise ArgumentError(
                f"layers={self.layers!r}, scale={self.scale!r}: name at least one submodule and a scale of at least 0"
            )

    def penalty(
        self,
        model: nn.Module,
        inputs: Tensor,
        output: Any,
        generator: torch.Generator | None = None,
        *,
        mask: Tensor | None = None,
        forward: Forward | None = None,
    ) -> Tensor:
        """The scalar to add to the loss; `output` is not used, since the hidden layers are needed."""
        clean = self._hidden(model, forward or model, inputs, None)
        noisy = self._hidden(model, forward or model, inputs, lambda hidden: self._disturbed(hidden, generator))
        total = torch.zeros((), device=inputs.device)
        for name in self.layers:
            total = total + average(((noisy[name] - clean[name]) ** 2).mean(-1), mask)
        return self.gamma * total

    def _disturbed(self, hidden: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = _noise(hidden, generator)
        size = torch.linalg.vector_norm(hidden.detach(), dim=-1, keepdim=True)
        length = torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
        disturbed: Tensor = hidden + self.scale * size / length * noise
        return disturbed

    def _hidden(self, model: nn.Module, forward: Forward, inputs: Tensor, disturb: Any) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}

        def watch(name: str) -> Any:
            def hook(_module: nn.Module, _inputs: Any, hidden: Any) -> Any:
                tensor = hidden[0] if isinstance(hidden, tuple) else hidden
                if disturb is not None and name == self.layers[0]:
                    tensor = disturb(tensor)
                seen[name] = tensor
                return (tensor, *hidden[1:]) if isinstance(hidden, tuple) else tensor

            return hook

        with _hooked([(_submodule(model, name), watch(name)) for name in self.layers]):
            forward(inputs)
        return seen


def _noise(like: Tensor, generator: torch.Generator | None, *, uniform: bool = False) -> Tensor:
    device = like.device if generator is None else generator.device
    draw = torch.rand if uniform else torch.randn
    return draw(like.shape, generator=generator, device=device).to(like)


def _submodule(model: nn.Module, name: str | None) -> nn.Module:
    if name is None:
        found = next((child for child in model.modules() if isinstance(child, nn.Embedding)), None)
        if found is None:
            raise ArgumentError(f"{type(model).__name__} has no nn.Embedding; name the submodule with at=")
        return found
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name not in modules:
        raise ArgumentError(f"{type(model).__name__} has no submodule {name!r}; it has {', '.join(list(modules)[1:9])}")
    return modules[name]


@contextmanager
def _hooked(pairs: list[tuple[nn.Module, Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for module, hook in pairs:
            stack.callback(module.register_forward_hook(hook).remove)
        yield
