"""The stability regulariser in a plain training loop, what a step costs, and what it does on modular addition.

python examples/stable_training.py       # about half a minute on one core
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from modelprops.training import EmbeddingSum, ModularAddition, SmallTransformer, StabilityRegulariser
from modelprops.training.networks import Network

MODULUS = 31
COLUMNS = "{:<34} {:>12} {:>14} {:>14}"


@dataclass(frozen=True)
class Outcome:
    """Steps to 99% on held-out pairs (None: not within the limit) and milliseconds a step."""

    steps: int | None
    milliseconds: float


def run(network: Network, learning_rate: float, regulariser: StabilityRegulariser | None, most_steps: int) -> Outcome:
    """An ordinary loop: the two marked lines are all that the regulariser needs."""
    torch.manual_seed(0)
    problem = ModularAddition(MODULUS, network=network)
    model = problem.build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1.0, betas=(0.9, 0.98))
    noise = torch.Generator().manual_seed(0)
    inputs, targets = problem.batch(noise)
    started, reached = time.perf_counter(), None
    for step in range(1, most_steps + 1):
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, targets)
        if regulariser is not None:  # <-
            loss = loss + regulariser.penalty(model, inputs, logits, noise)  # <-
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 20 == 0 and accuracy(problem, model) >= 0.99:
            reached = step
            break
    return Outcome(reached, 1000 * (time.perf_counter() - started) / step)


@torch.no_grad()
def accuracy(problem: ModularAddition, model: nn.Module) -> float:
    """Share of held-out pairs that are added rightly."""
    return problem.evaluate(model)["accuracy"]


def main() -> None:
    """Print steps and cost for each arm."""
    torch.set_num_threads(1)
    arms = {
        "none": None,
        "discourage": StabilityRegulariser(0.75, direction="discourage", keep=0.625, resample_from=MODULUS),
        "discourage, stop_gradient": StabilityRegulariser(
            0.75, direction="discourage", keep=0.625, resample_from=MODULUS, stop_gradient=True
        ),
        "encourage": StabilityRegulariser(0.75, direction="encourage", keep=0.625, resample_from=MODULUS),
        "keep = 1 (confidence only)": StabilityRegulariser(0.75, direction="encourage", keep=1.0),
    }
    networks: dict[str, tuple[Network, float, int]] = {
        "two embeddings": (EmbeddingSum(128), 0.01, 1500),
        "one-layer Transformer": (SmallTransformer(64), 1e-3, 60),
    }
    print(COLUMNS.format("arm", "steps to 99%", "ms a step", "times none"))
    for name, (network, rate, most_steps) in networks.items():
        print(f"{name}, at most {most_steps} steps")
        base = 0.0
        for arm, regulariser in arms.items():
            outcome = run(network, rate, regulariser, most_steps)
            base = base or outcome.milliseconds
            steps = "not reached" if outcome.steps is None else str(outcome.steps)
            print(
                COLUMNS.format(f"  {arm}", steps, f"{outcome.milliseconds:.2f}", f"{outcome.milliseconds / base:.2f}")
            )


if __name__ == "__main__":
    main()
