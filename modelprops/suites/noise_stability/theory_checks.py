"""The paper's closed forms and the identities behind the measures, each beside an independent number.

`expected` comes from the specification's printed digits, from enumeration or from a simulation; `found` from the
package. A row holds where they differ by at most `tolerance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

import modelprops as mp
from modelprops.properties.spectrum import level_weights_of
from modelprops.suites.findings import Check
from modelprops.theory import attention, concentration, majority, relu
from modelprops.theory.resampling import GaussianNoise, Resampling


def checks() -> tuple[Check, ...]:
    """All rows; a few seconds."""
    return (*relu_checks(), *concentration_checks(), *boolean_checks(), *categorical_checks(), *gaussian_checks(),
            *attention_checks())  # fmt: skip


def relu_checks() -> list[Check]:
    """Theorem 5.1 and the recursion: the exact fixed point .2172, not 2/(3 pi), and the normalised map's 1."""
    generator = np.random.default_rng(0)
    x, z = generator.standard_normal((2, 1_000_000))
    simulated = float((np.maximum(x, 0) * np.maximum(0.5 * x + math.sqrt(0.75) * z, 0)).mean())
    tail = 0.5 - sum(relu.relu_level_weight(level) for level in range(3))
    return [
        Check("T(1/2) against 10^6 draws", "A11", simulated, relu.relu_stability(0.5), 0.006),
        Check("T(0) = 1/(2 pi)", "A11", 0.159155, relu.relu_stability(0.0), 5e-7),
        Check("ReLU mass at level 3 and above", "A11", 0.0112676, tail, 5e-8),
        Check("fixed point of rho -> T(rho)", "A13, B4", 0.21723362821122, relu.relu_fixed_point(), 1e-12),
        Check(
            "fixed point of the linearised map", "A13, B4", 0.212206590789, relu.relu_fixed_point_linearised(), 1e-12
        ),
        Check("normalised map after 10 layers from 0", "A13", 0.872, relu.c_map_iterates(0.0, 10)[-1], 5e-4),
    ]


def concentration_checks() -> list[Check]:
    """Lemma 1 the right way round: T = log_rho(1 - delta/eps) = +6.579 where the paper's main text gives -6.579."""
    noise = Resampling.from_rho(0.9)
    mass = 0.05 / (1 - 0.9**7)
    return [
        Check(
            "T at rho .9, delta .05, eps .1",
            "A8, B1",
            6.579,
            concentration.concentration_degree(0.05, 0.1, noise),
            5e-4,
        ),
        Check(
            "worst tail at degree 7 (sharp example)", "A8", mass, concentration.gap_tail_bound(0.05, noise, 7), 1e-12
        ),
        Check("worst tail at degree 6 exceeds .1", "B1", 0.1067, concentration.gap_tail_bound(0.05, noise, 6), 5e-5),
        Check("keep for the paper's rho = .25", "B3", 0.625, Resampling.from_paper(0.25).correlation, 1e-12),
        Check("P(Y = X) there for U = 2", "B3", 0.8125, Resampling.from_paper(0.25).agreement(2), 1e-12),
        Check("P(Y = X) there for U = 50", "B3", 0.6325, Resampling.from_paper(0.25).agreement(50), 1e-12),
        Check(
            "majority of 3: 3/4 rho + 1/4 rho^3", "E1", 0.75 * 0.6 + 0.25 * 0.6**3, majority.majority_map(0.6), 1e-12
        ),
    ]


