"""The bounds against arithmetic done by hand, enumeration and a closed form for each automaton."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from modelprops.errors import ArgumentError
from modelprops.theory import bounds
from modelprops.theory.parity import HandcraftedParity
from modelprops.theory.transformer import AnalysedTransformer, EncoderTransformer


def average_sensitivity(table: np.ndarray) -> float:
    """as_n of a table over the cube, from the definition: 1/4 E_x sum_i (f(x) - f(x^i))^2."""
    index = np.arange(len(table))
    bits = len(table).bit_length() - 1
    return float(sum(((table - table[index ^ (1 << i)]) ** 2).mean() for i in range(bits)) / 4)


def every_input(n: int) -> torch.Tensor:
    return torch.tensor([[index >> place & 1 for place in range(n)] for index in range(2**n)])


def random_table(generator: np.random.Generator, n: int) -> np.ndarray:
    kind = generator.integers(4)
    if kind == 0:
        return generator.standard_normal(2**n)
    if kind == 1:
        return generator.choice([-1.0, 1.0], 2**n)
    parity = np.array([(-1.0) ** index.bit_count() for index in range(2**n)])
    return parity * generator.uniform(0, 3) + generator.standard_normal(2**n) * 10.0 ** generator.uniform(-6, 0)


def test_sharpness_inequalities_hold_for_2000_random_pairs() -> None:
    generator = np.random.default_rng(11)
    violations = 0
    for _ in range(2000):
        n = int(generator.integers(1, 9))
        before, after = random_table(generator, n), random_table(generator, n)
        if generator.integers(2):
            after = before * generator.uniform(-1, 1) + 0.1 * after
        distance = float(((before - after) ** 2).mean())
        sensitivities = average_sensitivity(before), average_sensitivity(after)
        linear = bounds.linear_sharpness_bound(*sensitivities, n)
        root = bounds.root_sharpness_bound(*sensitivities, n)
        violations += linear > distance * (1 + 1e-12) or root > distance * (1 + 1e-12) or linear > root + 1e-12
    assert violations == 0


def test_sharpness_inequalities_are_tight_for_parity_against_zero() -> None:
    assert bounds.root_sharpness_bound(7, 0, 7) == pytest.approx(1.0)
    assert bounds.linear_sharpness_bound(7, 0, 7) == 0.5
    assert bounds.root_sharpness_bound(0, 7, 7) == 0.0


@pytest.mark.parametrize("model", ["analysed", "encoder", "handcrafted"])
def test_sharpness_inequalities_hold_for_models_and_any_perturbation(model: str) -> None:
    torch.manual_seed(2)
    n = 6
    built = {
        "analysed": lambda: AnalysedTransformer(n, d=8, eps=0.0),
        "encoder": lambda: EncoderTransformer(n, d_model=8),
        "handcrafted": lambda: HandcraftedParity(n),
    }[model]().double()
    with torch.no_grad():
        before = built(every_input(n)).numpy()
        for size in (1e-3, 1e-2, 0.1, 1.0):
            for parameter in built.parameters():
                parameter += size * torch.randn_like(parameter)
            after = built(every_input(n)).numpy()
            distance = ((before - after) ** 2).mean()
            sensitivities = average_sensitivity(before), average_sensitivity(after)
            assert bounds.root_sharpness_bound(*sensitivities, n) <= distance + 1e-12
            assert bounds.linear_sharpness_bound(*sensitivities, n) <= distance + 1e-12


def test_lipschitz_bounds_use_the_layer_norm_epsilon() -> None:
    norms = torch.tensor([[0.5, 0.25], [0.1, 0.3], [0.4, 0.05]])
    # max_h of the sums over layers 2 and 3: head 1 has 0.5, head 2 has 0.35.
    assert bounds.log_constant(norms, 2, log_polynomial=1.0) == pytest.approx(4 * 2 * 0.5 + 1)
    pointwise = bounds.log_pointwise_bound(norms, 2, 1e-4, log_constant=0.0)
    assert math.exp(pointwise) == pytest.approx(math.exp(4 * 2 * 0.5) / 1e-4**1.5)
    typical = bounds.log_typical_bound(50, 3, 1e-4, log_constant=math.log(7))
    assert math.exp(typical) == pytest.approx(7 * math.log(50) / 1e-4**1.5)
    assert bounds.log_constant(norms[:1], 2, log_polynomial=0.0) == 0.0


def test_lipschitz_bounds_survive_widths_where_exp_overflows() -> None:
    assert bounds.log_pointwise_bound(torch.full((2, 2), 3.0), 128, 1e-5, log_constant=0.0) > 1500


@torch.no_grad()
def test_euler_reading_of_the_pointwise_bound_is_refuted_by_the_handcrafted_model() -> None:
    """s = 10 n at eps = 0 grows past any constant, so the divisor e^(L/2) cannot be right (spec B.1)."""
    sensitivity = []
    for n in (4, 16, 64):
        inputs = torch.zeros(n + 1, n, dtype=torch.int64)
        inputs[1:] += torch.eye(n, dtype=torch.int64)
        outputs = HandcraftedParity(n)(inputs)
        sensitivity.append(float(((outputs[1:] - outputs[0]) ** 2).sum() / 4))
    assert sensitivity == pytest.approx([40, 160, 640])


def test_caps_of_layer_norm_and_blowup() -> None:
    assert bounds.largest_layer_norm_factor(1e-5) == pytest.approx(316.23, abs=0.01)
    assert bounds.largest_blowup(0.25, 2) == 9.0
    assert bounds.largest_blowup(0.0, 1) == math.inf
    assert bounds.exceptional_fraction(10, 2) == 0.02
    assert bounds.exceptional_fraction(1, 4) == 1.0


@pytest.mark.parametrize(("n", "printed"), [(10, 2.08), (100, 4.66), (1000, 12.0), (10_000, 33.0)])
def test_parity_forces_blowup_of_order_root_n_over_log_n(n: int, printed: float) -> None:
    assert bounds.parity_blowup_growth(n) == pytest.approx(printed, abs=0.05)
    without_exception = bounds.average_blowup_needed(n, n, 1, constant=1.0) + 1 / n
    assert without_exception == pytest.approx(math.sqrt(n / math.log(n)))


def test_tradeoffs_and_implied_constants_are_inverse_to_each_other() -> None:
    sensitivity = torch.tensor([3.0, 8.0])
    blowups, neighbours = torch.tensor([2.0, 5.0]), torch.tensor([[1.0, 3.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    right_sides = torch.tensor([4 + 12 / 4, 25 + 4])
    implied = bounds.implied_local_constant(sensitivity, blowups, neighbours)
    torch.testing.assert_close(implied, sensitivity / (math.sqrt(4 * math.log(4)) * right_sides))
    for index in range(2):
        needed = bounds.local_blowup_needed(sensitivity, 4, constant=implied[index].item())
        assert needed[index].item() == pytest.approx(right_sides[index].item())
    constant = bounds.implied_average_constant(9.0, 17.0, 12, 2)
    assert constant == pytest.approx((9 / math.sqrt(12 * math.log(12)) - 2 / 12) / 17)
    assert bounds.average_blowup_needed(9.0, 12, 2, constant=constant) == pytest.approx(17)


@torch.no_grad()
def test_implied_constant_of_the_handcrafted_model_stays_bounded_in_length() -> None:
    implied = []
    for n in (4, 6, 8, 10):
        model, index = HandcraftedParity(n), torch.arange(2**n)
        trace = model.trace(every_input(n))
        neighbours = torch.stack([trace.blowup[index ^ (1 << place)] for place in range(n)], dim=1)
        local = bounds.implied_local_constant(torch.full((2**n,), 10.0 * n), trace.blowup, neighbours)
        implied.append(local.max().item())
    assert implied == sorted(implied, reverse=True)


def test_asymptotic_sharpness_of_parity_is_a_half_or_one() -> None:
    assert bounds.asymptotic_sharpness_bound(1.0, boolean=False, width_term=0.0) == 0.5
    assert bounds.asymptotic_sharpness_bound(1.0, boolean=True, width_term=0.25) == 0.75


def test_parity_scratchpad_has_sensitivity_two_at_every_step() -> None:
    step = bounds.step_sensitivity([[0, 1], [1, 0]])
    assert step.local.tolist() == [[2, 2], [2, 2]]
    assert (step.mean, step.largest, step.bound) == (2.0, 2, 2)


@pytest.mark.parametrize(
    ("table", "mean", "largest", "bound"),
    [
        # AND: at (1, 1) both flips change the state, at (0, 1) and (1, 0) one does, at (0, 0) none.
        ([[0, 0], [0, 1]], 1.0, 2, 2),
        # Last symbol: only the symbol bit matters.
        ([[0, 1], [0, 1]], 1.0, 1, 2),
        # Constant, and a single state, which has no bits.
        ([[1, 1], [1, 1]], 0.0, 0, 2),
        ([[0, 0]], 0.0, 0, 0),
        # Bitwise XOR of a 2-bit state with a 2-bit symbol: each of 4 context bits changes exactly one state bit.
        ([[s ^ a for a in range(4)] for s in range(4)], 4.0, 4, 8),
        # Count ones modulo 3, codes 00, 01, 10 (11 is no state): s = 3, 4 at state 0; 3, 4 at state 1; 2, 2 at state 2.
        ([[0, 1], [1, 2], [2, 0]], (3 + 4 + 3 + 4 + 2 + 2) / 6, 4, 6),
    ],
)
def test_step_sensitivity_of_small_automata(table: list[list[int]], mean: float, largest: int, bound: int) -> None:
    step = bounds.step_sensitivity(table)
    assert (step.mean, step.largest, step.bound) == (pytest.approx(mean), largest, bound)


def test_step_bound_holds_for_random_automata() -> None:
    generator = np.random.default_rng(4)
    for _ in range(200):
        states, symbols = generator.integers(1, 12), generator.integers(1, 6)
        step = bounds.step_sensitivity(generator.integers(0, states, (states, symbols)))
        assert 0 <= step.local.min() <= step.largest <= step.bound


@pytest.mark.parametrize("table", [[], [[0, 1], [1]], [[0, 2], [1, 0]], [[0.5, 0]], [[-1, 0]], [0, 1]])
def test_a_transition_table_must_be_a_rectangle_of_states(table: list[list[int]]) -> None:
    with pytest.raises(ArgumentError, match="next state"):
        bounds.step_sensitivity(table)


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.scale(1),
        lambda: bounds.log_typical_bound(10, 2, 0.0, log_constant=0.0),
        lambda: bounds.log_constant(torch.ones(2), 4, log_polynomial=0.0),
        lambda: bounds.average_blowup_needed(1.0, 4, 2, constant=0.0),
        lambda: bounds.implied_average_constant(1.0, 0.5, 4, 2),
        lambda: bounds.implied_local_constant(torch.ones(2), torch.ones(3), torch.ones(2, 4)),
        lambda: bounds.root_sharpness_bound(-1.0, 0.0, 4),
    ],
)
def test_arguments_outside_the_definitions_are_refused(call: object) -> None:
    with pytest.raises(ArgumentError, match="Pass"):
        call()  # type: ignore[operator]  # parametrised callables
