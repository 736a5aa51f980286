"""A first authored property test of a trained model. Run with `pytest --modelprops tests/examples`."""

from __future__ import annotations

import modelprops as mp


def test_the_model_is_not_sensitive(subject: mp.Subject) -> None:
    # MAJORITY on 12 bits has average sensitivity 12 * C(11, 5) / 2^11 = 2.71; PARITY would have 12.
    mp.assert_low_sensitivity(subject, at_most=3)


def test_noise_does_not_change_the_answer(subject: mp.Subject) -> None:
    mp.assert_stability_above(subject, 0.6, rho=0.9)
