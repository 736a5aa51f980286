"""Several correlations from one chain of nested noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops import functions

RHOS = (0.3, 0.9, 0.6)


@pytest.mark.parametrize("normalisation", ["raw", "centred", "correlation"])
def test_the_chain_covers_every_closed_form_in_the_order_asked(normalisation: str) -> None:
    # One family of simultaneous intervals at confidence 1 - 1e-7.
    function = functions.majority(9)
    subject = mp.Subject(function, mp.BooleanCube(9))
    truth = np.array([function.noise_stability(rho) for rho in RHOS])
    found = mp.noise_stability(
        subject, rho=RHOS, normalisation=normalisation, exact=False, confidence=1 - 1e-7, budget=200_000, seed=0
    )
    assert (found.low <= truth).all()
    assert (truth <= found.high).all()
    assert mp.noise_stability(subject, rho=RHOS, normalisation=normalisation).value == pytest.approx(truth)


def test_a_chain_costs_one_evaluation_a_correlation_beside_the_first() -> None:
    calls = 0

    def counted(points: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += len(points)
        return points[:, 0]

    subject = mp.Subject(counted, mp.BooleanCube(30), "sign")
    subject.probe()
    calls = 0
    found = mp.noise_stability(subject, rho=(0.9, 0.5, 0.1), budget=8_000, width=1e-9)
    assert calls == found.evaluations
    assert found.evaluations == found.samples * 2 * 4


def test_negative_correlations_do_not_chain() -> None:
    with pytest.raises(mp.ArgumentError, match="several in"):
        mp.noise_stability(lambda x: x[:, 0], domain=mp.BooleanCube(3), rho=(0.5, -0.5))


def test_hermite_tails_refuse_resampled_influence() -> None:
    subject = mp.Subject(lambda x: torch.tanh(x[:, 0]), mp.Gaussian(3), range=(-1, 1))
    with pytest.raises(mp.ArgumentError, match="Hermite"):
        mp.spectral_tail(subject, degree=2, method="sensitivity")
