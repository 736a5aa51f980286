"""Suite `hahn-rofin`, trained models: spec C.1 to C.5, F.6 and F.7.

Runs are cached by the hash of their configuration in pytest's cache, so that a second call takes seconds and a killed
one goes on where it was; `--cache-clear` forgets them. A claim that a preset is too small for is skipped, one that is
contradicted fails with the evidence; runs whose evaluation MSE stays above 1e-3 are left out and counted.
"""

from __future__ import annotations

from pathlib import Path

from modelprops.suites.hahn_rofin.expectation import check, preset, runs
from modelprops.suites.hahn_rofin.presets import Preset

__all__ = ["preset", "runs"]  # fixtures


def test_sharpness_against_length(preset: Preset, runs: Path) -> None:
    """C.1 (Figure 1): PARITY's minima are sharper than those of MAJORITY, FIRST and MEAN, and sharper at larger n.

    Sizes: `lengths`, `seeds`, `directions`. Reproduced if L_rho of PARITY is above 1.5 times the largest other at every
    n >= 6; if its slope in n is positive with p < .01 and five times that of each other task; and if no pair of trained
    and perturbed model violates the inequalities of A.10.
    """
    check("lengths", preset, runs)


def test_norm_against_blowup(preset: Preset, runs: Path) -> None:
    """C.2 (Figure 2): parameter norm and log LayerNorm blowup of PARITY models trade off.

    Sizes: `search`, random weight decay and learning rate. Reproduced if Spearman's correlation is below -.3 (and its
    95% interval below 0) over at least 30 converged runs at an n >= 10, and the frontier moves outward with n.
    """
    check("tradeoff", preset, runs)


def test_dynamics(preset: Preset, runs: Path) -> None:
    """C.3 (Figure 3): while PARITY is learned sharpness and blowup jump, and the norm falls afterwards.

    Sizes: `dynamics`. Reproduced if in at least 80% of the runs that learn it sharpness 1,000 steps later and the
    largest mean Blowup around convergence are above twice their plateau values, and the norm falls (weight decay > 0).
    """
    check("dynamics", preset, runs)


def test_generalisation(preset: Preset, runs: Path) -> None:
    """C.4 (Figure 4): models extrapolate by functions less sensitive than random ones, which are flatter too.

    Sizes: `generalisation`. Reproduced if random minus learned as_n is positive (95% interval), as_n of learned
    extrapolations rises with the training size (intervals apart) and stays below n/2, and Pearson(as_n, L_rho) > .5.
    """
    check("generalisation", preset, runs)


def test_scratchpad(preset: Preset, runs: Path) -> None:
    """C.5 (Figure 11): with a scratchpad PARITY is learned at long inputs and its sharpness does not grow.

    Sizes: `scratchpad`. Reproduced if every run at n >= 40 has autoregressive accuracy > .999, and the slope of the
    sharpness a step in n has a 95% interval that reaches 0 or is under half of its mean over the whole range, and
    the last step's mean sensitivity at true contexts is between 1.5 and 2.5.
    """
    check("scratchpad", preset, runs)
