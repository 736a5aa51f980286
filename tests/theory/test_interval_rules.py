"""The attention rule on inputs built to come close to it."""

from __future__ import annotations

import math

import pytest
import torch

from modelprops.theory.interval_rules import Head, attention, split_heads
from modelprops.theory.moments import Moments


def attended(head: Head, x: torch.Tensor) -> torch.Tensor:
    def projected(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x @ weight.T + (0 if bias is None else bias)

    query, key = projected(head.query, head.query_bias), projected(head.key, head.key_bias)
    return torch.softmax(query @ key.transpose(-1, -2), -1) @ projected(head.value, head.value_bias)


def row(*entries: float) -> torch.Tensor:
    return torch.tensor([entries], dtype=torch.float64)


def test_flipping_attention_between_opposite_values_attains_the_bound() -> None:
    # A tiny change of the keys moves all attention from value 5 to value -5: ||O - O'||^2 = 2 * 10^2, g = 100. The rule
    # charges B ||A - A'||_1 = 5 * 2 per row, which is exact, and almost nothing for the values.
    tiny = 1e-4
    x = torch.tensor([[[tiny, 5.0], [-tiny, -5.0]]], dtype=torch.float64)
    y = torch.tensor([[[-tiny, 5.0], [tiny, -5.0]]], dtype=torch.float64)
    head = Head(query=row(0, 0), key=row(20 / tiny, 0), value=row(0, 1), query_bias=torch.ones(1).double())
    exact = Moments.of_pairs(attended(head, x), attended(head, y)).g.high
    bound = attention(Moments.of_pairs(x, y), [head], scale=1.0).g.high
    assert exact == pytest.approx(100, rel=1e-6)
    assert exact <= bound * (1 + 1e-9)
    assert bound == pytest.approx(100, rel=1e-3)


def test_uniform_attention_passes_a_common_change_of_the_values_on() -> None:
    generator = torch.Generator().manual_seed(0)
    n = 4
    x = torch.randn(50, n, 2, generator=generator, dtype=torch.float64)
    y = x + torch.randn(50, 1, 2, generator=generator, dtype=torch.float64)
    head = Head(query=torch.zeros(2, 2).double(), key=torch.zeros(2, 2).double(), value=torch.eye(2).double())
    exact = Moments.of_pairs(attended(head, x), attended(head, y)).g.high
    state = Moments.of_pairs(x, y)
    bound = attention(state, [head], scale=1.0).g.high
    assert exact == pytest.approx(state.g.high, rel=1e-9)
    assert exact <= bound <= n * exact * (1 + 1e-6)


def test_one_position_attends_to_itself() -> None:
    x = torch.randn(50, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    head = Head(query=weights[0], key=weights[1], value=torch.eye(3).double())
    state = Moments.of_pairs(x, 0.9 * x)
    assert attention(state, [head], scale=1.0).g.high == pytest.approx(state.g.high, rel=1e-8)


def test_unbounded_inputs_still_have_a_finite_bound() -> None:
    head = Head(*(torch.eye(3).double() for _ in range(3)))
    state = Moments.gaussian(5, 3, rho=0.99)
    bound = attention(state, [head], scale=1.0)
    assert math.isfinite(bound.g.high)
    assert bound.q.high == pytest.approx(5 * state.q.high, rel=1e-6)


def test_shared_key_heads_are_repeated_consecutively() -> None:
    stacked = torch.arange(8.0).reshape(8, 1)
    heads = split_heads((stacked, None), (stacked[:4], None), (stacked[:4], stacked[:4, 0]), head_width=2)
    assert [float(head.query[0, 0]) for head in heads] == [0, 2, 4, 6]
    assert [float(head.key[0, 0]) for head in heads] == [0, 0, 2, 2]
    assert heads[3].value_bias is not None
    assert heads[3].query_bias is None
