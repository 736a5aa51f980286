"""Spectral tails and degrees against known level weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from simulation import boxes

import modelprops as mp
from modelprops.inference.levels import Row, gap_row, influence_row, moment_row, tail_bounds

N, DEGREE = 256, 15
GRID = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
LEVELS = np.arange(N + 1)
GEOMETRIC = 0.5 ** (LEVELS + 1.0)
JUNTA = np.where(LEVELS <= 3, 0.25, 0.0)
HIGH = np.where(LEVELS == 256, 0.01, np.where(LEVELS == 1, 0.49, np.where(LEVELS == 0, 0.5, 0.0)))
FLAT = np.where(LEVELS <= 30, 1 / 31, 0.0)


def stability_rows(weights: np.ndarray, slack: float) -> list[Row]:
    """Rows in stability form, as the specification's table was computed: |sum rho^j W^j - Stab| <= slack."""
    rows = [moment_row(N, weights.sum() - slack, weights.sum() + slack)]
    for rho in GRID:
        powers = rho**LEVELS
        rows.append(Row(powers, powers @ weights - slack, powers @ weights + slack, 0.0, float(powers[-1])))
    return rows


@pytest.mark.parametrize(
    ("weights", "slack", "printed"),
    [(GEOMETRIC, 1e-3, 0.0164), (HIGH, 0.0, 0.0100), (HIGH, 1e-3, 0.0130), (FLAT, 0.0, 0.670), (FLAT, 1e-3, 0.767)],
)
def test_the_linear_programme_reproduces_the_specifications_table(
    weights: np.ndarray, slack: float, printed: float
) -> None:
    assert tail_bounds(DEGREE, N, stability_rows(weights, slack))[1] == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(("weights", "printed"), [(GEOMETRIC, 0.0006), (JUNTA, 0.0)])
def test_exact_gaps_bound_the_tail_at_least_as_well_as_printed(weights: np.ndarray, printed: float) -> None:
    rows = [gap_row(rho, N, *[(1 - rho**LEVELS) @ weights] * 2) for rho in GRID]
    rows.append(moment_row(N, weights.sum(), weights.sum()))
    low, high = tail_bounds(DEGREE, N, rows)
    assert low - 1e-9 <= weights[DEGREE:].sum() <= high + 1e-9
    assert high <= printed + 1e-4


def test_an_influence_row_alone_is_markovs_bound() -> None:
    rows = [moment_row(N, 1.0, 1.0), influence_row(N, 2.0, 2.0)]
    assert tail_bounds(DEGREE, N, rows)[1] == pytest.approx(2 / DEGREE)


def test_contradicting_intervals_claim_nothing() -> None:
    rows = [moment_row(4, 1.0, 1.0), gap_row(0.5, 4, 5.0, 6.0)]
    assert tail_bounds(2, 4, rows) == (0.0, 1.0)


@pytest.mark.parametrize("method", ["best", "stability", "sensitivity"])
def test_the_interval_never_excludes_the_true_tail(method: str) -> None:
    """12 random functions; each misses with probability at most 1e-7 at this confidence."""
    generator = torch.Generator().manual_seed(0)
    domain = mp.BooleanCube(8)
    weights = 2 ** torch.arange(8)
    for k in range(12):
        table = torch.randn(256, generator=generator).sign().double()
        smooth = torch.tanh(torch.randn(256, generator=generator)).double()
        values = table if k % 2 else smooth
        subject = mp.Subject(lambda x, v=values: v[((x < 0).long() * weights).sum(1)], domain, range=(-1, 1))
        truth = float(mp.spectral_tail(subject, degree=4).value)
        found = mp.spectral_tail(
            subject, degree=4, method=method, exact=False, confidence=1 - 1e-7, budget=20_000, seed=k
        )
        assert found.low - 1e-9 <= truth <= found.high + 1e-9


