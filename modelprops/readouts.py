"""From a module's raw output to the real tensor that a property speaks of.

A readout must be *one* function of the input, and knows its range where it has one, since only bounded readouts have
finite-sample error rates. A vector readout is summed over its outputs in every squared difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from modelprops.errors import ArgumentError, OutputError

Spec = None | str | tuple[str, Any] | Callable[[Any], torch.Tensor]
NAMES = '"sign", "probability", "label", ("logit", k), "last-token", ("next-token-probability", id), "embedding"'


@dataclass(frozen=True)
class Reading:
    """Values (batch,) or (batch, outputs) in float64; `margin`, same batch, is the distance to the nearest tie."""

    values: torch.Tensor
    margin: torch.Tensor | None = None


@dataclass(frozen=True)
class Readout:
    """A named map from raw outputs to values.

    `range`: the least and greatest value of one output. `diameter_squared`: the greatest squared distance between two
    values, and `inner` the least and greatest inner product of two (None: they follow from `range` and the number of
    outputs). `last_only`: only the logits of the last position are read.
    """

    name: str
    read: Callable[[Any], Reading]
    range: tuple[float, float] = (-math.inf, math.inf)
    diameter_squared: float | None = None
    inner: tuple[float, float] | None = None
    last_only: bool = False
    frozen_token: bool = False

    def diameter(self, outputs: int) -> float:
        """Greatest squared distance between two values of `outputs` components; infinite if unbounded."""
        if self.diameter_squared is not None:
            return self.diameter_squared
        return outputs * (self.range[1] - self.range[0]) ** 2

    def products(self, outputs: int) -> tuple[float, float]:
        """Least and greatest inner product of two values of `outputs` components."""
        if self.inner is not None:
            return self.inner
        low, high = self.range
        if not math.isfinite(low) or not math.isfinite(high):
            return -math.inf, math.inf
        corners = (low * low, low * high, high * high)
        return outputs * min(corners), outputs * max(corners)


def resolve(spec: Spec | Readout, stated_range: tuple[float, float] | None = None) -> Readout:
    """Turn what the user gave as `readout=` (and `range=`) into a `Readout`."""
    if isinstance(spec, Readout):
        readout = spec
    elif spec is None:
        readout = Readout("raw", _raw)
    elif isinstance(spec, str):
        readout = _named(spec)
    elif isinstance(spec, tuple) and len(spec) == 2:
        readout = _indexed(*spec)
    elif callable(spec):
        function = spec
        name = getattr(spec, "__name__", type(spec).__name__)
        readout = Readout(name, lambda output: Reading(_rows(function(output))))
        stated_range = stated_range or getattr(spec, "range", None)
    else:
        raise ArgumentError(f"readout={spec!r} is unknown; use None, {NAMES} or a callable on the module's output")
    if stated_range is not None:
        low, high = stated_range
        if not low < high:
            raise ArgumentError(f"range={stated_range!r} is empty; give (least, greatest) value of one output")
        readout = replace(readout, range=(float(low), float(high)))
    return readout


def _named(name: str) -> Readout:
    named = {
        "sign": Readout("sign", _sign, range=(-1.0, 1.0)),
        "probability": Readout("probability", _probability, range=(0.0, 1.0), diameter_squared=2.0, inner=(0.0, 1.0)),
        "label": Readout("label", _label, range=(0.0, math.sqrt(2)), diameter_squared=4.0, inner=(0.0, 2.0)),
        "last-token": Readout("last-token", lambda output: Reading(_last(output)), last_only=True),
        "embedding": Readout("embedding", _embedding, range=(-1.0, 1.0), diameter_squared=4.0, inner=(-1.0, 1.0)),
    }
    if name not in named:
        raise ArgumentError(f"readout={name!r} is unknown; use None, {NAMES} or a callable on the module's output")
    return named[name]


def _indexed(kind: str, which: Any) -> Readout:
    if kind == "logit" and isinstance(which, int):
        return Readout(f"logit {which}", lambda output: Reading(_pick(_rows(unpack(output)), which)))
    if kind == "next-token-probability" and which == "frozen":
        return Readout("next-token-probability frozen", _raw, range=(0.0, 1.0), last_only=True, frozen_token=True)
    if kind == "next-token-probability" and isinstance(which, int):
        return Readout(
            f"next-token-probability {which}",
            lambda output: Reading(_pick(torch.softmax(_last(output), -1), which)),
            range=(0.0, 1.0),
            last_only=True,
        )
    raise ArgumentError(f"readout={(kind, which)!r} is unknown; use None, {NAMES} or a callable on the module's output")


def freeze_token(readout: Readout, output: Any) -> Readout:
    """Fix the token of a `("next-token-probability", "frozen")` readout to the likeliest after one base point."""
    return _indexed("next-token-probability", int(_last(output)[0].argmax()))


def unpack(output: Any) -> torch.Tensor:
    """Find the one tensor of a raw output: itself; `logits` of a mapping or `ModelOutput`; a sole tensor otherwise."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        fields: dict[Any, Any] = dict(output)
    elif isinstance(output, (tuple, list)):
        fields = dict(enumerate(output))
    elif isinstance(getattr(output, "logits", None), torch.Tensor):
        fields = {"logits": output.logits}
    else:
        raise OutputError(
            f"the module returned a {type(output).__name__}, in which no tensor is found; pass readout= a callable "
            "that returns one"
        )
    tensors = {key: value for key, value in fields.items() if isinstance(value, torch.Tensor)}
    if isinstance(tensors.get("logits"), torch.Tensor):
        return tensors["logits"]
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    listing = ", ".join(f"{key!r} {tuple(value.shape)}" for key, value in tensors.items()) or "no tensor"
    example = repr(next(iter(tensors), "name"))
    raise OutputError(
        f"the module's output is ambiguous: it holds {listing}; choose one, for example "
        f"readout=lambda output: output[{example}]"
        + (', or readout="embedding"' if "last_hidden_state" in tensors else "")
    )


