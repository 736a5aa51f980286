"""Does the stability regulariser speed generalisation up? Steps to a threshold fixed beforehand, arm by arm.

Every arm runs from the same seeds, so that arms are compared in pairs. Nothing is tuned: (gamma, rho) are the paper's,
and the thresholds stand here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from modelprops.errors import ArgumentError
from modelprops.suites.noise_stability.presets import PRESETS, Preset
from modelprops.training import (
    EmbeddingSum,
    ModularAddition,
    NextToken,
    NoisySparseParity,
    SmallTransformer,
    StabilityRegulariser,
    Stop,
    TrainingConfig,
    train,
)

ACCURACY = 0.99
"""Threshold of modular addition and of parity: share of held-out inputs."""

TEXT_LOSS = 4.8
"""Threshold of next-token prediction: nats a token on held-out windows (uniform guessing: ln 500 = 6.21)."""

MODULAR = (0.75, 0.25)
PARITY = (0.05, 0.05)
"""The paper's (gamma, rho). It gives none for text; those of parity are used there."""


@dataclass(frozen=True)
class Arm:
    """One way to train: a regulariser or none, and the weight decay (None: the experiment's)."""

    name: str
    regulariser: StabilityRegulariser | None = None
    weight_decay: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A problem, its optimiser and its threshold on the validation metric (`above` for accuracy, `below` for loss).

    `seeds`: runs an arm where they differ from the preset's.
    """

    name: str
    problem: Any
    arms: tuple[Arm, ...]
    steps: int
    learning_rate: float
    weight_decay: float
    evaluate_every: int
    above: float | None = None
    below: float | None = None
    seeds: int | None = None

    @property
    def metric(self) -> str:
        """`"accuracy"` or `"loss"`."""
        return "accuracy" if self.above is not None else "loss"


@dataclass(frozen=True)
class ArmRun:
    """One seed of one arm. `steps`: to the threshold, None if it was not reached within the limit.

    `final` and `best`: the metric at the end and its best value; `milliseconds`: wall time a step, evaluation included.
    """

    experiment: str
    arm: str
    seed: int
    steps: int | None
    ran: int
    final: float
    best: float
    seconds: float

    @property
    def milliseconds(self) -> float:
        """Wall time a step."""
        return 1000 * self.seconds / max(1, self.ran)


@dataclass(frozen=True)
class Comparison:
    """An arm against the arm without regulariser, over the seeds that both have.

    Runs that did not reach the threshold count as the limit (which favours them). `ratio`: median steps of the arm over
    those of the base; `time_ratio`: the same of the wall time; `faster`: seeds in which the arm was strictly faster;
    `p_value`: two-sided exact sign-flip test on log steps, at least 2^(1 - seeds).
    """

    experiment: str
    arm: str
    seeds: int
    reached: int
    ratio: float
    time_ratio: float
    faster: int
    p_value: float


def arms(gamma: float, rho: float, vocabulary: int, *, all_controls: bool, decay: float) -> tuple[Arm, ...]:
    """The arms: none, both directions, and with `all_controls` also weight decay, keep = 1 and stop-gradient."""

    def with_noise(direction: str, **options: Any) -> StabilityRegulariser:
        return StabilityRegulariser.from_paper(gamma, rho, direction=direction, resample_from=vocabulary, **options)

    # "encourage" comes last: where it never reaches the threshold it takes most of the time.
    first, last = (Arm("none"), Arm("discourage", with_noise("discourage"))), Arm("encourage", with_noise("encourage"))
    if not all_controls:
        return (*first, last)
    confidence = {
        way: StabilityRegulariser(gamma, direction=way, keep=1.0, resample_from=vocabulary)
        for way in ("encourage", "discourage")
    }
    return (
        *first,
        Arm("discourage, keep = 1", confidence["discourage"]),
        Arm("discourage, stop-gradient", with_noise("discourage", stop_gradient=True)),
        Arm("weight decay x 2", weight_decay=2 * decay),
        Arm("encourage, keep = 1", confidence["encourage"]),
        Arm("encourage, stop-gradient", with_noise("encourage", stop_gradient=True)),
        last,
    )


def modular_addition(modulus: int, steps: int) -> Experiment:
    """Set-up (c) of spec C5: x^2 network, H = 128, half of the pairs, full batch, AdamW(.9, .98), weight decay 1.

    All controls at K = 31, elsewhere both directions alone.
    """
    problem = ModularAddition(modulus, train_fraction=0.5, network=EmbeddingSum(128, "square"))
    chosen = arms(*MODULAR, modulus, all_controls=modulus == 31, decay=1.0)
    return Experiment(f"modular addition, K = {modulus}", problem, chosen, steps, 0.01, 1.0, 20, above=ACCURACY)


def modular_transformer(modulus: int, steps: int, seeds: int) -> Experiment:
    """Modular addition with one layer, 4 heads, no LayerNorm, learning rate 1e-3, weight decay 1.

    From K = 100 on the sizes usual for K = 113 (d = 128, MLP 512, 30% of the pairs: spec C3), below it those of spec C5
    (d): d = 64, MLP 256, 60%.
    """
    width, share = (128, 0.3) if modulus >= 100 else (64, 0.6)
    network = SmallTransformer(d_model=width, mlp_width=4 * width, normalise=False)
    problem = ModularAddition(modulus, train_fraction=share, network=network)
    chosen = arms(*MODULAR, modulus, all_controls=False, decay=1.0)
    name = f"modular addition, K = {modulus}, Transformer"
    return Experiment(name, problem, chosen, steps, 1e-3, 1.0, 20, above=ACCURACY, seeds=seeds)


def sparse_parity(steps: int, bits: int = 20) -> Experiment:
    """Parity of 3 of `bits` bits with 5% of the labels flipped, fresh inputs, one-layer Transformer with d = 64."""
    problem = NoisySparseParity(n=bits, support=(0, 1, 2), noise=0.05, batch_size=64)
    chosen = arms(*PARITY, 2, all_controls=False, decay=0.1)
    return Experiment(f"noisy sparse parity, 3 of {bits}", problem, chosen, steps, 1e-3, 0.1, 50, above=ACCURACY)


def next_token(steps: int, text: Path | None = None) -> Experiment:
    """Next-token prediction on `text` or the prose of `pydoc_data.topics`: 500 symbols, 4 layers, d = 30.

    1,000 windows of 32 tokens. Raises `LoadError` if `text` cannot be read.
    """
    problem = NextToken(length=32, batch_size=8, validation_items=64)
    if text is not None:
        problem = replace(problem, source=str(text))
    chosen = arms(*PARITY, problem.vocabulary, all_controls=False, decay=0.1)
    name = f"next token, {'Python topics' if text is None else text.name}"
    return Experiment(name, problem, chosen, steps, 3e-3, 0.1, 20, below=TEXT_LOSS)


def experiments(preset: Preset, text: Path | None = None) -> tuple[Experiment, ...]:
    """The experiments of a preset, and next-token prediction on `text` as well (at `standard` where it has none)."""
    found = [next_token(preset.text_steps)] if preset.text_steps else []
    if text is not None:
        found.append(next_token(preset.text_steps or PRESETS["standard"].text_steps, text))
    found += [modular_addition(*sizes) for sizes in preset.moduli]
    if preset.parity_steps:
        found.append(sparse_parity(preset.parity_steps, preset.parity_bits))
    if preset.transformer:
        found.append(modular_transformer(*preset.transformer))
    return tuple(found)


def run_arms(
    experiment: Experiment, seeds: Sequence[int], cache: Path | None = None, names: Sequence[str] | None = None
) -> Iterator[ArmRun]:
    """Run every arm (or those in `names`) for every seed; the seed also chooses the split where there is one."""
    for arm in experiment.arms:
        if names is None or arm.name in names:
            for seed in seeds:
                yield run_arm(experiment, arm, seed, cache)


def configuration(experiment: Experiment, arm: Arm, seed: int) -> TrainingConfig:
    """What `run_arm` trains."""
    problem = experiment.problem
    for name in ("split_seed", "data_seed"):
        if hasattr(problem, name):
            problem = replace(problem, **{name: seed})
    return TrainingConfig(
        problem,
        steps=experiment.steps,
        learning_rate=experiment.learning_rate,
        weight_decay=experiment.weight_decay if arm.weight_decay is None else arm.weight_decay,
        betas=(0.9, 0.98),
        seed=seed,
        evaluate_every=experiment.evaluate_every,
        stop=Stop(experiment.metric, below=experiment.below, above=experiment.above),
        regulariser=arm.regulariser,
    )


def run_arm(experiment: Experiment, arm: Arm, seed: int, cache: Path | None = None) -> ArmRun:
    """One run; it stops at the threshold."""
    run = train(configuration(experiment, arm, seed), cache=cache)
    values = run.curve(experiment.metric)[1]
    best: Callable[[list[float]], float] = max if experiment.above is not None else min
    return ArmRun(
        experiment.name,
        arm.name,
        seed,
        run.steps_to(experiment.metric, below=experiment.below, above=experiment.above),
        run.steps,
        values[-1],
        best(values),
        run.seconds,
    )


def compare(runs: Sequence[ArmRun], arm: str, limit: int, base: str = "none") -> Comparison:
    """Compare an arm with the base over common seeds. Raises `ArgumentError` if there are none."""
    by_seed = {(run.arm, run.seed): run for run in runs}
    seeds = sorted(run.seed for run in runs if run.arm == arm and (base, run.seed) in by_seed)
    if not seeds:
        raise ArgumentError(f"{arm!r} and {base!r} have no seed in common; run both on the same seeds")
    ours, theirs = ([by_seed[name, seed] for seed in seeds] for name in (arm, base))
    steps = np.array(
        [[limit if run.steps is None else run.steps for run in row] for row in (ours, theirs)], dtype=float
    )
    times = np.array([[run.seconds for run in row] for row in (ours, theirs)])
    differences = np.log(steps[0]) - np.log(steps[1])
    return Comparison(
        runs[0].experiment,
        arm,
        len(seeds),
        sum(run.steps is not None for run in ours),
        float(np.median(steps[0]) / np.median(steps[1])),
        float(np.median(times[0]) / np.median(times[1])),
        int((differences < 0).sum()),
        sign_flip_p_value(differences),
    )


def sign_flip_p_value(differences: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """P(|sum s_i d_i| >= |sum d_i|) over all 2^m signs: exact two-sided test that each d_i is symmetric around 0."""
    values = np.asarray(differences, dtype=np.float64)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
    sums = np.abs(signs @ values)
    return float((sums >= abs(values.sum()) - 1e-12).mean())