def boolean_checks() -> list[Check]:
    """PARITY: W^n = 1, Stab = rho^n, I = n. A dictator has everything at degree 1."""
    parity = mp.Subject(lambda x: x.double().prod(1), mp.BooleanCube(8))
    dictator = mp.Subject(lambda x: x.double()[:, 3], mp.BooleanCube(8))
    return [
        Check("PARITY_8: stability at .9", "A3", 0.9**8, _value(mp.noise_stability(parity, rho=0.9)), 1e-9),
        Check("PARITY_8: average sensitivity", "A5", 8.0, _value(mp.average_sensitivity(parity)), 1e-9),
        Check("PARITY_8: tail at 8", "D6", 1.0, _value(mp.spectral_tail(parity, degree=8)), 1e-9),
        Check("dictator: tail at 2", "D6", 0.0, _value(mp.spectral_tail(dictator, degree=2)), 1e-9),
        Check("dictator: junta size", "D6", 1.0, _value(mp.junta_size(dictator)), 0.0),
    ]


def categorical_checks() -> list[Check]:
    """A random table on 5^3 tokens: Stab and I from its Efron-Stein weights against a direct simulation and table."""
    table = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (5, 5, 5)))
    subject = mp.Subject(lambda x: table[x[:, 0], x[:, 1], x[:, 2]], mp.Tokens(5, 3), range=(-1, 1))
    weights = np.asarray(level_weights_of(subject)[0])
    generator = np.random.default_rng(2)
    x, fresh = generator.integers(0, 5, (2, 400_000, 3))
    y = np.where(generator.random(x.shape) < 0.625, x, fresh)
    values = table.numpy()
    simulated = float((values[tuple(x.T)] * values[tuple(y.T)]).mean())
    influence = sum(float(values.var(axis=axis).mean()) for axis in range(3))
    stability = float(weights @ 0.625 ** np.arange(4))
    return [
        Check("5^3 table: Stab from levels, 4 10^5 draws", "A4", simulated, stability, 0.005),
        Check("5^3 table: measured stability", "A4", stability, _value(mp.noise_stability(subject, rho=0.625)), 1e-9),
        Check("5^3 table: I = sum_j j W^j", "A5", influence, float(weights @ np.arange(4)), 1e-9),
        Check("5^3 table: measured sensitivity", "A5", influence, _value(mp.average_sensitivity(subject)), 1e-9),
    ]


def gaussian_checks() -> list[Check]:
    """A ReLU neuron of a random unit direction in R^6: T(rho), by the package's own estimator."""
    direction = torch.nn.functional.normalize(
        torch.randn(6, generator=torch.Generator().manual_seed(3)).double(), dim=0
    )
    subject = mp.Subject(lambda x: (x.double() @ direction).relu(), mp.Gaussian(6))
    found = mp.noise_stability(subject, rho=0.5, budget=200_000, width=1e-9, seed=0)
    bound = concentration.gap_tail_bound(0.1, GaussianNoise(0.9), 2)
    return [
        Check("neuron in R^6: measured stability", "A11", relu.relu_stability(0.5), _value(found), 0.02),
        Check("tail bound of a gap of .1 at degree 2", "A8", 0.1 / (1 - 0.9**2), bound, 1e-12),
    ]  # fmt: skip


def attention_checks() -> list[Check]:
    """Theorems 5.2 and 5.3 at finite size. In 5.3 the rows are a random map, not a permutation (spec B10)."""
    identity = attention.simulate_attention("identity", n=32, width=256, rho=0.9, draws=12, seed=0)
    random = attention.simulate_attention("unstructured", n=32, width=256, rho=0.9, draws=12, seed=0)
    limit = attention.identity_attention_stability(0.9)
    predicted = attention.unstructured_attention_stability(0.9, 32, width=256)
    distinct = attention.distinct_columns(32)
    return [
        Check("W = I: stability tends to rho", "A12", identity.stability, limit, 0.08),
        Check("W random: rho s(rho) + finite-d excess", "A12", random.stability, predicted, 0.1),
        Check("W random: distinct argmax columns", "A12, B10", random.distinct, distinct, 0.08),
    ]  # fmt: skip


def failures(rows: Sequence[Check]) -> tuple[Check, ...]:
    """The rows that do not hold."""
    return tuple(row for row in rows if not row.holds)


def _value(estimate: mp.Estimate) -> float:
    return float(np.asarray(estimate.value))
