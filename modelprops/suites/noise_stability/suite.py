"""Suite `noise-stability`: what must hold of the theory, of the models and of the regulariser.

Source: Haris, Zhang and Yoshida 2026, in the corrected form of the package's specification. Sizes by
`--modelprops-preset`: `quick` under 3 minutes on 2 cores, `standard` about 25 minutes, `full` the paper's.
The claim-by-claim report is written by `python -m modelprops.suites.noise_stability`.
"""

from __future__ import annotations

import numpy as np
import pytest

from modelprops.settings import defaults
from modelprops.suites.noise_stability import theory_checks
from modelprops.suites.noise_stability.experiments import ArmRun, modular_addition, run_arm
from modelprops.suites.noise_stability.language import installed_model, language_findings
from modelprops.suites.noise_stability.presets import PRESETS, Preset
from modelprops.suites.noise_stability.run import MODELS


@pytest.fixture
def preset() -> Preset:
    """The sizes asked for."""
    return PRESETS[defaults().preset]


@pytest.mark.parametrize("part", ["relu", "concentration", "boolean", "categorical", "gaussian", "attention"])
def test_theory(part: str) -> None:
    """Closed forms and identities, each against enumeration, simulation or printed digits."""
    for row in getattr(theory_checks, f"{part}_checks")():
        assert row.holds, f"{row.name} ({row.source}): found {row.found:.9g}, expected {row.expected:.9g}"


@pytest.mark.parametrize("place", range(len(MODELS)), ids=MODELS)
def test_language_model(place: int, preset: Preset) -> None:
    """The columns of the tail table are consistent: the programme is never above the stability bound."""
    subject = installed_model(MODELS[place], preset.length)
    if subject is None:
        pytest.skip(f"the package of {MODELS[place]} is not installed (extra `demo`)")
    found = language_findings(subject, budget=preset.tail_budget[place], contexts=preset.contexts[place])
    for function in found["functions"]:
        tail = function["tail"]
        assert tail["best"]["high"] <= tail["stability"]["high"] * (1 + 1e-6)
        assert tail["stability"]["low"] <= tail["stability"]["value"]
        assert 0 <= tail["sensitivity"]["low"] <= tail["sensitivity"]["value"]
        assert np.all(np.asarray(function["influences"]["value"]) >= 0)


def test_discouraging_stability_reaches_the_threshold_first(preset: Preset) -> None:
    """Modular addition, K = 31 (spec C5): fewer steps with "discourage" than without, in most seeds."""
    experiment = modular_addition(*preset.moduli[0])

    def run(name: str, seed: int) -> ArmRun:
        return run_arm(experiment, next(arm for arm in experiment.arms if arm.name == name), seed)

    faster = 0
    for seed in range(preset.seeds):
        ours, plain = run("discourage", seed).steps, run("none", seed).steps
        faster += ours is not None and (plain is None or ours < plain)
    assert faster >= 0.8 * preset.seeds
