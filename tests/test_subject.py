"""Subjects: values, readouts and errors; the module is left bit for bit as found."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

import modelprops as mp

CUBE = mp.BooleanCube(4)


class Bits(nn.Module):
    """Takes int64 bits, as an embedding does; refuses anything else."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 3, dtype=dtype)
        self.head = nn.Linear(3, 1, dtype=dtype)

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        assert bits.dtype == torch.int64
        return self.head(self.embedding(bits).mean(1))


def state(module: nn.Module) -> dict[str, object]:
    """Everything that must be as before."""
    return {
        "tensors": {name: tensor.clone() for name, tensor in module.state_dict().items()},
        "places": [id(tensor) for tensor in (*module.parameters(), *module.buffers())],
        "modes": [part.training for part in module.modules()],
        "grads": [None if p.grad is None else p.grad.clone() for p in module.parameters()],
        "flags": [p.requires_grad for p in module.parameters()],
        "hooks": [len(part._forward_hooks) for part in module.modules()],
        "random": (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()),
    }


def same(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)  # type: ignore[arg-type]
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)  # type: ignore
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))  # type: ignore[arg-type,call-overload]
    return first == second


class Interrupted(nn.Module):
    """Raises in the middle of a measurement, with dropout, batch norm and a counter on board."""

    def __init__(self, after: int | None, error: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 1))
        self.register_buffer("count", torch.zeros(1))
        self.calls, self.after, self.error = 0, after, error

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.count += 1
        torch.rand(1)
        if self.after is not None and self.calls > self.after:
            raise self.error("stopped")
        return self.body(points)


@pytest.mark.parametrize(("after", "error"), [(None, RuntimeError), (14, RuntimeError), (14, KeyboardInterrupt)])
def test_the_module_is_left_as_found_after_success_failure_and_interruption(
    after: int | None, error: type[BaseException]
) -> None:
    module = Interrupted(after, error)
    module.train()
    module.body[1].eval()
    module.body[0].weight.grad = torch.ones_like(module.body[0].weight)
    module.body[3].weight.requires_grad_(False)
    module.body[0].register_forward_hook(lambda *_: None)
    before = state(module)
    subject = mp.Subject(module, CUBE, batch_size=4)
    for job in (
        lambda: mp.average_sensitivity(subject),
        lambda: mp.sharpness(subject, radius=0.3, budget=2_000),
        lambda: mp.noise_stability(subject, rho=0.5, exact=False, budget=2_000),
    ):
        try:
            job()
        except BaseException:
            assert after is not None
        assert same(before, state(module))


def test_integer_inputs_are_never_cast_and_every_dtype_is_measured() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        subject = mp.Subject(Bits(dtype), mp.BooleanCube(4, encoding="bits"), "sign")
        assert subject(CUBE.exhaustive()).dtype == torch.float64
        assert mp.average_sensitivity(subject).value <= 4


def test_a_copy_runs_in_another_dtype_and_the_module_stays() -> None:
    module = Bits()
    subject = mp.Subject(module, mp.BooleanCube(4, encoding="bits"), dtype="float64")
    assert subject.module.head.weight.dtype == torch.float64
    assert module.head.weight.dtype == torch.float32


def test_the_batch_size_does_not_matter_and_halves_when_memory_runs_out() -> None:
    sizes = []

    def hungry(points: torch.Tensor) -> torch.Tensor:
        sizes.append(len(points))
        if len(points) > 5:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return points[:, 0]

    subject = mp.Subject(hungry, CUBE)
    assert torch.equal(subject(CUBE.exhaustive()), CUBE.exhaustive()[:, 0].double())
    assert max(sizes[-3:]) <= 5
    small, large = (mp.Subject(nn.Linear(4, 1), CUBE, batch_size=size) for size in (1, 1000))
    large._callable = small._callable
    assert torch.allclose(small(CUBE.exhaustive()), large(CUBE.exhaustive()), atol=1e-6)