def _raw(output: Any) -> Reading:
    return Reading(_rows(unpack(output)))


def _rows(tensor: Any) -> torch.Tensor:
    """float64 (batch,) or (batch, outputs); one column is squeezed."""
    if not isinstance(tensor, torch.Tensor):
        raise OutputError(f"the readout returned a {type(tensor).__name__}; return a tensor of shape (batch, ...)")
    if tensor.is_complex():
        raise OutputError("the output is complex; pass readout= a callable that returns a real tensor")
    if tensor.ndim == 2 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.ndim not in (1, 2):
        raise OutputError(
            f"the output has shape {tuple(tensor.shape)}, not (batch,) or (batch, outputs); choose what to read, for "
            'example readout="last-token", ("next-token-probability", id) or "embedding"'
        )
    rows: torch.Tensor = tensor.double()
    return rows


def _sign(output: Any) -> Reading:
    raw = _rows(unpack(output))
    return Reading(torch.where(raw >= 0, 1.0, -1.0).double().masked_fill(raw.isnan(), math.nan), raw.abs())


def _probability(output: Any) -> Reading:
    return Reading(torch.softmax(_classes(output), -1))


def _label(output: Any) -> Reading:
    scores = _classes(output)
    top = scores.topk(2, -1).values
    one_hot = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[1]).double() * math.sqrt(2)
    return Reading(one_hot + 0 * scores.sum(-1, keepdim=True), top[:, 0] - top[:, 1])


def _classes(output: Any) -> torch.Tensor:
    scores = _rows(unpack(output))
    if scores.ndim != 2:
        raise OutputError(
            f"the output has shape {tuple(scores.shape)}, one score an input; this readout needs (batch, classes), use "
            'readout="sign" for a single score'
        )
    return scores


def _pick(rows: torch.Tensor, which: int) -> torch.Tensor:
    if rows.ndim != 2 or not -rows.shape[1] <= which < rows.shape[1]:
        raise OutputError(f"the output has shape {tuple(rows.shape)}, which has no column {which}")
    column: torch.Tensor = rows[:, which]
    return column


def _last(output: Any) -> torch.Tensor:
    logits = unpack(output)
    if logits.ndim != 3:
        raise OutputError(
            f"the output has shape {tuple(logits.shape)}; a next-token readout needs (batch, positions, vocabulary)"
        )
    return logits[:, -1].double()


def _embedding(output: Any) -> Reading:
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None:
        hidden = output["last_hidden_state"] if isinstance(output, Mapping) and "last_hidden_state" in output else None
    pooled = unpack(output) if hidden is None else hidden
    pooled = pooled.double()
    if pooled.ndim == 3:
        pooled = pooled.mean(1)
    if pooled.ndim != 2:
        raise OutputError(f"the output has shape {tuple(pooled.shape)}; an embedding is (batch, dimensions)")
    return Reading(torch.nn.functional.normalize(pooled, dim=-1))
