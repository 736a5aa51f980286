"""Property tests for trained torch models. Import it as `import modelprops as mp`; names load on first use."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    # domains and subjects
    "BooleanCube": "domains",
    "Tokens": "domains",
    "Gaussian": "domains",
    "Embeddings": "embeddings",
    "Subject": "subject",
    "load": "loading",
    # results
    "Estimate": "estimate",
    "Verdict": "estimate",
    "Witness": "estimate",
    # measures and claims
    "claim": "properties.claim",
    "average_sensitivity": "properties.sensitivity",
    "assert_low_sensitivity": "properties.sensitivity",
    "noise_stability": "properties.stability",
    "assert_stability_above": "properties.stability",
    "sharpness": "properties.sharpness",
    "assert_flat_minimum": "properties.sharpness",
    "fourier_spectrum": "properties.spectrum",
    "Spectrum": "properties.spectrum",
    "heavy_coefficients": "properties.heavy",
    "spectral_tail": "properties.tail",
    "degree_at": "properties.tail",
    "assert_low_degree": "properties.tail",
    "small_radius_sharpness": "properties.small_radius",
    "worst_sharpness": "properties.worst_sharpness",
    "worst_direction": "properties.worst_sharpness",
    "landscape": "properties.landscape",
    "Landscape": "properties.landscape",
    "curvature": "properties.curvature",
    "assert_bounded_curvature": "properties.curvature",
    "layernorm_blowup": "properties.blowup",
    "assert_blowup_below": "properties.blowup",
    "parameter_norm": "properties.norm",
    "search": "worst_case",
    "assert_sensitivity_everywhere": "properties.everywhere",
    "assert_stable_everywhere": "properties.everywhere",
    "assert_agrees": "properties.everywhere",
    "assert_same_function": "properties.everywhere",
    "sensitivity_profile": "properties.profile",
    "influences": "properties.influence",
    "assert_no_dominant_coordinate": "properties.influence",
    "junta_size": "properties.junta",
    "assert_junta": "properties.junta",
    "monotonicity_violation": "properties.monotonicity",
    "assert_monotone": "properties.monotonicity",
    "linearity_violation": "properties.linearity",
    "assert_linear": "properties.linearity",
    "symmetry_violation": "properties.symmetry",
    "assert_symmetric": "properties.symmetry",
    "equivariance_violation": "properties.symmetry",
    "assert_equivariant": "properties.symmetry",
    "length_profile": "properties.length",
    "assert_bounded_growth": "properties.length",
    "disagreement": "properties.length",
    "assert_length_generalises": "properties.length",
    # checkpoints
    "Baseline": "baseline",
    "load_baseline": "baseline",
    "save_baseline": "baseline",
    "measured": "measurement",
    "assert_not_regressed": "regression",
    "series_of": "series",
    # errors
    "ModelpropsError": "errors",
    "ArgumentError": "errors",
    "DomainError": "errors",
    "OutputError": "errors",
    "LoadError": "errors",
    "UnsafeCheckpointError": "errors",
    "NoParametersError": "errors",
    "NondeterministicModelError": "errors",
    "NonFiniteOutputError": "errors",
    "CurvatureError": "errors",
    "BaselineError": "errors",
    "PropertyViolation": "errors",
    "Inconclusive": "errors",
}
_SUBMODULES = ("architectures", "drawn", "functions", "metamorphic", "strategies", "theory", "training")

__all__ = ["__version__", *_PUBLIC, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
