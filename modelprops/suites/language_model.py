"""Suite `language-model`: how much a language model's bounded readout moves when tokens are drawn afresh.

Average sensitivity over the model's token domain and noise stability at rho = 0.9 (each token kept with probability
0.9, else redrawn) are measured, recorded and printed with their intervals; claims that are configured run beside them.
Sizes suit a model of 100 M parameters on one core: about 500 forward passes a measure, a tenth of the budget.
"""

from __future__ import annotations

import pytest

import modelprops as mp

BUDGET = 5_000


@pytest.mark.parametrize("measure", ["average_sensitivity", "noise_stability(rho=0.9)"])
def test_language_model(subject: mp.Subject, measure: str) -> None:
    """Record the measure with its interval; the verdict is `measured`. An unbounded readout is skipped: no interval."""
    if subject.diameter == float("inf"):
        pytest.skip(
            'the readout is unbounded; give --modelprops-readout "next-token-probability frozen" or "embedding"'
        )
    mp.claim(measure).check(subject, budget=BUDGET)
