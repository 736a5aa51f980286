"""Domains: their measures, by counting; their errors, by name."""

from __future__ import annotations

import itertools

import pytest
import torch

import modelprops as mp
from modelprops.domains import generator_of

MANY = 40_000
SLACK = 5.5 / MANY**0.5 / 2  # 5.5 standard errors of a coin: below 1e-7 a comparison


def test_rows_of_the_cube_are_bit_masks() -> None:
    points = mp.BooleanCube(3).exhaustive()
    assert points.dtype == torch.int8
    assert points[0b101].tolist() == [-1, 1, -1]
    assert len({tuple(point.tolist()) for point in points}) == 8


def test_neighbours_differ_in_one_bit_each() -> None:
    points = mp.BooleanCube(6).sample(10, generator_of(0))
    near = mp.BooleanCube(6).neighbours(points)
    assert near.shape == (10, 6, 6)
    assert torch.equal((near != points[:, None]).int(), torch.eye(6).int().expand(10, 6, 6))


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.4, 1.0])
def test_partners_on_the_cube_have_correlation_rho(rho: float) -> None:
    domain = mp.BooleanCube(2)
    points = domain.sample(MANY, generator_of(1))
    partners = domain.correlated(points, rho, generator_of(2))
    products = (points * partners).double().mean(0)
    assert products.tolist() == pytest.approx([rho, rho], abs=2 * SLACK)


@pytest.mark.parametrize("size", [2, 5])
def test_keeping_with_the_papers_probability_and_redrawing_has_that_correlation_not_rho(size: int) -> None:
    """keep = (1 + rho)/2 for rho = .25: P(Y = X) = keep + (1 - keep)/U."""
    domain, keep = mp.Tokens(size, 1), 0.625
    points = domain.sample(MANY, generator_of(1))
    same = (domain.correlated(points, 1.0, generator_of(2), keep=keep) == points).double().mean()
    assert float(same) == pytest.approx(keep + (1 - keep) / size, abs=2 * SLACK)


def test_tokens_respect_frozen_positions_and_excluded_ids() -> None:
    domain = mp.Tokens(6, 4, frozen={0: 5}, exclude=(0, 1))
    points = domain.sample(500, generator_of(0))
    assert (points[:, 0] == 5).all()
    assert set(points[:, 1:].unique().tolist()) == {2, 3, 4, 5}
    partners = domain.correlated(points, 0.0, generator_of(1))
    assert torch.equal(partners[:, 0], points[:, 0])
    assert domain.coordinates == 3
    moved = domain.resample(points, 0, generator_of(2))
    assert torch.equal(moved[:, [0, 2, 3]], points[:, [0, 2, 3]])
    assert len(domain.exhaustive()) == 4**3


def test_bare_frozen_positions_vary_between_points_but_are_never_resampled() -> None:
    domain = mp.Tokens(50, 3, frozen=(1,))
    points = domain.sample(200, generator_of(0))
    assert len(points[:, 1].unique()) > 5
    assert torch.equal(domain.correlated(points, 0.0, generator_of(1))[:, 1], points[:, 1])
    with pytest.raises(mp.DomainError, match="not enumerable"):
        domain.exhaustive()


def test_around_a_corpus_points_are_real_and_resampling_follows_its_unigrams() -> None:
    corpus = torch.tensor([[0, 0, 1], [0, 2, 0]])
    domain = mp.Tokens.around(corpus, vocab_size=4, resample_from="unigram")
    points = domain.sample(100, generator_of(0))
    assert {tuple(point.tolist()) for point in points} <= {(0, 0, 1), (0, 2, 0)}
    drawn = domain.resample(corpus.repeat(MANY // 2, 1), 0, generator_of(1))[:, 0]
    assert float((drawn == 0).double().mean()) == pytest.approx(4 / 6, abs=2 * SLACK)
    assert not (drawn == 3).any()
    assert not domain.product


def test_token_neighbours_are_all_single_changes() -> None:
    domain = mp.Tokens(3, 2, exclude=(1,), frozen={1: 1})
    near = domain.neighbours(torch.tensor([[0, 1]]))
    assert near.tolist() == [[[2, 1]]]
    every = mp.Tokens(3, 2).neighbours(torch.tensor([[0, 1]]))[0]
    expected = {p for p in itertools.product(range(3), repeat=2) if (p[0] != 0) + (p[1] != 1) == 1}
    assert {tuple(point.tolist()) for point in every} == expected


def test_gaussian_partners_have_correlation_rho() -> None:
    domain = mp.Gaussian((2, 1))
    points = domain.sample(MANY, generator_of(0))
    partners = domain.correlated(points, -0.6, generator_of(1))
    assert float((points * partners).mean()) == pytest.approx(-0.6, abs=4 * SLACK)
    assert float((partners**2).mean()) == pytest.approx(1.0, abs=6 * SLACK)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mp.BooleanCube(0),
        lambda: mp.BooleanCube(2.0),
        lambda: mp.BooleanCube(True),
        lambda: mp.BooleanCube(3, encoding="trits"),
        lambda: mp.BooleanCube(25).exhaustive(),
        lambda: mp.BooleanCube(3).resample(torch.ones(1, 3), 3, generator_of(0)),
        lambda: mp.Tokens(0, 3),
        lambda: mp.Tokens(3, 0),
        lambda: mp.Tokens(3, 2, exclude=(0, 1, 2)),
        lambda: mp.Tokens(3, 2, exclude=(7,)),
        lambda: mp.Tokens(3, 2, frozen=(0, 1)),
        lambda: mp.Tokens(3, 2, frozen={0: 9}),
        lambda: mp.Tokens(3, 2).correlated(torch.zeros(1, 2).long(), -0.1, generator_of(0)),
        lambda: mp.Tokens.around(torch.zeros(0, 3).long()),
        lambda: mp.Tokens.around(torch.zeros(3)),
        lambda: mp.Gaussian(()),
        lambda: mp.Gaussian(3).exhaustive(),
        lambda: mp.Gaussian(3).correlated(torch.zeros(1, 3), 1.5, generator_of(0)),
    ],
)
def test_what_is_no_domain_is_refused(make: object) -> None:
    with pytest.raises(mp.ArgumentError):
        make()  # type: ignore[operator]
