"""Gates, simulated: false alarms, power, the cost of pairing; refusals on real subjects."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy

import modelprops as mp
from modelprops.baseline import Baseline
from modelprops.paired import Comparison, UnpairedWarning, decide_change
from modelprops.rules import parse_rule

RULE = parse_rule("toy:+0.02")


def gate(seed: int, shift: float, *, tolerance: float | None = None, paired: bool = True) -> tuple[str, int]:
    """One gate from scratch: outcome, evaluations of the new checkpoint."""
    old = toy.measurement(seed, units=2_000 if paired else 30_000, with_interval=not paired)
    comparison = Comparison("old", old if paired else toy.without_units(old), RULE, tolerance)
    result = decide_change(comparison, toy.plan(shift), toy.options(seed))
    return result.outcome, result.evaluations


def test_thousand_gates_without_a_change_raise_no_more_than_one_percent_alarms() -> None:
    # The chance of an alarm is below 1% by design and far below it here: more than 10 in 1,000 has chance < 1e-9.
    outcomes = [gate(seed, 0.0)[0] for seed in range(1_000)]
    assert outcomes.count("fail") <= 10
    assert outcomes.count("pass") >= 990


def test_a_regression_of_twice_the_allowed_change_is_caught_in_99_of_100_gates() -> None:
    outcomes = [gate(seed, 0.04)[0] for seed in range(1_000)]
    assert outcomes.count("fail") >= 990


def test_a_change_of_just_the_allowed_size_is_seldom_called_either_way() -> None:
    # Without tolerance both verdicts are wrong with chance at most 0.5% each at the edge; 12 of 300 has chance < 1e-6.
    outcomes = [gate(seed, 0.02, tolerance=0.0)[0] for seed in range(300)]
    assert 300 - outcomes.count("inconclusive") <= 12


def test_pairing_takes_a_fifth_of_the_evaluations_for_a_fine_tuned_twin() -> None:
    paired = [gate(seed, 0.0)[1] for seed in range(30)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnpairedWarning)
        unpaired = [gate(seed, 0.0, paired=False)[1] for seed in range(30)]
    assert np.median(paired) <= np.median(unpaired) / 5


def test_an_unpaired_comparison_warns_and_states_its_own_confidence() -> None:
    old = toy.without_units(toy.measurement(0, units=30_000, with_interval=True))
    with pytest.warns(UnpairedWarning, match="no units of toy"):
        result = decide_change(Comparison("old", old, RULE), toy.plan(0.0), toy.options(0))
    assert result.outcome == "pass"
    assert result.confidence == pytest.approx(0.985)


def test_percentages_are_decided_on_new_minus_factor_times_old() -> None:
    old = toy.measurement(1)
    result = decide_change(Comparison("old", old, parse_rule("toy:+20%")), toy.plan(0.0), toy.options(1))
    assert result.outcome == "pass"
    worse = decide_change(Comparison("old", old, parse_rule("toy:x1.05")), toy.plan(0.06), toy.options(1))
    assert worse.outcome == "fail"
    # mean 1/4 by construction, shift .06: the interval of new - old covers it (chance of failing below 1%, seed fixed)
    assert worse.change.low <= 0.06 <= worse.change.high


class Net(torch.nn.Module):
    """A small tanh network on ±1 inputs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.one = torch.nn.Linear(20, width)
        self.two = torch.nn.Linear(width, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x.to(self.one.weight.dtype))))


