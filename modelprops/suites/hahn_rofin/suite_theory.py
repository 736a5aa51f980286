"""Suite `hahn-rofin`, without training: spec F.1 to F.5.

Source: Hahn and Rofin 2024, in the corrected form of the package's specification; tags such as A.10 are its sections.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from modelprops.suites.hahn_rofin import theory_checks
from modelprops.suites.hahn_rofin.expectation import check, preset, runs
from modelprops.suites.hahn_rofin.presets import Preset

__all__ = ["preset", "runs"]  # fixtures


@pytest.mark.parametrize("part", ["closed_form", "identity", "inequality", "blowup", "automaton"])
def test_theory(part: str) -> None:
    """Identities and closed forms (A.2), exact sharpness inequalities (A.10), caps of LayerNorm, a scratchpad step.

    Sizes: tables of up to 10 bits, 2,000 random pairs, 200 automata, at every preset. Reproduced if every number is
    within the stated tolerance and there is no violation.
    """
    for row in getattr(theory_checks, f"{part}_checks")():
        assert row.holds, f"{row.name} ({row.source}): found {row.found:.9g}, expected {row.expected:.9g}"


def test_exact_parity(preset: Preset, runs: Path) -> None:
    """The theorem on PARITY's exact Transformer (A.13): representable, eps decides, sharpness grows, lengths fail.

    Sizes: n = 4 to 128, noise of std 1e-4 to 3e-2 on every parameter, `draws` draws of 128 inputs. Reproduced if
    accuracy is 1 and s = 10 n at eps = 0; mean s is within 20% of the printed values at n = 16, 32 for eps > 0; at
    sigma = .01 sharpness is < .6 at n = 4 and > .9 at 16, at .001 < .1 at 8 and > .9 at 64 (ends of 95% intervals).
    """
    check("handcrafted", preset, runs)


def test_initialisation(preset: Preset, runs: Path) -> None:
    """Random Transformers compute insensitive functions (A.12, E), with three initialisations and with one layer.

    Sizes: n = `initial_lengths`, `draws` models each. Reproduced if mean as_n/n is below .4 at the largest n (upper end
    of a 95% interval), falls with n, and min_x s <= n/4 in at least 90% of the models.
    """
    check("initialisation", preset, runs)