def test_randomness_in_forward_is_found_and_named() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Sequential(nn.Linear(4, 1))

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            return self.second(nn.functional.dropout(self.first(points), 0.5, training=True))

    with pytest.raises(mp.NondeterministicModelError, match="'second"):
        mp.average_sensitivity(Noisy(), domain=CUBE)
    mp.average_sensitivity(nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.9), nn.Linear(9, 1)).train(), domain=CUBE)


def test_a_forward_that_writes_to_its_parameters_is_refused_and_undone() -> None:
    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.add_(1.0)
            return points @ self.weight

    module = Learner()
    with pytest.raises(mp.ModelpropsError, match="writes to its own parameters \\(weight\\)"):
        mp.average_sensitivity(module, domain=CUBE)
    assert torch.equal(module.weight.detach(), torch.ones(4))


def test_nan_names_the_input() -> None:
    def bad(points: torch.Tensor) -> torch.Tensor:
        return torch.where((points < 0).all(1), torch.nan, points[:, 0])

    with pytest.raises(mp.NonFiniteOutputError, match=r"\[-1, -1, -1, -1\]") as caught:
        mp.average_sensitivity(bad, domain=CUBE)
    assert caught.value.witness.point.tolist() == [-1, -1, -1, -1]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (lambda x: (x[:, 0],), "tuple"),
        (lambda x: {"logits": x[:, :1], "other": x}, "dict"),
        (lambda x: CausalLMOutput(logits=x[:, :1]), "model output"),
    ],
)
def test_outputs_are_unpacked_by_rule(output: object, expected: str) -> None:
    values = mp.Subject(output, CUBE)(CUBE.exhaustive())  # type: ignore[arg-type]
    assert torch.equal(values, CUBE.exhaustive()[:, 0].double()), expected


def test_an_ambiguous_output_names_the_choices() -> None:
    with pytest.raises(mp.OutputError, match=r"'a' \(8, 4\), 'b' \(8,\)"):
        mp.Subject(lambda x: {"a": x, "b": x[:, 0]}, CUBE)(CUBE.exhaustive())
    with pytest.raises(mp.OutputError, match="last-token"):
        mp.Subject(lambda x: x[:, :, None].expand(-1, 4, 7), CUBE)(CUBE.exhaustive())


def test_readouts_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, -1.0]])
    cube = mp.BooleanCube(1)

    def read(readout: object, output: object = scores) -> torch.Tensor:
        return mp.Subject(lambda x: output[: len(x)].repeat(len(x), *[1] * (output.ndim - 1))[: len(x)]  # type: ignore
                          if isinstance(output, torch.Tensor) else output, cube, readout,
                          batch_size=1)(cube.exhaustive()[:1])  # type: ignore[arg-type]  # fmt: skip

    assert read("probability").sum().item() == pytest.approx(1.0)
    assert read("label").tolist() == [pytest.approx([0, 2**0.5, 0])]
    assert read(("logit", 2)).tolist() == [2.0]
    assert read("sign", torch.tensor([0.0])).tolist() == [1.0]
    hidden = BaseModelOutput(last_hidden_state=torch.tensor([[[3.0, 0.0], [3.0, 8.0]]]))
    assert read("embedding", hidden).tolist() == [pytest.approx([0.6, 0.8])]
    logits = torch.tensor([[[9.0, 0.0], [0.0, 0.0]]])
    assert read(("next-token-probability", 1), logits).tolist() == [0.5]
    with pytest.raises(mp.ArgumentError, match="unknown"):
        read("softmax")


