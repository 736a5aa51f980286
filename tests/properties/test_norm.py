"""Parameter norms by hand."""

from __future__ import annotations

import pytest
import torch

import modelprops as mp
from modelprops.properties.norm import group_of


def model() -> torch.nn.Module:
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    module.head = torch.nn.Linear(1, 1, bias=False)
    module.scale = torch.nn.Parameter(torch.tensor([12.0]))
    with torch.no_grad():
        for weight, value in zip(module.parameters(), [12.0, 3.0, 4.0, 0.0, 84.0, 0.0], strict=True):
            weight.fill_(value)
    module.register_buffer("counter", torch.ones(1))
    return module


def test_norm_is_euclidean_and_groups_add_up_in_squares() -> None:
    # scale 12, block 0 (3, 4) -> 5, block 1 (0, 84) -> 84: sqrt(144 + 25 + 7056) = 85.
    found = mp.parameter_norm(model(), domain=mp.BooleanCube(1))
    assert found.value == pytest.approx(85.0, rel=1e-12)
    assert found.details["groups"] == {"scale": 12.0, "layers.0": 5.0, "layers.1": 84.0, "head": 0.0}
    assert (found.method, found.guarantee, found.evaluations) == ("exact", "exact", 0)


def test_exclusion_and_half_precision() -> None:
    module = model().to(torch.float16)
    found = mp.parameter_norm(module, domain=mp.BooleanCube(1), exclude=r"layers\.1")
    assert found.value == pytest.approx(13.0, rel=1e-12)


def test_tied_weights_count_once() -> None:
    module = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)])
    module[1].weight = module[0].weight
    torch.nn.init.ones_(module[0].weight)
    assert mp.parameter_norm(module, domain=mp.BooleanCube(2)).value == pytest.approx(2.0)


def test_claim_text_and_callables() -> None:
    assert mp.claim("parameter_norm <= 85").check(model(), domain=mp.BooleanCube(1)).outcome == "pass"
    assert mp.claim("parameter_norm <= 84").check(model(), domain=mp.BooleanCube(1)).outcome == "fail"
    with pytest.raises(mp.NoParametersError):
        mp.parameter_norm(lambda x: x, domain=mp.BooleanCube(1))


def test_groups_are_named_by_block_owner_or_self() -> None:
    names = ["model.layers.3.mlp.up.weight", "lm_head.weight", "scale", "weights.0"]
    assert [group_of(name) for name in names] == ["model.layers.3", "lm_head", "scale", "weights"]
