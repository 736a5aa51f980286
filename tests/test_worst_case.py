"""Search for the worst input: exact where feasible, within its budget, minimised, the same for the same seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import modelprops as mp


def ones(points: torch.Tensor) -> torch.Tensor:
    """How many inputs are -1."""
    return (points < 0).sum(1).double()


def model(points: torch.Tensor) -> torch.Tensor:
    return points.sum(1)


def test_a_small_domain_is_searched_exhaustively() -> None:
    found = mp.search(model, ones, domain=mp.BooleanCube(10))
    assert (found.score, found.tried, found.exhaustive, found.violates) == (10.0, 1024, True, False)
    assert found.point.tolist() == [-1] * 10


def test_climbing_reaches_the_top_of_a_slope_that_random_search_never_would() -> None:
    # 64 -1s have probability 2^-64 under uniform inputs.
    found = mp.search(model, ones, domain=mp.BooleanCube(64), above=63.5, budget=20_000, seed=0)
    assert found.violates
    assert found.point.tolist() == [-1] * 64


def test_a_violation_is_minimised_to_the_threshold() -> None:
    found = mp.search(model, ones, domain=mp.BooleanCube(40), above=6.5, seed=0)
    assert (int(ones(found.point[None])), found.score) == (7, 7.0)


@pytest.mark.parametrize("budget", [1, 100, 3000])
def test_the_budget_is_kept(budget: int) -> None:
    tried = 0

    def score(points: torch.Tensor) -> torch.Tensor:
        nonlocal tried
        tried += len(points)
        return points[:, 0].double()

    found = mp.search(model, score, domain=mp.BooleanCube(30), budget=budget, seed=0)
    assert found.tried == tried == budget
    assert not found.exhaustive


@pytest.mark.parametrize(
    "domain", [mp.BooleanCube(30), mp.Tokens(9, 12, frozen={0: 3}), mp.Gaussian((4, 2))], ids=["cube", "tokens", "real"]
)
def test_the_same_seed_finds_the_same_input_under_any_profile(domain: Any) -> None:
    def score(points: torch.Tensor) -> torch.Tensor:
        flat = points.double().flatten(1)
        return (flat * torch.arange(flat.shape[1]).double().cos()).sum(1)

    first = mp.search(model, score, domain=domain, budget=1500, seed=4)
    before = settings.get_current_profile_name()
    settings.register_profile("strict", derandomize=True, deadline=1, max_examples=3, phases=[])
    try:
        settings.load_profile("strict")
        second = mp.search(model, score, domain=domain, budget=1500, seed=4)
    finally:
        settings.load_profile(before)
    assert torch.equal(first.point, second.point)
    assert (first.score, first.tried) == (second.score, second.tried)


def test_frozen_tokens_stay_and_tokens_climb() -> None:
    domain = mp.Tokens(20, 8, frozen={0: 3})
    found = mp.search(model, lambda ids: ids[:, 1:].double().sum(1), domain=domain, budget=6000, seed=0)
    assert int(found.point[0]) == 3
    # The mean of a uniform token is 9.5; 600 random inputs stay below 7 * 17 with probability above 1 - 1e-6.
    assert found.score > 7 * 17


@settings(max_examples=3, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(20, 25))
def test_a_search_inside_a_given_test_works(n: int) -> None:
    assert mp.search(model, ones, domain=mp.BooleanCube(n), above=n - 0.5, budget=5000, seed=1).violates


def test_scores_that_are_not_finite_do_not_stop_the_search() -> None:
    def score(points: torch.Tensor) -> torch.Tensor:
        return torch.where(ones(points) > 15, ones(points), -math.inf)

    assert mp.search(model, score, domain=mp.BooleanCube(20), above=19.5, budget=30_000, seed=0).violates


WRONG: list[tuple[Any, str]] = [
    (lambda: mp.search(model, ones, domain=mp.BooleanCube(4), budget=0), "budget=0"),
    (lambda: mp.search(model, lambda points: points, domain=mp.BooleanCube(4)), "one number a point"),
    (lambda: mp.search(model, ones), "pass domain="),
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_wrong_argument_is_named(call: Any, says: str) -> None:
    with pytest.raises(mp.ArgumentError, match=says):
        call()
