"""Strategies: what they draw, what they shrink to, and that what they print can be pasted."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Verbosity, find, given, settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty

import modelprops as mp
from modelprops import architectures, functions
from modelprops import strategies as draw
from modelprops.drawn import Drawn

QUICK = settings(database=None, deadline=None, derandomize=True, max_examples=300)
FEW = settings(QUICK, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
NAMES = {"torch": torch, "modelprops": mp, "mp": mp}

STRATEGIES = {
    "boolean_inputs": draw.boolean_inputs(5),
    "boolean_inputs of drawn length": draw.boolean_inputs(draw.lengths(1, 9)),
    "boolean_batches": draw.boolean_batches(3, size=4),
    "boolean_batches, big": draw.boolean_batches(64, size=32),
    "token_inputs": draw.token_inputs(mp.Tokens(7, 4, frozen={0: 5}, exclude=(0,))),
    "token_inputs around a corpus": draw.token_inputs(mp.Tokens.around(torch.tensor([[1, 2, 3], [4, 5, 6]]), 9)),
    "gaussian_inputs": draw.gaussian_inputs((2, 3)),
    "inputs_of a user's domain": draw.inputs_of(mp.BooleanCube(4)),
    "flips": draw.flips(6),
    "lengths": draw.lengths(2, 5),
    "boolean_functions": draw.boolean_functions(draw.lengths(1, 5)),
    "models": draw.models(3),
}


def smallest(strategy: st.SearchStrategy[Any], condition: Any = lambda value: True) -> Any:
    return find(strategy, condition, settings=settings(QUICK, verbosity=Verbosity.quiet))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(torch.Tensor(one.double()), torch.Tensor(other.double())) and one.dtype == other.dtype
    if isinstance(one, torch.nn.Module):
        points = mp.BooleanCube(one.n).exhaustive().float()
        return torch.equal(one(points), other(points))
    return bool(one == other)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_drawn_prints_as_a_line_that_rebuilds_it(name: str) -> None:
    @FEW
    @given(STRATEGIES[name])
    def check(value: Any) -> None:
        assert same(value, eval(repr(value), dict(NAMES)))
        if not isinstance(value, int):
            assert pretty(value) == repr(value), "Hypothesis prints the same line"

    check()


def test_a_boolean_input_shrinks_to_all_plus_one() -> None:
    assert smallest(draw.boolean_inputs(8)).tolist() == [1] * 8


def test_a_boolean_input_shrinks_to_the_fewest_minus_ones() -> None:
    point = smallest(draw.boolean_inputs(12), lambda x: int((x < 0).sum()) >= 3)
    assert int((point < 0).sum()) == 3


def test_the_length_shrinks_first() -> None:
    point = smallest(draw.boolean_inputs(draw.lengths(1, 64)), lambda x: bool((x < 0).any()))
    assert point.tolist() == [-1]


@pytest.mark.parametrize(("n", "size"), [(6, 4), (64, 32)])
def test_a_batch_shrinks_to_one_minus_one(n: int, size: int) -> None:
    batch = smallest(draw.boolean_batches(n, size=size), lambda points: bool((points < 0).any()))
    assert batch.shape == (size, n)
    assert batch.dtype == torch.int8
    assert int((batch < 0).sum()) == 1


def test_big_batches_are_drawn_without_complaint() -> None:
    seen = []

    @settings(database=None, derandomize=True, max_examples=20, deadline=None)
    @given(draw.boolean_batches(256, size=64))
    def check(points: torch.Tensor) -> None:
        seen.append(points.double().mean().item())
        assert points.shape == (64, 256)
        assert bool((points.abs() == 1).all())

    check()
    assert min(seen) < 0.2, "not only the simplest batch"


def test_tokens_shrink_to_the_lowest_allowed_id() -> None:
    domain = mp.Tokens(50, 5, frozen={1: 33}, exclude=(0, 1))
    assert smallest(draw.token_inputs(domain)).tolist() == [2, 33, 2, 2, 2]
    assert smallest(draw.token_inputs(domain), lambda x: int(x[3]) >= 20).tolist() == [2, 33, 2, 20, 2]


def test_sequences_of_a_corpus_shrink_to_the_first_unchanged_one() -> None:
    corpus = torch.tensor([[7, 8, 9], [1, 2, 3]])
    domain = mp.Tokens.around(corpus, 10, frozen=(0,))
    assert smallest(draw.token_inputs(domain)).tolist() == [7, 8, 9]
    changed = smallest(draw.token_inputs(domain), lambda x: x.tolist() not in corpus.tolist())
    assert changed.tolist() in ([7, 0, 9], [7, 8, 0])


@settings(QUICK, max_examples=50)
@given(draw.token_inputs(mp.Tokens(6, 4, frozen={0: 5, 3: 1}, exclude=(2,))))
def test_frozen_tokens_stand_and_excluded_ones_never_appear(ids: torch.Tensor) -> None:
    assert (int(ids[0]), int(ids[3])) == (5, 1)
    assert 2 not in ids.tolist()


def test_gaussian_inputs_shrink_to_zero() -> None:
    assert smallest(draw.gaussian_inputs((2, 2))).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_users_domain_is_sampled_by_seed() -> None:
    class Dice:
        coordinates = 2

        def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
            return torch.randint(1, 7, (size, 2), generator=generator)

        def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
            return points

        def correlated(self, points: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
            return points

    expected = Dice().sample(1, torch.Generator().manual_seed(0))[0]
    assert smallest(draw.inputs_of(Dice())).tolist() == expected.tolist()


@settings(QUICK, max_examples=60)
@given(draw.boolean_functions(draw.lengths(1, 6)))
def test_a_drawn_function_knows_its_answers(function: functions.BooleanFunction) -> None:
    # Against enumeration of the definition: flip every coordinate of every point.
    points = mp.BooleanCube(function.n).exhaustive()
    values = function(points)
    flipped = torch.stack(
        [function(points * (1 - 2 * torch.eye(function.n, dtype=torch.int8)[i])) for i in range(function.n)]
    )
    influences = ((values - flipped) ** 2).mean(1) / 4
    assert np.allclose(function.influences(), influences.numpy())
    assert function.average_sensitivity() == pytest.approx(float(influences.sum()))


def test_functions_of_every_kind_are_drawn() -> None:
    kinds: set[str] = set()

    @settings(QUICK, max_examples=100)
    @given(draw.boolean_functions(4))
    def check(function: functions.BooleanFunction) -> None:
        kinds.add(repr(function).split(".")[2].split("(")[0])

    check()
    assert kinds == {"sparse_parity", "junta", "linear_threshold", "dnf", "decision_tree", "truth_table"}


def test_a_function_shrinks_to_a_parity_of_few_inputs() -> None:
    function = smallest(draw.boolean_functions(5), lambda f: f.average_sensitivity() > 1.5)
    assert repr(function) == "modelprops.functions.sparse_parity([0, 1], n=5)"


def test_models_shrink_to_the_first_kind_width_and_seed() -> None:
    assert repr(smallest(draw.models(4))) == "modelprops.architectures.build('mlp', n=4, width=2, seed=0)"
    wide = smallest(draw.models(draw.lengths(2, 6), widths=(2, 8)), lambda model: model.width == 8)
    assert repr(wide) == "modelprops.architectures.build('mlp', n=2, width=8, seed=0)"


@settings(FEW, max_examples=10)
@given(draw.models(6, kinds=["deepsets"]), draw.boolean_batches(6, 8), st.permutations(range(6)))
def test_deep_sets_do_not_see_the_order(model: torch.nn.Module, points: torch.Tensor, order: list[int]) -> None:
    mp.metamorphic.assert_permutation(model, points, order, domain=mp.BooleanCube(6))


@settings(FEW, max_examples=10)
@given(draw.models(6, kinds=["mlp", "deepsets", "cnn", "lstm"], widths=[8]))
def test_random_networks_have_a_low_sensitivity_at_initialisation(model: torch.nn.Module) -> None:
    # Far below PARITY's 6: outputs of these networks move little with one input of six.
    assert mp.average_sensitivity(model, domain=mp.BooleanCube(6)).value < 1


@pytest.mark.parametrize("kind", architectures.KINDS)
def test_a_network_is_a_function_of_its_seed_and_leaves_the_generator_alone(kind: str) -> None:
    points = mp.BooleanCube(4).exhaustive()
    before = torch.get_rng_state()
    one, two, other = (architectures.build(kind, 4, width=4, seed=seed)(points) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.shape == (16,)


WRONG: list[tuple[Any, str]] = [
    (lambda: draw.boolean_inputs(0), "n=0"),
    (lambda: draw.boolean_inputs(2.5), "n=2.5"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: draw.boolean_batches(3, size=0), "size=0"),
    (lambda: draw.token_inputs(mp.BooleanCube(3)), "BooleanCube"),  # type: ignore[arg-type]  # wrong on purpose
    (lambda: draw.flips(0), "n=0"),
    (lambda: draw.models(3, kinds=["gru"]), "gru"),
    (lambda: architectures.build("gru", 3), "gru"),
    (lambda: architectures.build("mlp", 0), "n=0"),
    (lambda: architectures.build("transformer", 3, width=3), "d_model=3"),
    (lambda: smallest(draw.boolean_functions(13)), "n=13"),
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_argument_is_named(call: Any, says: str) -> None:
    with pytest.raises(mp.ArgumentError, match=says):
        call()


def test_copies_of_a_drawn_tensor_stay_drawn_and_results_do_not() -> None:
    point = Drawn.of(torch.tensor([1, -1], dtype=torch.int8))
    for kept in (copy.deepcopy(point), pickle.loads(pickle.dumps(point)), point.clone(), torch.stack([point, point])):
        assert isinstance(kept, Drawn)
    for plain in (point + 1, point.float(), point[:1]):
        assert type(plain) is torch.Tensor


UNIFORM: list[Any] = [
    lambda: mp.Subject(lambda x: x.prod(1), draw.boolean_inputs(4)),
    lambda: mp.average_sensitivity(lambda x: x.prod(1), domain=draw.boolean_batches(4)),
    lambda: mp.assert_low_sensitivity(mp.Subject(torch.sum, mp.BooleanCube(4)), 1, domain=st.integers()),
    lambda: mp.Subject(lambda x: x.prod(1), Drawn.of(torch.ones(3, 4))),
    lambda: mp.Tokens.around(Drawn.of(torch.ones(3, 4, dtype=torch.long))),
    lambda: mp.Tokens.around(torch.stack([Drawn.of(torch.ones(4, dtype=torch.int8))] * 3).long()),
    lambda: mp.Tokens(9, 4, corpus=Drawn.of(torch.ones(3, 4, dtype=torch.long))),
    lambda: mp.average_sensitivity(lambda x: x.double().prod(1), domain=Echo()),
]


class Echo(mp.BooleanCube):  # type: ignore[misc]  # loaded on first use, so mypy does not see the class
    """A domain that hands out what Hypothesis drew."""

    def __init__(self) -> None:
        super().__init__(4)

    def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
        return Drawn.of(torch.ones(size, 4, dtype=torch.int8))


@pytest.mark.parametrize("call", UNIFORM, ids=range(len(UNIFORM)))
def test_averages_over_drawn_inputs_are_refused_with_the_reason(call: Any) -> None:
    with pytest.raises(mp.ArgumentError, match="not uniform"):
        call()