@pytest.mark.parametrize(("method", "repeats"), [("stability", 1000), ("sensitivity", 1000), ("best", 150)])
def test_over_a_thousand_repeats_the_upper_bound_stays_above_a_tail_that_it_attains(method: str, repeats: int) -> None:
    """(1 + x_0 x_1 x_2 x_3)/2 has weight 1/4 at degree 4 and the rest at 0, where every bound equals the tail.

    At a level of .01 a repeat misses with probability at most .01: more than 32 misses of 1,000 or 12 of 150 have
    probability below 1e-6. (None was seen.) A repeat of the linear programme costs 40 ms, hence fewer.
    """
    subject = mp.Subject(lambda x: (1 + x[:, :4].double().prod(1)) / 2, mp.BooleanCube(8), range=(0, 1))
    plan = mp.spectral_tail.planned(subject, {"degree": 4, "method": method, "rhos": (0.9, 0.5)})
    highs = np.array([box.high for box in boxes(plan, repeats=repeats, chunks=2, size=32, level=0.01)])
    assert (highs < 0.25 - 1e-9).sum() <= (32 if repeats == 1000 else 12)
    # The bound is not idle either.
    assert np.median(highs) < 0.9


def test_best_is_never_above_stability_on_the_same_gaps() -> None:
    subject = mp.Subject(lambda x: x[:, :3].prod(1), mp.BooleanCube(20), "sign")
    best = mp.spectral_tail(subject, degree=5, exact=False, seed=3, budget=50_000)
    alone = mp.spectral_tail(subject, degree=5, method="stability", exact=False, seed=3, budget=50_000)
    assert best.high <= alone.high + 1e-9


def test_parity_has_its_whole_weight_at_the_top() -> None:
    subject = mp.Subject(lambda x: x.prod(1), mp.BooleanCube(10), "sign")
    assert mp.spectral_tail(subject, degree=10).value == pytest.approx(1.0)
    assert mp.degree_at(subject, mass=0.5).value == 10
    with pytest.raises(mp.PropertyViolation):
        mp.assert_low_degree(subject, degree=3, tail_at_most=0.1)


def test_a_dictator_passes_and_a_constant_has_no_tail() -> None:
    dictator = mp.Subject(lambda x: x[:, 0], mp.BooleanCube(30), "sign")
    mp.assert_low_degree(dictator, degree=3, tail_at_most=0.1)
    constant = mp.Subject(lambda x: torch.ones(len(x)), mp.BooleanCube(30), "sign")
    assert mp.spectral_tail(constant, degree=1, budget=200_000).high < 0.05


def test_degree_is_bracketed_by_sampling() -> None:
    subject = mp.Subject(lambda x: torch.where(x[:, :3].sum(1) > 0, 1.0, -1.0), mp.BooleanCube(9), "sign")
    exact = mp.degree_at(subject, mass=0.7)
    sampled = mp.degree_at(subject, mass=0.7, exact=False, seed=0, confidence=1 - 1e-7)
    assert exact.value == 1
    assert sampled.low <= 1 <= sampled.high <= 4


def test_gaussian_inputs_have_hermite_degrees() -> None:
    # relu(x) has weight 1/(2 pi) + 1/4 + 1/(4 pi) at degrees 0, 1, 2 and .01127 above (A11).
    subject = mp.Subject(lambda x: torch.relu(x[:, 0]).clamp(max=6.0), mp.Gaussian(4), range=(0, 6))
    found = mp.spectral_tail(subject, degree=3, budget=400_000, seed=0)
    assert found.low <= 0.01127 <= found.high


def test_relative_tails_divide_by_what_they_say() -> None:
    subject = mp.Subject(lambda x: 0.5 + 0.25 * x[:, :2].prod(1), mp.BooleanCube(6))
    weight, moment = 1 / 16, 1 / 4 + 1 / 16
    assert mp.spectral_tail(subject, degree=2).value == pytest.approx(weight)
    assert mp.spectral_tail(subject, degree=2, relative="moment").value == pytest.approx(weight / moment)
    assert mp.spectral_tail(subject, degree=2, relative="variance").value == pytest.approx(1.0)


def test_a_corpus_is_refused_by_name() -> None:
    domain = mp.Tokens.around(torch.randint(0, 9, (20, 5), generator=torch.Generator().manual_seed(0)))
    with pytest.raises(mp.ArgumentError, match=r"product measure.*Tokens"):
        mp.spectral_tail(lambda x: x[:, 0].double(), domain=domain, degree=2)
