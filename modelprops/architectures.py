"""Small random networks of five architectures, for testing properties of *architectures* rather than of one model.

    build("deepsets", n=6, width=8, seed=0)      a module: ±1 points (batch, 6) -> (batch,)

What holds at initialisation is a property of the architecture and its initialisation: a deep-sets network does not see
the order of its inputs whatever its weights, and a random network has a low average sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError

KINDS = ("mlp", "deepsets", "cnn", "lstm", "transformer")


def build(kind: str, n: int, width: int = 8, seed: int = 0) -> Architecture:
    """The untrained network of one kind, width and seed: ±1 points (batch, n) -> (batch,), weights as torch draws them.

    `kind`: `"mlp"` (two ReLU layers), `"deepsets"` (a mean over inputs between two MLPs: permutation invariant),
    `"cnn"` (two convolutions of kernel 3, a mean over positions), `"lstm"` (its last state), `"transformer"` (a
    two-layer encoder with learned positions, `modelprops.theory.transformer.EncoderTransformer`; even widths). All
    but the MLP take shorter inputs too, and all but the MLP and the Transformer longer ones. The same call gives the
    same weights, and torch's global generator is left alone; `repr` is the call.

    Raises `ArgumentError` for an unknown kind, or sizes the kind cannot have.
    """
    if kind not in _BODIES:
        raise ArgumentError(f"kind={kind!r} is unknown; use one of {', '.join(KINDS)}")
    for name, size in (("n", n), ("width", width)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{name}={size!r} is not a whole number of at least 1; give one")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return Architecture(kind, n, width, seed, _BODIES[kind](n, width)).eval()


class Architecture(nn.Module):
    """A network made by `build`; its `repr` is the line that builds it again."""

    def __init__(self, kind: str, n: int, width: int, seed: int, body: nn.Module) -> None:
        super().__init__()
        self.kind, self.n, self.width, self.seed = kind, n, width, seed
        self.body = body

    def __repr__(self) -> str:
        return f"modelprops.architectures.build({self.kind!r}, n={self.n}, width={self.width}, seed={self.seed})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis would show the call of the strategy's internals.
        printer.text(repr(self))

    def forward(self, points: Tensor) -> Tensor:
        """Outputs (batch,) at ±1 points (batch, n)."""
        if points.ndim != 2:
            raise ArgumentError(f"{self!r} takes points (batch, n), not shape {tuple(points.shape)}")
        output: Tensor = self.body(points.to(next(self.parameters()).dtype))
        return output


class _Perceptron(nn.Module):
    """An MLP on the whole input."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, points: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(points))[:, 0]
        return output


class _DeepSets(nn.Module):
    """An MLP on each input, the mean over inputs, an MLP on the mean."""

    def __init__(self, _n: int, width: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width))
        self.whole = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, points: Tensor) -> Tensor:
        output: Tensor = self.whole(self.each(points[:, :, None]).mean(1))[:, 0]
        return output


class _Convolutions(nn.Module):
    """Two convolutions, the mean over positions, a linear readout."""

    def __init__(self, _n: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(width, 1)

    def forward(self, points: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(points[:, None, :]).mean(2))[:, 0]
        return output


class _Recurrent(nn.Module):
    """An LSTM; a linear readout of its last state."""

    def __init__(self, _n: int, width: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, points: Tensor) -> Tensor:
        states, _ = self.cells(points[:, :, None])
        output: Tensor = self.head(states[:, -1])[:, 0]
        return output


class _Encoder(nn.Module):
    """The encoder of the theory, which takes bits, behind ±1 points."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        from modelprops.theory.transformer import EncoderTransformer

        self.encoder = EncoderTransformer(n, width)

    def forward(self, points: Tensor) -> Tensor:
        output: Tensor = self.encoder((points > 0).long())
        return output


_BODIES: dict[str, Callable[[int, int], nn.Module]] = {
    "mlp": _Perceptron,
    "deepsets": _DeepSets,
    "cnn": _Convolutions,
    "lstm": _Recurrent,
    "transformer": _Encoder,
}
