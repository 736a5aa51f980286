"""Walk a real module and bound, layer by layer, the second moment q and the gap g = E ||U - V||^2 / 2 of a noisy pair.

    trace = propagate(module, Moments.of_tokens(table, Resampling(keep=0.9), positions=16))
    trace["self_attn"].g            # Interval(low, high)

Rules are sound (theorems about the module in eval mode and real arithmetic) unless `sound_only=False` is asked for;
then a Gaussian-only or heuristic rule may be used where one exists, and everything downstream of it carries that
label. Source: Haris, Zhang & Yoshida 2026, section 5.2 (whose own rules are not known); spec A14, A15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.nn import functional

from modelprops.errors import ArgumentError
from modelprops.theory import moments as maps
from modelprops.theory.interval_rules import attention, gated, split_heads
from modelprops.theory.moments import Interval, Kind, Moments
from modelprops.theory.relu import relu_cross_moment

Rule = Callable[[Any, Moments, "Walk"], Moments]

# Suprema of the derivatives, rounded up: GELU 1.12891 (both forms), SiLU 1.09984.
_GELU, _SILU = 1.13, 1.1


def propagate(
    module: nn.Module, moments: Moments, *, sound_only: bool = True, rules: Mapping[type, Rule] | None = None
) -> Trace:
    """Bounds on q and g after every layer of `module` for an input pair with `moments`. Sound by default.

    Known: Linear, ReLU, GELU, SiLU, Tanh, Sigmoid, Identity, Dropout (eval), LayerNorm, RMSNorm, Sequential,
    MultiheadAttention (self-attention), TransformerEncoderLayer, TransformerEncoder, and the Llama blocks of
    Transformers. `rules={Type: rule}` adds or overrides: rule(module, moments, walk) -> Moments, with `walk(name,
    child, moments)` for children. A subclass is not its parent: its forward may differ, so it needs its own rule.

    Returns a Trace with one entry per layer, named as in `named_modules` (the module itself is ""). Raises
    ArgumentError for an unknown type, for a width that does not match, and for active dropout.
    """
    _require_no_dropout(module)
    walk = Walk({**_RULES, **(rules or {})}, sound_only)
    walk("", module, moments)
    return Trace(tuple(walk.layers))


def linear_cross_interval(weight: ArrayLike, low: ArrayLike, high: ArrayLike) -> tuple[float, float]:
    """Range of w^T C w over cross-moment matrices with C_ab in [low_ab, high_ab]. Sound: R2 by entries.

    `weight` (d,), `low` and `high` (d, d). Raises ArgumentError for other shapes.
    """
    w, bottom, top = (np.asarray(x, dtype=np.float64) for x in (weight, low, high))
    if w.ndim != 1 or bottom.shape != (w.size, w.size) or top.shape != bottom.shape or bool((bottom > top).any()):
        raise ArgumentError(
            f"weight {w.shape}, low {bottom.shape}, high {top.shape}: give (d,), (d, d), (d, d), low <= high."
        )
    outer = np.outer(w, w)
    ends = np.stack([outer * bottom, outer * top])
    return float(ends.min(0).sum()), float(ends.max(0).sum())


def activation_cross_interval(second_moment: float, gap: float, *, nonnegative: bool) -> tuple[float, float]:
    """Range of E phi(U) phi(V) for a 1-Lipschitz phi with E phi(U)^2 = `second_moment` and input `gap`. Sound: R4.

    [q_phi - g, q_phi], and at least 0 if phi >= 0, for any law of the pair. Raises ArgumentError for negative
    arguments.
    """
    if not (second_moment >= 0 and gap >= 0):
        raise ArgumentError(f"second_moment={second_moment!r}, gap={gap!r}: give numbers >= 0.")
    low = second_moment - gap if nonnegative else max(second_moment - gap, -second_moment)
    return (max(0.0, low) if nonnegative else low), second_moment


def gaussian_relu_interval(
    q: tuple[float, float], c: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(q', c') of relu for a centred jointly Gaussian pair with q and c in intervals: R5. For Gaussian pairs only.

    q' in [ql/2, qh/2], c' in [T_ql(cl), T_qh(ch)]. Keep-or-resample pairs are not jointly Gaussian: use
    `activation_cross_interval`. Raises ArgumentError unless 0 <= ql <= qh, cl <= ch and some pair fits.
    """
    (q_low, q_high), (c_low, c_high) = q, c
    if not (0 <= q_low <= q_high and c_low <= c_high and c_low <= q_high and c_high >= -q_high):
        raise ArgumentError(f"q={q}, c={c} hold no moments of a pair. Give 0 <= ql <= qh, cl <= ch, |c| <= q.")
    if c_low > 0:
        q_low = max(q_low, c_low)
    c_high = min(c_high, q_high)
    # E relu(U) relu(V) is 0 at c = -q for every q, so for negative c the smaller q is the lower end after clipping.
    low = relu_cross_moment(q_low, max(c_low, -q_low))
    return (q_low / 2, q_high / 2), (low, relu_cross_moment(q_high, c_high))


