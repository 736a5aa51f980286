"""Interval rules for softmax attention and gated products: the maps that are Lipschitz only on bounded inputs.

Source: spec A15, rules R6 and R7; the bound for the gated product is derived in `gated`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modelprops.theory.moments import Interval, Moments, affine, folded, weaker


def attention(moments: Moments, heads: Sequence[Head], scale: float, *, heuristic: bool = False) -> Moments:
    """Moments of the concatenated heads softmax(scale Q K^T) V, before the output projection. Sound: R6.

    For one head, with n positions, |v_k| <= B, |q_i| <= Q, |k_k| <= K almost surely,

        ||O - O'||_F <= ||A (V - V')||_F + ||(A - A') V'||_F
                     <= sqrt(n) ||V - V'||_F + B min(2 sqrt(n), scale (K ||Q - Q'||_F + Q sqrt(n) ||K - K'||_F)),

    because A has rows in the simplex (so ||A||_op^2 <= n) and ||softmax(l) - softmax(l')||_1 <= min(2, ||l -
    l'||_inf). Any mask or additive bias that does not depend on the input is allowed. The output norm gives a second
    bound, g <= 2 q.

    With `heuristic`, R7: averaging rows of V as if A were independent of V and cross-moments of different positions lay
    between 0 and those of equal ones. Labelled "heuristic"; it is not a theorem.
    """
    n = moments.positions
    mixing = radius = 0.0
    for head in heads:
        query = affine(moments, head.query, head.query_bias)
        key = affine(moments, head.key, head.key_bias)
        bound = affine(moments, head.value, head.value_bias).norm.high
        logits = scale * (
            _times(key.norm.high, math.sqrt(2 * query.g.high))
            + _times(query.norm.high, math.sqrt(n) * math.sqrt(2 * key.g.high))
        )
        # One position attends to itself with weight 1, whatever the logit.
        shift = 0.0 if n == 1 else min(2 * math.sqrt(n), logits)
        mixing += _times(bound, shift) ** 2
        radius += bound**2
    values = affine(moments, torch.cat([head.value for head in heads]), _joined([head.value_bias for head in heads]))
    second = values.q.high if heuristic else n * values.q.high
    gap = second if heuristic else (math.sqrt(2 * n * values.g.high) + math.sqrt(mixing)) ** 2 / 2
    return Moments(
        q=Interval(0.0, second),
        g=Interval(0.0, gap),
        positions=n,
        width=values.width,
        norm=Interval(0.0, math.sqrt(radius)),
        kind=weaker(moments.kind, "heuristic") if heuristic else moments.kind,
    )


def gated(
    moments: Moments,
    gate: tuple[torch.Tensor, torch.Tensor | None],
    up: tuple[torch.Tensor, torch.Tensor | None],
    lipschitz: float,
) -> Moments:
    """Moments of phi(G x + a) * (U x + b), |phi(t)| <= |t|, phi `lipschitz`-Lipschitz; weights (hidden, width). Sound.

    On ||x|| <= R the factors are bounded by coordinate, gate_j = ||G_j|| R + |a_j| and up_j = ||U_j|| R + |b_j|, and
    |s t - s' t'| <= |s| |t - t'| + |t'| |s - s'|, so the map has Lipschitz constant
    ||diag(gate) U||_op + lipschitz ||diag(up) G||_op. Without R (no normalisation before it) nothing is bounded.
    """
    _, gate_matrix, gate_shift = folded(moments, *gate)
    moments, up_matrix, up_shift = folded(moments, *up)
    radius = moments.norm.high
    hidden = gate[0].shape[0]
    if math.isinf(radius):
        return Moments(Interval(), Interval(), moments.positions, hidden, kind=moments.kind)
    gate_weight, gate_bias, gate_bound = _coordinates(gate_matrix, gate_shift, radius)
    up_weight, up_bias, up_bound = _coordinates(up_matrix, up_shift, radius)
    up_norm, gate_norm = _top(gate_bound[:, None] * up_weight), _top(up_bound[:, None] * gate_weight)
    # Either factor may be the one that is bounded by coordinate; each choice gives a bound on length.
    choices = ((up_norm, float((gate_bound * up_bias).norm())), (gate_norm, float((up_bound * gate_bias).norm())))
    length = min(slope * radius + shift for slope, shift in choices)
    root = min(
        _times(slope, math.sqrt(moments.q.high)) + shift * math.sqrt(moments.positions) for slope, shift in choices
    )
    return Moments(
        q=Interval(0.0, root**2),
        g=Interval(0.0, (up_norm + lipschitz * gate_norm) ** 2 * moments.g.high),
        positions=moments.positions,
        width=hidden,
        norm=Interval(0.0, min(length, float((gate_bound * up_bound).norm()))),
        kind=moments.kind,
    )


@dataclass(frozen=True)
class Head:
    """Projections of one head, weights (head width, width), biases (head width,) or None."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_bias: torch.Tensor | None = None
    key_bias: torch.Tensor | None = None
    value_bias: torch.Tensor | None = None


def split_heads(
    query: tuple[torch.Tensor, torch.Tensor | None],
    key: tuple[torch.Tensor, torch.Tensor | None],
    value: tuple[torch.Tensor, torch.Tensor | None],
    head_width: int,
) -> tuple[Head, ...]:
    """Heads from stacked (weight, bias) projections; consecutive query heads share a key and value head."""
    count = query[0].shape[0] // head_width
    group = count // (key[0].shape[0] // head_width)

    def part(stacked: torch.Tensor, index: int) -> torch.Tensor:
        return stacked[index * head_width : (index + 1) * head_width]

    def part_or_none(stacked: torch.Tensor | None, index: int) -> torch.Tensor | None:
        return None if stacked is None else part(stacked, index)

    return tuple(
        Head(
            query=part(query[0], i),
            key=part(key[0], i // group),
            value=part(value[0], i // group),
            query_bias=part_or_none(query[1], i),
            key_bias=part_or_none(key[1], i // group),
            value_bias=part_or_none(value[1], i // group),
        )
        for i in range(count)
    )


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _coordinates(
    weight: torch.Tensor, bias: torch.Tensor | None, radius: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    w = weight.detach().double()
    b = torch.zeros(w.shape[0], dtype=torch.float64) if bias is None else bias.detach().double()
    return w, b, w.norm(dim=1) * radius + b.abs()


def _top(matrix: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2)) * (1 + 1e-9)


def _times(left: float, right: float) -> float:
    return 0.0 if left == 0 or right == 0 else left * right
