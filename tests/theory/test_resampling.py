"""Which noise was drawn: conversions against simulation, and the refusal of bare numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelprops.errors import ArgumentError
from modelprops.theory.concentration import concentration_degree, gap_tail_bound, stability_tail_bound
from modelprops.theory.majority import recursive_majority_stability
from modelprops.theory.resampling import GaussianNoise, Resampling

DRAWS = 500_000


def simulated(keep: float, alphabet: int, other: bool, seed: int) -> tuple[float, float]:
    """Correlation and P(Y = X) of one coordinate under the sampler as the paper words it."""
    generator = np.random.default_rng(seed)
    x = generator.integers(alphabet, size=DRAWS)
    shift = generator.integers(1, alphabet, size=DRAWS) if other else generator.integers(alphabet, size=DRAWS)
    y = np.where(generator.random(DRAWS) < keep, x, (x + shift) % alphabet)
    return float(np.corrcoef(x, y)[0, 1]), float((x == y).mean())


@pytest.mark.parametrize(("alphabet", "printed"), [(2, (0.5252, 0.625, 0.9503)), (50, (0.5254, 0.6239, 0.9498))])
def test_the_papers_sampler_has_correlation_half_one_plus_rho(
    alphabet: int, printed: tuple[float, float, float]
) -> None:
    # Standard errors are below 1e-3 here and in the printed run, so 6e-3 fails by chance below 1e-6.
    for rho, monte_carlo in zip((0.05, 0.25, 0.9), printed, strict=True):
        noise = Resampling.from_paper(rho)
        correlation, agreement = simulated((1 + rho) / 2, alphabet, other=False, seed=1)
        assert noise.correlation == pytest.approx(correlation, abs=6e-3)
        assert noise.correlation == pytest.approx(monte_carlo, abs=2e-3)
        assert noise.agreement(alphabet) == pytest.approx(agreement, abs=6e-3)
        assert noise.agreement(alphabet) == pytest.approx((1 + rho) / 2 + (1 - rho) / (2 * alphabet), rel=1e-14)


def test_the_papers_settings_are_keep_probabilities() -> None:
    assert Resampling.from_paper(0.25) == Resampling(keep=0.625)
    assert Resampling.from_paper(0.05).keep == pytest.approx(0.525, rel=1e-15)


@pytest.mark.parametrize("alphabet", [2, 50])
def test_resampling_another_token_has_the_stated_correlation(alphabet: int) -> None:
    rho = 0.25
    noise = Resampling.from_paper_other(rho, alphabet)
    correlation, agreement = simulated((1 + rho) / 2, alphabet, other=True, seed=2)
    assert noise.correlation == pytest.approx((alphabet * (1 + rho) / 2 - 1) / (alphabet - 1), rel=1e-12)
    assert noise.correlation == pytest.approx(correlation, abs=6e-3)
    assert noise.agreement(alphabet) == pytest.approx(agreement, abs=6e-3)
    if alphabet == 2:
        assert noise.correlation == pytest.approx(rho, rel=1e-12)


def test_flipping_is_resampling_twice_as_often() -> None:
    noise = Resampling.from_flip(0.1)
    assert noise.correlation == pytest.approx(0.8, rel=1e-15)
    assert noise.agreement(2) == pytest.approx(0.9, rel=1e-15)
    assert Resampling.from_rho(0.8).keep == 0.8


def test_parity_of_k_bits_decays_by_the_effective_correlation() -> None:
    # Simulated stability of parity, a level-k character: lambda^k, not rho^k. Five standard errors: chance < 1e-6.
    rho, k, pairs = 0.25, 3, 200_000
    generator = np.random.default_rng(3)
    x = generator.choice([-1, 1], size=(pairs, k))
    y = np.where(generator.random((pairs, k)) < (1 + rho) / 2, x, generator.choice([-1, 1], size=(pairs, k)))
    stability = float((x.prod(1) * y.prod(1)).mean())
    error = 5 / math.sqrt(pairs)
    assert abs(stability - Resampling.from_paper(rho).correlation ** k) < error
    assert abs(stability - rho**k) > 10 * error


@pytest.mark.parametrize("number", [0.25, 1])
def test_no_spectral_formula_accepts_a_bare_number(number: float) -> None:
    calls = (
        lambda: concentration_degree(0.05, 0.1, number),  # type: ignore[arg-type]  # the point of the test
        lambda: stability_tail_bound(1.0, 0.5, number, 3),  # type: ignore[arg-type]  # the point of the test
        lambda: gap_tail_bound(0.5, number, 3),  # type: ignore[arg-type]  # the point of the test
        lambda: recursive_majority_stability(number, 2),  # type: ignore[arg-type]  # the point of the test
    )
    for call in calls:
        with pytest.raises(ArgumentError, match="does not say which noise"):
            call()


def test_probabilities_outside_their_range_are_refused() -> None:
    for call in (
        lambda: Resampling(1.2),
        lambda: Resampling.from_paper(1.5),
        lambda: Resampling.from_flip(0.6),
        lambda: Resampling.from_other(0.99, 2),
        lambda: Resampling.from_other(0.1, 1),
        lambda: GaussianNoise(2.0),
    ):
        with pytest.raises(ArgumentError):
            call()