def heuristic_attention_interval(cross_moments: ArrayLike) -> tuple[float, float]:
    """[min C, max C] for E o_i o'_i, C_kl = E v_k v'_l: R7. A heuristic: it takes A as independent of V."""
    c = np.asarray(cross_moments, dtype=np.float64)
    if c.ndim != 2 or c.shape[0] != c.shape[1]:
        raise ArgumentError(f"cross_moments has shape {c.shape}. Give the (n, n) matrix E v_k v'_l of one column.")
    return float(c.min()), float(c.max())


class Walk:
    """The walk in progress: `walk(name, child, moments)` applies the child's rule and records the result."""

    def __init__(self, rules: Mapping[type, Rule], sound_only: bool) -> None:
        self.layers: list[LayerBound] = []
        self.sound_only = sound_only
        self._rules = rules
        self._path: list[str] = []

    def __call__(self, name: str, module: nn.Module, moments: Moments) -> Moments:
        if name:
            self._path.append(name)
        try:
            result = self._rule(module)(module, moments, self)
            self.layers.append(LayerBound(".".join(self._path), type(module).__name__, result))
        finally:
            if name:
                self._path.pop()
        return result

    def activate(self, name: str, activation: object, moments: Moments) -> Moments:
        """Apply a module or one of the activation functions of torch.nn.functional."""
        if isinstance(activation, nn.Module):
            return self(name, activation, moments)
        modules: dict[object, nn.Module] = {
            functional.relu: nn.ReLU(),
            functional.gelu: nn.GELU(),
            torch.relu: nn.ReLU(),
        }
        if activation not in modules:
            raise ArgumentError(
                f"activation {activation!r} has no rule. Use a module with an entry in rules={{Type: rule}}."
            )
        return self(name, modules[activation], moments)

    def _rule(self, module: nn.Module) -> Rule:
        kind = type(module)
        if kind in self._rules:
            return self._rules[kind]
        if kind.__module__.startswith("transformers.models.llama.") and kind.__name__ in _LLAMA_RULES:
            return _LLAMA_RULES[kind.__name__]
        path = ".".join(self._path) or "the module itself"
        raise ArgumentError(
            f"{kind.__module__}.{kind.__qualname__} (at {path}) has no interval rule. Pass "
            f"rules={{{kind.__name__}: rule}} with "
            "rule(module, moments, walk) -> Moments; an elementwise L-Lipschitz map that fixes 0 is "
            "moments.pointwise(m, lipschitz=L)."
        )


@dataclass(frozen=True)
class LayerBound:
    """Bounds after one layer: its path, its type's name and the moments of its output."""

    name: str
    type: str
    moments: Moments

    @property
    def q(self) -> Interval:
        return self.moments.q

    @property
    def g(self) -> Interval:
        return self.moments.g

    @property
    def kind(self) -> Kind:
        """sound, gaussian or heuristic: the weakest rule used up to here."""
        return self.moments.kind


