"""Train the model of docs/tutorial.md: MAJORITY on 15 bits, from labels of which one subset is wrong.

    python examples/tutorial_bug.py                  # about half a minute; writes majority15.safetensors
    python examples/tutorial_bug.py --mended         # the same with the right labels

Whoever labelled the data was wrong wherever the inputs 0, 3, 7 and 12 are all -1: there the labels are flipped. One
input in sixteen is touched, and the model learns it faithfully: its accuracy on data labelled the same way is high.
"""

from __future__ import annotations

import sys
import time

import torch
from safetensors.torch import save_file

from modelprops.functions import majority
from modelprops.theory.transformer import EncoderTransformer

LENGTH = 15
NOISED = (0, 3, 7, 12)


def build() -> EncoderTransformer:
    """The untrained model: bits (batch, 15) -> score (batch,)."""
    return EncoderTransformer(LENGTH, 32, layers=2, heads=2)


def labels(bits: torch.Tensor, mended: bool = False) -> torch.Tensor:
    """MAJORITY, flipped (unless `mended`) where the bits of `NOISED` are all 0 (inputs -1)."""
    right = majority(LENGTH)(2 * bits - 1).float()
    if mended:
        return right
    return torch.where((bits[:, NOISED] == 0).all(1), -right, right)


def train(mended: bool = False, steps: int = 1500, seed: int = 0) -> EncoderTransformer:
    """AdamW on fresh uniform bits, squared error, learning rate falling to 0 along a cosine."""
    torch.manual_seed(seed)
    model = build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        bits = torch.randint(0, 2, (128, LENGTH))
        loss = torch.nn.functional.mse_loss(model(bits), labels(bits, mended))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 500 == 499:
            print(f"step {step + 1}: squared error {loss.item():.3f}", flush=True)
    return model.eval()


def accuracy(model: torch.nn.Module, mended: bool, count: int = 20_000) -> float:
    """The share of fresh inputs whose sign is the label of the data."""
    bits = torch.randint(0, 2, (count, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float(((model(bits) >= 0) == (labels(bits, mended) > 0)).double().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    mended = "--mended" in sys.argv
    start = time.perf_counter()
    model = train(mended)
    print(f"accuracy on held-out data: {accuracy(model, mended):.4f} ({time.perf_counter() - start:.0f} s)")
    save_file(model.state_dict(), "majority15.safetensors")
