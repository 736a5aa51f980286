"""The analysed Transformer against a loop written from the definitions of spec A.3, and the encoder's fixed counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modelprops.errors import ArgumentError
from modelprops.theory.transformer import AnalysedTransformer, EncoderTransformer, blowup, layer_norm


def every_input(n: int) -> torch.Tensor:
    return torch.tensor([[index >> place & 1 for place in range(n)] for index in range(2**n)])


def by_definition(model: AnalysedTransformer, bits: list[int]) -> tuple[float, float]:
    """T(x) and Blowup(x), one position and one head at a time, in numpy."""
    weights = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
    positions = weights["positional_encoding"]
    y = [weights["token_embedding.weight"][bit] + positions[i] for i, bit in enumerate(bits)]
    product = 1.0
    for k in range(len(model.layers)):
        layer = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"layers.{k}.")}
        result, factors = [], []
        for target in y:
            z = target.copy()
            for h in range(len(layer["key"])):
                logits = np.array([(layer["key"][h] @ source) @ (layer["query"][h] @ target) for source in y])
                shares = np.exp(logits - logits.max())
                shares /= shares.sum()
                z += sum(share * (layer["value"][h] @ source) for share, source in zip(shares, y, strict=True))
            hidden = np.maximum(layer["mlp_in.weight"] @ z + layer["mlp_in.bias"], 0)
            full = z + layer["mlp_out.weight"] @ hidden + layer["mlp_out.bias"]
            factors.append(1 / np.sqrt(np.mean((full - full.mean()) ** 2) + model.eps))
            result.append((full - full.mean()) * factors[-1])
        y, product = result, product * max(1 + factor for factor in factors)
    return float(weights["v_out"] @ y[-1]), product


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_output_and_blowup_follow_the_definition(eps: float) -> None:
    torch.manual_seed(3)
    model = AnalysedTransformer(4, d=6, layers=2, heads=2, mlp_width=5, head_width=3, eps=eps).double()
    inputs = every_input(4)
    trace = model.trace(inputs)
    expected = [by_definition(model, row) for row in inputs.tolist()]
    assert trace.output.tolist() == pytest.approx([output for output, _ in expected], abs=1e-10)
    assert trace.blowup.tolist() == pytest.approx([product for _, product in expected], rel=1e-10)
    assert torch.equal(model(inputs), trace.output)
    assert trace.n_factors.shape == (2, 16, 4)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_layer_norm_factors_and_blowup_respect_their_caps(eps: float) -> None:
    y = torch.cat([torch.randn(50, 8, generator=torch.Generator().manual_seed(1)), torch.zeros(1, 8)]).double()
    normalised, factor = layer_norm(y, eps)
    assert factor.max().item() == pytest.approx(eps**-0.5)
    assert normalised.norm(dim=1).max().item() < 8**0.5
    tau, product = blowup(factor.reshape(3, 1, 17))
    assert 1 <= product.item() <= (1 + eps**-0.5) ** 3 * (1 + 1e-12)
    assert tau.shape == (3, 1)


def test_layer_norm_agrees_with_torch_and_has_norm_root_d_without_epsilon() -> None:
    y = torch.randn(20, 7, generator=torch.Generator().manual_seed(2)).double()
    torch.testing.assert_close(layer_norm(y, 1e-3)[0], torch.nn.functional.layer_norm(y, (7,), eps=1e-3))
    assert layer_norm(y, 0.0)[0].norm(dim=1).tolist() == pytest.approx([7**0.5] * 20)


def test_gain_and_bias_are_off_by_default_and_neutral_when_fresh() -> None:
    torch.manual_seed(5)
    plain = AnalysedTransformer(5, d=4)
    affine = AnalysedTransformer(5, d=4, affine=True)
    assert not {"gain", "bias"} & {name for name, _ in plain.named_parameters()}
    assert affine.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["gain", "bias"]
    torch.testing.assert_close(affine(every_input(5)), plain(every_input(5)))


def test_query_key_norms_are_largest_singular_values() -> None:
    torch.manual_seed(6)
    model = AnalysedTransformer(3, d=5, layers=3, heads=2, head_width=2)
    layer = model.layers[1]
    product = (layer.key[1].T @ layer.query[1]).detach().numpy()
    assert model.query_key_norms().shape == (3, 2)
    assert model.query_key_norms()[1, 1].item() == pytest.approx(np.linalg.svd(product)[1][0], rel=1e-5)


@pytest.mark.parametrize(("width", "count"), [(128, 199_425), (64, 50_561), (32, 12_993), (4, 281)])
def test_encoder_has_the_experiments_number_of_parameters(width: int, count: int) -> None:
    model = EncoderTransformer(9, d_model=width)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(size for name, size in sizes.items() if "positional_encoding" not in name) == count
    assert sum(size for name, size in sizes.items() if "positional_encoding" in name) == 9 * width // 2


def test_encoder_matches_its_layers_applied_by_torch() -> None:
    torch.manual_seed(7)
    model = EncoderTransformer(6, d_model=8).double().train()
    bits = every_input(6)
    halves = [model.token_embedding(bits), model.positional_encoding(torch.arange(6)).expand(64, 6, 4)]
    y = torch.cat(halves, dim=2)
    for layer in model.encoder.layers:
        y = layer.norm1(y + layer.self_attn(y, y, y)[0])
        y = layer.norm2(y + layer.linear2(torch.relu(layer.linear1(y))))
    expected = (y[:, 5] @ model.head.weight.T + model.head.bias).squeeze(1)
    torch.testing.assert_close(model(bits), expected)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(bits), expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: AnalysedTransformer(0),
        lambda: AnalysedTransformer(4, eps=-1e-5),
        lambda: AnalysedTransformer(4, heads=0),
        lambda: EncoderTransformer(4, d_model=5),
        lambda: EncoderTransformer(4, d_model=8, heads=3),
        lambda: AnalysedTransformer(4, d=4)(torch.ones(2, 4)),
        lambda: AnalysedTransformer(4, d=4)(torch.ones(2, 5, dtype=torch.int64)),
        lambda: EncoderTransformer(4, d_model=4)(torch.ones(4, dtype=torch.int64)),
    ],
)
def test_impossible_sizes_and_inputs_are_refused(build: object) -> None:
    with pytest.raises(ArgumentError, match=r"Pass|Add a batch dimension"):
        build()  # type: ignore[operator]  # parametrised callables