def test_a_frozen_token_is_one_function() -> None:
    def decoder(ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(ids, 5).float() * 3

    subject = mp.Subject(decoder, mp.Tokens(5, 3), ("next-token-probability", "frozen"))
    values = subject(torch.tensor([[0, 0, k] for k in range(5)]))
    assert sorted(round(value, 6) for value in values.tolist())[-2] < max(values.tolist())
    assert "frozen" not in subject.readout.name


def test_near_ties_are_counted_apart_not_as_sensitivity() -> None:
    """The sign rests on rounding that depends on the batch: no flip of it counts."""

    def shaky(points: torch.Tensor) -> torch.Tensor:
        return points.prod(1) * (1e-7 if len(points) > 1 else 2e-7)

    found = mp.average_sensitivity(mp.Subject(shaky, CUBE, "sign"))
    assert found.value == 0
    assert found.details["tie_share"] == 1.0


def test_other_inputs_than_the_domains_are_reported_with_shape_and_dtype() -> None:
    with pytest.raises(mp.ArgumentError, match=r"shape \(batch, 4\) and dtype torch\.float32"):
        mp.average_sensitivity(nn.Linear(7, 1), domain=CUBE)


def test_dict_and_tuple_encodings_become_arguments() -> None:
    named = mp.BooleanCube(4, encoding=lambda p: {"left": p[:, 0].float(), "right": p[:, 1].float()})
    assert mp.average_sensitivity(lambda left, right: left * right, domain=named).value == 2
    paired = mp.BooleanCube(4, encoding=lambda p: (p[:, 0].float(), p[:, 1].float()))
    assert mp.average_sensitivity(lambda left, right: left * right, domain=paired).value == 2


def test_a_users_own_domain_works_everywhere() -> None:
    class Dice:
        coordinates = 3

        def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
            return torch.randint(1, 7, (size, 3), generator=generator)

        def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
            changed = points.clone()
            changed[:, coordinate] = torch.randint(1, 7, (len(points),), generator=generator)
            return changed

        def correlated(self, points: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
            return torch.where(
                torch.rand(points.shape, generator=generator) < rho, points, self.sample(len(points), generator)
            )

    # f = the sum of three dice over 18: Var = 3 * 35/12 / 324; every weight at degree 1. Confidence 1 - 1e-7.
    subject = mp.Subject(lambda x: x.double().sum(1) / 18, Dice(), range=(0, 1))
    variance = 3 * 35 / 12 / 324
    options = {"confidence": 1 - 1e-7, "budget": 200_000, "seed": 0}
    found = mp.average_sensitivity(subject, **options)
    assert found.low <= variance <= found.high
    centred = mp.noise_stability(subject, rho=0.5, normalisation="centred", **options)
    assert centred.low <= variance / 2 <= centred.high


def test_wrappers_are_seen_through() -> None:
    module = nn.Linear(4, 1)
    compiled = torch.compile(module, backend="eager")
    assert mp.Subject(compiled, CUBE).module is module
    assert mp.Subject(nn.DataParallel(module), CUBE).module is module


class MinusMean(nn.Module):
    """Normalises by the batch, as batch statistics in forward do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False)
        self.layer.weight = nn.Parameter(torch.tensor([[1.0, 2.0, 4.0, 8.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y - y.mean(0)


@pytest.mark.parametrize("module", [MinusMean(), lambda x: x[:, 0] * len(x)], ids=["mean", "size"])
def test_an_output_that_depends_on_the_batch_is_refused(module: Any) -> None:
    with pytest.raises(mp.NondeterministicModelError, match="alone than in a batch"):
        mp.average_sensitivity(module, domain=CUBE)


def test_an_untrained_constant_and_a_half_precision_module_are_not_taken_for_batch_dependent() -> None:
    torch.manual_seed(0)
    zero = nn.Linear(4, 1)
    nn.init.zeros_(zero.weight)
    for module in (zero, nn.Linear(4, 1, dtype=torch.bfloat16), nn.Linear(4, 1, dtype=torch.float16)):
        mp.average_sensitivity(module, domain=CUBE)


def test_a_forward_that_writes_to_its_input_does_not_change_the_points() -> None:
    subject = mp.Subject(lambda x: x.mul_(2).sum(1), mp.Gaussian(3))
    points = torch.ones(2, 3)
    assert subject(points).tolist() == [6.0, 6.0]
    assert torch.equal(points, torch.ones(2, 3))


def test_a_domain_without_coordinates_is_refused() -> None:
    class Empty:
        coordinates = 0
        sample = resample = correlated = None

    with pytest.raises(mp.ModelpropsError, match="0 coordinates"):
        mp.Subject(lambda x: x, Empty())
