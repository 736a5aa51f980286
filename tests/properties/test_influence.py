"""Influences against enumeration by definition, closed forms and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from random_tables import random_subject, slow_influences
from simulation import boxes, coverage

import modelprops as mp
from modelprops.properties.influence import squared_gradients


def majority(n: int) -> mp.Subject:
    return mp.Subject(lambda x: x.sum(1), mp.BooleanCube(n), "sign")


@pytest.mark.parametrize(("n", "real"), [(1, False), (5, True), (10, False), (10, True)])
def test_a_random_table_equals_the_definition(n: int, real: bool) -> None:
    subject, table = random_subject(n, seed=n, real=real)
    np.testing.assert_allclose(mp.influences(subject).value, slow_influences(table), atol=1e-9)


def test_they_add_up_to_the_average_sensitivity() -> None:
    subject, _ = random_subject(9, seed=1, real=True)
    assert mp.influences(subject).value.sum() == pytest.approx(mp.average_sensitivity(subject).value, abs=1e-9)


def test_a_majority_coordinate_is_pivotal_at_a_tie_of_the_others() -> None:
    expected = math.comb(8, 4) / 2**8
    for kind in ("variance", "probability"):
        np.testing.assert_allclose(mp.influences(majority(9), kind=kind).value, expected, atol=1e-12)


def test_a_real_function_has_two_different_kinds() -> None:
    # f = 3 x_0 + x_1: variances 9 and 1 (f^({i})^2), each flip changes the value, the third does not.
    subject = mp.Subject(lambda x: 3.0 * x[:, 0] + x[:, 1], mp.BooleanCube(3))
    for exact in (True, False):
        found = mp.influences(subject, exact=exact, budget=2000, seed=0).value
        np.testing.assert_allclose(found, [9, 1, 0], atol=1e-9)
        share = mp.influences(subject, kind="probability", exact=exact, budget=2000, seed=0).value
        np.testing.assert_allclose(share, [1, 1, 0], atol=1e-9)


def test_a_token_kind_counts_redraws_that_come_out_the_same() -> None:
    # f = [token 0 is 0] of 3: Var = 2/9; P[f(x) != f(redrawn)] = 2 (1/3)(2/3) = 4/9.
    subject = mp.Subject(lambda ids: (ids[:, 0] == 0).double(), mp.Tokens(3, 4))
    np.testing.assert_allclose(mp.influences(subject).value, [2 / 9, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(mp.influences(subject, kind="probability").value, [4 / 9, 0, 0, 0], atol=1e-12)


def test_sampled_intervals_cover_all_coordinates_at_once() -> None:
    # Expected coverage is at least .99 and in fact nearly 1 (Ville's bound is loose).
    subject, table = random_subject(3, seed=2)
    found = boxes(mp.influences.plan(subject), repeats=2000, chunks=2, size=16, level=0.01)
    assert coverage(found, slow_influences(table)) >= 0.99


def test_gradients_of_a_quadratic_match_the_chi_distribution() -> None:
    # f = x_0^2 + 2 x_1: |d_0 f| = 2|x_0| has mean 2 sqrt(2/pi) and mean square 4; d_1 f = 2.
    subject = mp.Subject(lambda x: x[:, 0] ** 2 + 2 * x[:, 1], mp.Gaussian(3))
    plain = mp.influences(subject, kind="geometric", confidence=1 - 1e-7, budget=400_000, width=0.1, seed=0)
    assert plain.low[0] <= 2 * math.sqrt(2 / math.pi) <= plain.high[0]
    assert plain.value[1:].tolist() == [2.0, 0.0]
    squared = mp.influences(subject, kind="geometric-squared", confidence=1 - 1e-7, budget=400_000, width=0.3, seed=0)
    assert squared.low[0] <= 4 <= squared.high[0]


def test_positions_of_vectors_are_one_coordinate() -> None:
    # f = <a, x_1>: the gradient at position 1 is a, of norm 5; the module keeps its gradients as they are.
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[3.0, 4.0]])
    subject = mp.Subject(torch.nn.Sequential(Pick(), layer), mp.Gaussian((3, 2)))
    found = mp.influences(subject, kind="geometric", budget=5000, seed=0)
    np.testing.assert_allclose(found.value, [0, 5, 0], atol=1e-6)
    assert found.guarantee == "asymptotic"
    assert layer.weight.grad is None


def test_gradients_of_a_language_model_are_those_of_central_differences() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    subject = mp.Subject(model, mp.Embeddings(model, 4), ("next-token-probability", 3))
    points = subject.domain.sample(2, torch.Generator().manual_seed(0)).double()
    steps = 1e-2 * torch.eye(32, dtype=points.dtype).view(32, 1, 4, 8)
    slopes = torch.stack([(subject(points + step) - subject(points - step)) / 2e-2 for step in steps])
    expected = slopes.view(4, 8, 2).square().sum(1).T
    torch.testing.assert_close(squared_gradients(subject, points), expected, rtol=1e-2, atol=1e-8)
    assert mp.influences(subject, kind="geometric", budget=2000, seed=0).value.shape == (4,)


class Pick(torch.nn.Module):
    """Position 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1]


def test_gradients_are_refused_where_there_are_none() -> None:
    with pytest.raises(mp.DomainError, match="real vectors"):
        mp.influences(majority(3), kind="geometric")
    with pytest.raises(mp.ArgumentError, match="sign"):
        mp.influences(mp.Subject(lambda x: x.sum(1), mp.Gaussian(3), "sign"), kind="geometric")
    with pytest.raises(mp.ArgumentError, match="cuts the graph"):
        mp.influences(lambda x: x.detach().sum(1), domain=mp.Gaussian(3), kind="geometric")
    with pytest.raises(mp.ArgumentError, match="kind='l2'"):
        mp.influences(majority(3), kind="l2")


def test_the_witness_names_the_dominant_coordinate() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x[:, 5] > 0, x[:, 3], x[:, 3] * x[:, 1])

    for n, exact in ((8, "auto"), (40, False)):
        subject = mp.Subject(two, mp.BooleanCube(n), "sign")
        with pytest.raises(mp.PropertyViolation) as caught:
            mp.assert_no_dominant_coordinate(subject, 0.8, exact=exact, seed=0)
        witness = caught.value.verdict.witness
        flipped = witness.point.clone()
        flipped[witness.coordinate] *= -1
        assert witness.coordinate == 3
        assert bool((witness.point == 1).all())  # x_3 decides everywhere: the simplest input shows it
        assert subject(torch.stack([witness.point, flipped])).unique().numel() == 2
    assert mp.assert_no_dominant_coordinate(majority(31), 0.3, seed=0).outcome == "pass"


def test_a_claim_as_text_reads_the_greatest_and_the_least() -> None:
    subject = mp.Subject(lambda x: x[:, 0], mp.BooleanCube(4), "sign")
    assert mp.claim("influences <= 0.5").check(subject).outcome == "fail"
    assert mp.claim("influences(kind='probability') >= 0.5").check(subject).outcome == "fail"
    assert mp.claim("influences >= 0").check(subject).outcome == "pass"