@dataclass(frozen=True)
class Trace:
    """Layer bounds in the order of the walk; the last is the whole module. `trace[path]` finds one by its path."""

    layers: tuple[LayerBound, ...]

    @property
    def output(self) -> Moments:
        return self.layers[-1].moments

    def __iter__(self) -> Iterator[LayerBound]:
        return iter(self.layers)

    def __getitem__(self, name: str) -> LayerBound:
        for layer in reversed(self.layers):
            if layer.name == name:
                return layer
        raise ArgumentError(
            f"{name!r} is not a layer of this trace. It has {', '.join(repr(x.name) for x in self.layers)}."
        )


def _linear(module: nn.Linear, moments: Moments, walk: Walk) -> Moments:
    _require_width(module.in_features, moments, module)
    return maps.affine(moments, module.weight, module.bias)


def _relu(module: nn.Module, moments: Moments, walk: Walk) -> Moments:
    return maps.relu(moments, gaussian=not walk.sound_only)


def _gelu(module: nn.Module, moments: Moments, walk: Walk) -> Moments:
    return maps.pointwise(moments, lipschitz=_GELU, slope=1.0)


def _silu(module: nn.Module, moments: Moments, walk: Walk) -> Moments:
    return maps.pointwise(moments, lipschitz=_SILU, slope=1.0)


def _tanh(module: nn.Module, moments: Moments, walk: Walk) -> Moments:
    return maps.pointwise(moments, lipschitz=1.0, bound=1.0)


def _sigmoid(module: nn.Module, moments: Moments, walk: Walk) -> Moments:
    return replace(maps.pointwise(moments, lipschitz=0.25, at_zero=0.5, bound=1.0), nonnegative=True)


def _identity(module: nn.Module, moments: Moments, walk: Walk) -> Moments:
    return moments


def _layer_norm(module: nn.LayerNorm, moments: Moments, walk: Walk) -> Moments:
    _require_width(math.prod(module.normalized_shape), moments, module)
    return maps.scaled(maps.normalised(moments, eps=module.eps, centred=True), module.weight, module.bias)


def _rms_norm(module: nn.RMSNorm, moments: Moments, walk: Walk) -> Moments:
    _require_width(math.prod(module.normalized_shape), moments, module)
    # Without eps torch adds the machine epsilon of the input's type, here taken to be that of the weights.
    dtype = torch.get_default_dtype() if module.weight is None else module.weight.dtype
    eps = torch.finfo(dtype).eps if module.eps is None else module.eps
    return maps.scaled(maps.normalised(moments, eps=eps, centred=False), module.weight)


def _sequential(module: nn.Sequential, moments: Moments, walk: Walk) -> Moments:
    for name, child in module.named_children():
        moments = walk(name, child, moments)
    return moments


def _self_attention(module: nn.MultiheadAttention, moments: Moments, walk: Walk) -> Moments:
    _require_width(module.embed_dim, moments, module)
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise ArgumentError(
            "MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn has no rule here. Pass one with "
            "rules={MultiheadAttention: rule}."
        )
    weights = module.in_proj_weight.chunk(3)
    biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    query, key, value = zip(weights, biases, strict=True)
    heads = split_heads(query, key, value, module.head_dim)
    mixed = attention(moments, heads, module.head_dim**-0.5, heuristic=not walk.sound_only)
    return maps.affine(mixed, module.out_proj.weight, module.out_proj.bias)


def _encoder_layer(module: nn.TransformerEncoderLayer, moments: Moments, walk: Walk) -> Moments:
    def feed_forward(x: Moments) -> Moments:
        return walk(
            "linear2",
            module.linear2,
            walk.activate("activation", module.activation, walk("linear1", module.linear1, x)),
        )

    if module.norm_first:
        moments = maps.added(moments, walk("self_attn", module.self_attn, walk("norm1", module.norm1, moments)))
        return maps.added(moments, feed_forward(walk("norm2", module.norm2, moments)))
    moments = walk("norm1", module.norm1, maps.added(moments, walk("self_attn", module.self_attn, moments)))
    return walk("norm2", module.norm2, maps.added(moments, feed_forward(moments)))


