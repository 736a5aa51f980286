"""Walsh spectra against definitions, closed forms and scipy's Hadamard matrix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

import modelprops as mp
from modelprops.functions.walsh import level_weights, walsh_hadamard
from modelprops.properties.spectrum import level_weights_of
from modelprops.properties.tables import table_of


def majority(points: torch.Tensor) -> torch.Tensor:
    return torch.where(points[:, :3].sum(1) > 0, 1.0, -1.0)


@pytest.mark.parametrize("n", [0, 1, 5, 6, 7, 12])
def test_the_transform_is_multiplication_by_the_hadamard_matrix(n: int) -> None:
    table = np.random.default_rng(n).normal(size=2**n)
    assert np.allclose(walsh_hadamard(table.copy()), hadamard(2**n) @ table / 2**n, atol=1e-12)


@pytest.mark.parametrize("n", [16, 17, 18])
def test_the_transform_above_a_block_is_its_own_inverse(n: int) -> None:
    table = np.random.default_rng(n).normal(size=2**n)
    assert np.allclose(walsh_hadamard(walsh_hadamard(table.copy())) * 2**n, table, atol=1e-10)


def test_a_character_above_a_block_has_one_coefficient() -> None:
    mask, n = 0b10_1000_0000_0000_0011, 18
    rows = np.arange(2**n)
    signs = 1.0 - 2.0 * (np.array([bin(row & mask).count("1") for row in rows]) % 2)
    coefficients = walsh_hadamard(signs)
    assert coefficients[mask] == pytest.approx(1.0)
    assert np.abs(coefficients).sum() == pytest.approx(1.0)


def test_a_table_that_is_not_a_power_of_two_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="not one of 2\\^n"):
        walsh_hadamard(np.zeros(6))


def test_majority_of_three_has_the_textbook_spectrum() -> None:
    spectrum = mp.fourier_spectrum(majority, domain=mp.BooleanCube(5))
    assert spectrum.heaviest(4) == [(1, 0.5), (2, 0.5), (4, 0.5), (7, -0.5)]
    assert spectrum.level_weights == pytest.approx([0, 0.75, 0, 0.25, 0, 0])
    assert spectrum.members(0b101) == (0, 2)


def test_coefficients_follow_their_definition_and_give_the_average_sensitivity() -> None:
    table = torch.randn(2**6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    domain = mp.BooleanCube(6)
    rows = {tuple(point.tolist()): row for row, point in enumerate(domain.exhaustive())}
    subject = mp.Subject(lambda x: table[[rows[tuple(p)] for p in x.to(torch.int8).tolist()]], domain)
    spectrum = mp.fourier_spectrum(subject)
    points = domain.exhaustive().double()
    for members in itertools.chain.from_iterable(itertools.combinations(range(6), k) for k in range(7)):
        mask = sum(1 << i for i in members)
        expected = float((table * points[:, list(members)].prod(1)).mean())
        assert spectrum.coefficients[mask] == pytest.approx(expected, abs=1e-12)
    flips = sum(
        float(((subject(domain.exhaustive()) - subject(domain.neighbours(domain.exhaustive())[:, i])) ** 2).mean()) / 4
        for i in range(6)
    )
    assert spectrum.average_sensitivity == pytest.approx(flips, abs=1e-12)


def test_level_weights_of_tokens_are_the_efron_stein_decomposition() -> None:
    table = torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    subject = mp.Subject(lambda x: table[x[:, 0], x[:, 1], x[:, 2]], mp.Tokens(5, 3))
    weights, _ = level_weights_of(subject)
    values = table.numpy()
    assert weights[0] == pytest.approx(values.mean() ** 2)
    assert weights.sum() == pytest.approx((values**2).mean())
    single = [((values.mean(axis=tuple(a for a in range(3) if a != i)) - values.mean()) ** 2).mean() for i in range(3)]
    assert weights[1] == pytest.approx(sum(single))
    # Stab_rho = sum_j rho^j W^j, computed by smoothing the table axis by axis.
    smooth = table_of(subject).smoothed(0.7)
    assert float((smooth * table_of(subject).values).mean()) == pytest.approx(float(weights @ 0.7 ** np.arange(4)))


def test_level_weights_sum_squares_by_popcount() -> None:
    coefficients = np.random.default_rng(0).normal(size=2**7)
    expected = np.zeros(8)
    for mask, value in enumerate(coefficients):
        expected[bin(mask).count("1")] += value**2
    assert level_weights(coefficients) == pytest.approx(expected)


def test_what_has_no_walsh_spectrum_is_refused() -> None:
    with pytest.raises(mp.ArgumentError, match="BooleanCube"):
        mp.fourier_spectrum(lambda x: x[:, 0].double(), domain=mp.Tokens(4, 3))
    with pytest.raises(mp.ArgumentError, match="heavy_coefficients"):
        mp.fourier_spectrum(lambda x: x[:, 0], domain=mp.BooleanCube(25))
    with pytest.raises(mp.ArgumentError, match="2 outputs"):
        mp.fourier_spectrum(lambda x: x[:, :2], domain=mp.BooleanCube(4))


def test_heavy_coefficients_finds_the_planted_ones_and_no_other() -> None:
    # The statement fails with probability at most 1e-6.
    subject = mp.Subject(lambda x: 0.55 * x[:, 3] * x[:, 17] + 0.45 * x[:, 9], mp.BooleanCube(24), range=(-1, 1))
    found = mp.heavy_coefficients(subject, threshold=0.44, confidence=1 - 1e-6, budget=10**8, seed=1)
    assert list(found.coefficients) == [(3, 17), (9,)]
    assert found.coefficients[(3, 17)] == pytest.approx(0.55, abs=found.error)


def test_heavy_coefficients_says_what_its_guarantee_costs() -> None:
    with pytest.raises(mp.ArgumentError, match="raise budget="):
        mp.heavy_coefficients(mp.Subject(majority, mp.BooleanCube(20), "sign"), threshold=0.1)
    with pytest.raises(mp.ArgumentError, match="range="):
        mp.heavy_coefficients(majority, domain=mp.BooleanCube(20), threshold=0.5)