class Signed(Net):
    """The network times PARITY of all inputs, so that flips change the sign."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * x.prod(1, keepdim=True)


def subject(module: torch.nn.Module, n: int = 20, **options: object) -> mp.Subject:
    """The network as a ±1 function."""
    given = {"readout": "sign", "name": "net", **options}
    return mp.Subject(module, mp.BooleanCube(n), **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stored() -> Baseline:
    """A baseline of the network on sampled sensitivity, a ratio, stability and sharpness."""
    with mp.measured() as kept:
        mp.average_sensitivity(subject(Net()), exact=False)
        mp.average_sensitivity(subject(Net()), exact=False, relative=True)
        mp.noise_stability(subject(Net()), rho=0.9, exact=False, budget=400_000)
        mp.sharpness(subject(Net(), readout=None, name="raw"), radius=0.05, inputs=16, budget=50_000)
    return Baseline("old", tuple(kept))


def test_the_same_weights_pass_and_cost_one_chunk(stored: Baseline) -> None:
    verdicts = mp.assert_not_regressed(subject(Net()), stored)
    verdicts += mp.assert_not_regressed(subject(Net(), readout=None, name="raw"), stored)
    assert {verdict.outcome for verdict in verdicts} == {"pass"}
    assert len(verdicts) == 4
    assert all(verdict.estimate.samples <= 64 and verdict.estimate.method == "exact" for verdict in verdicts)


def test_other_weights_are_compared_on_the_same_inputs_as_the_baseline(stored: Baseline) -> None:
    worse = Signed()
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_not_regressed(subject(worse), stored, ["stability:-0.02"])
    verdict = caught.value.verdict
    with mp.measured() as kept:
        mp.noise_stability(subject(worse), rho=0.9, exact=False, seed=stored.measurements[2].estimate.seed)
    assert kept[0].units is not None
    count = verdict.estimate.samples
    assert verdict.estimate.details["new"] == pytest.approx(kept[0].units[:count, 0].mean())


def test_a_fine_tuned_twin_passes_every_measure_where_small_changes_are_allowed(stored: Baseline) -> None:
    twin = copy.deepcopy(Net())
    with torch.no_grad():
        twin.one.weight += 1e-4
    rules = ["average_sensitivity:+20%", "stability:-0.1", "sharpness:x1.5"]
    verdicts = mp.assert_not_regressed(subject(twin), stored, rules[:2])
    assert {verdict.outcome for verdict in verdicts} == {"pass"}
    assert {verdict.estimate.guarantee for verdict in verdicts} == {"confidence bound", "asymptotic"}
    flat = mp.assert_not_regressed(subject(twin, readout=None, name="raw"), stored, rules[2])
    assert flat[0].estimate.guarantee == "asymptotic"


def test_unlike_things_are_refused_with_every_difference(stored: Baseline) -> None:
    one = replace(stored, measurements=stored.measurements[:1])
    with pytest.raises(mp.BaselineError) as caught:
        mp.assert_not_regressed(subject(Net().double(), readout=None), one)
    text = str(caught.value)
    assert "readout: sign" in text
    assert "dtype: float32 in the baseline, float64 now" in text
    older = replace(one.measurements[0], version=0, domain="BooleanCube(n=4)", coordinates=4)
    with pytest.raises(mp.BaselineError, match=r"domain.*coordinates: 4.*definition of average_sensitivity: version 0"):
        mp.assert_not_regressed(subject(Net()), replace(stored, measurements=(older,)))


def test_a_loss_must_be_given_again(stored: Baseline) -> None:
    net = subject(Net(), readout=None)

    def loss(output: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return (output - points[:, 0]) ** 2

    with mp.measured() as kept:
        mp.sharpness(net, radius=0.05, loss=loss, inputs=16, budget=20_000)
    old = Baseline("old", tuple(kept))
    with pytest.raises(mp.BaselineError, match="loss="):
        mp.assert_not_regressed(net, old)
    assert mp.assert_not_regressed(net, old, parameters={"loss": loss})[0].outcome == "pass"


def test_exact_measurements_are_compared_exactly() -> None:
    domain = mp.BooleanCube(8)
    first = mp.Subject(lambda x: x[:, 0], domain, readout="sign", name="f")
    parity = mp.Subject(lambda x: x.prod(1), domain, readout="sign", name="f")
    with mp.measured() as kept:
        mp.average_sensitivity(first)
    old = Baseline("old", tuple(kept))
    assert mp.assert_not_regressed(first, old)[0].estimate.value == 0
    with pytest.raises(mp.PropertyViolation, match="measured: 7, exact"):
        mp.assert_not_regressed(parity, old)
    with pytest.raises(mp.BaselineError, match="speaks of nothing"):
        mp.assert_not_regressed(first, old, "sharpness:x2")