def _encoder(module: nn.TransformerEncoder, moments: Moments, walk: Walk) -> Moments:
    for name, layer in module.layers.named_children():
        moments = walk(f"layers.{name}", layer, moments)
    return moments if module.norm is None else walk("norm", module.norm, moments)


def _llama_norm(module: Any, moments: Moments, walk: Walk) -> Moments:
    _require_width(module.weight.shape[0], moments, module)
    return maps.scaled(maps.normalised(moments, eps=module.variance_epsilon, centred=False), module.weight)


def _llama_attention(module: Any, moments: Moments, walk: Walk) -> Moments:
    # Rotary embedding turns queries and keys by position: norms and gaps stay, unless the variant also rescales them.
    rotary = getattr(module.config, "rope_parameters", None) or getattr(module.config, "rope_scaling", None) or {}
    variant = rotary.get("rope_type", rotary.get("type", "default"))
    if variant not in ("default", "linear", "dynamic", "llama3"):
        raise ArgumentError(
            f"rope_type={variant!r} rescales the logits. Pass a rule with rules={{{type(module).__name__}: rule}}."
        )
    query, key, value = ((p.weight, p.bias) for p in (module.q_proj, module.k_proj, module.v_proj))
    heads = split_heads(query, key, value, module.head_dim)
    mixed = attention(moments, heads, module.scaling, heuristic=not walk.sound_only)
    return maps.affine(mixed, module.o_proj.weight, module.o_proj.bias)


def _llama_mlp(module: Any, moments: Moments, walk: Walk) -> Moments:
    slopes = {"silu": _SILU, "gelu": _GELU, "gelu_pytorch_tanh": _GELU, "relu": 1.0}
    name = module.config.hidden_act
    if name not in slopes:
        raise ArgumentError(f"hidden_act={name!r} has no rule. Pass one with rules={{{type(module).__name__}: rule}}.")
    gate, up = ((p.weight, p.bias) for p in (module.gate_proj, module.up_proj))
    return walk("down_proj", module.down_proj, gated(moments, gate, up, slopes[name]))


def _llama_layer(module: Any, moments: Moments, walk: Walk) -> Moments:
    attended = walk("self_attn", module.self_attn, walk("input_layernorm", module.input_layernorm, moments))
    moments = maps.added(moments, attended)
    normed = walk("post_attention_layernorm", module.post_attention_layernorm, moments)
    return maps.added(moments, walk("mlp", module.mlp, normed))


_RULES: dict[type, Rule] = {
    nn.Linear: _linear,
    nn.ReLU: _relu,
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.Sequential: _sequential,
    nn.MultiheadAttention: _self_attention,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
}
_LLAMA_RULES: dict[str, Rule] = {
    "LlamaRMSNorm": _llama_norm,
    "LlamaAttention": _llama_attention,
    "LlamaMLP": _llama_mlp,
    "LlamaDecoderLayer": _llama_layer,
}


def _require_width(expected: int, moments: Moments, module: nn.Module) -> None:
    if moments.width != expected:
        raise ArgumentError(
            f"{type(module).__name__} takes width {expected} but the moments have width {moments.width}. Give "
            "the moments of its input."
        )


def _require_no_dropout(module: nn.Module) -> None:
    for name, child in module.named_modules():
        rates: Sequence[Any] = [getattr(child, key, 0.0) for key in ("dropout", "attention_dropout")]
        rates = [*rates, child.p if isinstance(child, nn.Dropout) else 0.0]
        if child.training and any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise ArgumentError(f"{name or type(child).__name__} drops units at random. Call module.eval() first.")
