"""Train the two demo checkpoints that ship in `modelprops/demo`: MAJORITY and PARITY on 12 bits.

    python examples/train_demo.py            # about eight minutes on one core; writes modelprops/demo/*.safetensors

The models output a score whose sign is the function, at all 4,096 inputs. The card's sensitivity and stability claims
are fixed by hand; the flatness claim is about three times what the trained MAJORITY model measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import modelprops as mp
from modelprops.demo import LENGTH, WIDTH, build

OUT = Path(__file__).parent.parent / "modelprops" / "demo"
RADIUS = 3.0


def target(name: str, bits: torch.Tensor) -> torch.Tensor:
    """The ±1 function: +1 iff more than half of the bits are one, or iff their number is even (product of ±1)."""
    ones = bits.sum(1)
    if name == "majority":
        return torch.where(ones > LENGTH / 2, 1.0, -1.0)
    return 1.0 - 2.0 * ((LENGTH - ones) % 2)


def train(name: str, seed: int = 0, most_steps: int = 20_000) -> torch.nn.Module:
    """AdamW on fresh uniform bits, squared error, until the whole cube is right with a margin."""
    torch.manual_seed(seed)
    model = build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    cube = (mp.BooleanCube(LENGTH).exhaustive() > 0).long()
    truth = target(name, cube)
    generator = torch.Generator().manual_seed(seed)
    for step in range(most_steps):
        if step == most_steps * 3 // 4:
            for group in optimiser.param_groups:
                group["lr"] = 3e-4
        bits = torch.randint(0, 2, (256, LENGTH), generator=generator)
        loss = torch.nn.functional.mse_loss(model(bits), target(name, bits))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 250 == 249:
            with torch.no_grad():
                output = model.eval()(cube)
                model.train()
            margin = float((output * truth).min())
            error = float(((output - truth) ** 2).mean())
            print(f"{name} step {step + 1}: mean squared error {error:.5f}, least margin {margin:.3f}", flush=True)
            if error < 1e-3 and margin > 0.5:
                break
    return model.eval()


def write_weights(name: str) -> None:
    """Train one model, check it on the whole cube and write its weights."""
    model = train(name)
    points = mp.BooleanCube(LENGTH).exhaustive()
    subject = mp.Subject(model, mp.BooleanCube(LENGTH, encoding="bits"), "sign")
    assert torch.equal(subject(points), target(name, (points > 0).long()).double()), name
    save_file(model.state_dict(), OUT / f"{name}.safetensors")
    (OUT / f"{name}.safetensors").chmod(0o644)


def write_card() -> None:
    """Measure the flatness of both and write the claims, the bound at about three times the measured value."""
    measured = {}
    for name in ("majority", "parity"):
        model = build()
        model.load_state_dict(load_file(OUT / f"{name}.safetensors"))
        subject = mp.Subject(model, mp.BooleanCube(LENGTH, encoding="bits"), "sign", name=name)
        measured[name] = mp.sharpness(subject, radius=RADIUS, budget=1_000_000, width=1e-3, seed=0)
        print(name, measured[name])
    bound = float(f"{3 * float(measured['majority'].high):.1g}")
    card = {
        "claims": [
            "average_sensitivity <= 3.5",
            "noise_stability(rho=0.9) >= 0.5",
            f"sharpness(radius={RADIUS}) <= {bound}",
        ],
        "measured": {f"sharpness(radius={RADIUS}) of {name}": value.to_dict() for name, value in measured.items()},
        "model": {"class": "EncoderTransformer", "n": LENGTH, "d_model": WIDTH, "layers": 2, "heads": 2},
    }
    (OUT / "card.json").write_text(json.dumps(card, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_weights("majority")
    write_weights("parity")
    write_card()
