"""Curvature against central differences, dense eigenvalues, closed forms and torch's own (wrong) Hessian."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.properties import hessian_products
from modelprops.properties.hessian_products import Products, self_check
from modelprops.properties.lanczos import Krylov, upper_confidence_bound
from modelprops.properties.perturbation import perturbed_parameters


def squared_error(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return (outputs - points.double().prod(-1)) ** 2


def cross_entropy(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, (points.double().sum(-1) > 0).long(), reduction="none")


def normalised_net(n: int = 4, width: int = 5, outputs: int = 1) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(n, width), torch.nn.LayerNorm(width), torch.nn.Linear(width, outputs)
    ).double()


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def batch_loss(module: torch.nn.Module, theta: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The mean loss as a function of a flat parameter vector, with nothing of the package in it."""
    parameters, start = {}, 0
    for name, weight in module.named_parameters():
        parameters[name] = theta[start : start + weight.numel()].view(weight.shape)
        start += weight.numel()
    outputs = torch.func.functional_call(module, parameters, (points.double(),))
    return squared_error(outputs[:, 0], points).mean()


def central_hessian(module: torch.nn.Module, points: torch.Tensor, h: float = 1e-5) -> torch.Tensor:
    theta = flat(module)

    def gradient(at: torch.Tensor) -> torch.Tensor:
        leaf = at.clone().requires_grad_()
        return torch.autograd.grad(batch_loss(module, leaf, points), leaf)[0]

    rows = [(gradient(theta + h * e) - gradient(theta - h * e)) / (2 * h) for e in torch.eye(len(theta)).double()]
    return torch.stack(rows)


def dense(subject: mp.Subject, loss, points: torch.Tensor, operator: str = "hessian", chunk: int | None = None):
    products = Products(subject, perturbed_parameters(subject, None), loss, points, operator, chunk)
    return torch.stack([products.product(e) for e in torch.eye(products.size, dtype=products.dtype)])


def test_hessian_through_layer_norm_is_right_where_torch_func_is_wrong() -> None:
    module, domain = normalised_net(), mp.BooleanCube(4)
    points, theta = domain.exhaustive(), flat(module)
    expected = central_hessian(module, points)
    ours = dense(mp.Subject(module, domain), squared_error, points)
    assert float((ours - expected).abs().max()) < 1e-6
    assert float((ours - ours.T).abs().max()) < 1e-10

    def loss(at: torch.Tensor) -> torch.Tensor:
        return batch_loss(module, at, points)

    wrong = torch.func.hessian(loss)(theta)
    # Version-bound knowledge: when this fails, torch has mended it and the remark in hessian_products can go.
    if torch.__version__.startswith("2.13.0"):
        assert float((wrong - expected).abs().max()) > 1e-3
        assert float((wrong - wrong.T).abs().max()) > 1e-3


@pytest.mark.parametrize("chunk", [None, 3])
def test_top_eigenvalue_and_trace_are_those_of_the_dense_hessian(chunk: int | None) -> None:
    module, domain = normalised_net(), mp.BooleanCube(4)
    values = torch.linalg.eigvalsh(central_hessian(module, domain.exhaustive())).numpy()
    top = mp.curvature(module, domain=domain, loss=squared_error, chunk=chunk, seed=0)
    assert top.value == pytest.approx(values[-1], rel=1e-3)
    assert top.low <= values[-1] <= top.high
    assert top.guarantee == "residual bound"
    assert top.details["attention_kernel"] == "math"
    trace = mp.curvature(module, domain=domain, loss=squared_error, quantity="trace", chunk=chunk, seed=0, budget=2_000)
    assert trace.value == pytest.approx(values.sum(), abs=6 * trace.details["standard_error"] + 1e-9)
    assert trace.low <= values.sum() <= trace.high


@pytest.mark.parametrize("estimator", ["hutch++", "hutchinson"])
def test_trace_intervals_cover_the_truth(estimator: str) -> None:
    # Asymptotic 99% intervals of which at most 3 of 20 may miss: P(> 3 misses at 1%) = 4e-5, far less
    # for an anytime-valid interval; the seeds are fixed.
    module, domain = normalised_net(), mp.BooleanCube(4)
    truth = float(central_hessian(module, domain.exhaustive()).trace())
    missed, subject = 0, mp.Subject(module, domain)
    for seed in range(20):
        found = mp.curvature(
            subject, loss=squared_error, quantity="trace", estimator=estimator, seed=seed, budget=16 * 40, width=1e-9
        )
        missed += not found.low <= truth <= found.high
        assert found.details["standard_error"] >= 0
    assert missed <= 3


def test_gauss_newton_is_the_jacobian_sandwich() -> None:
    # For the squared error, H_L = 2 and G = 2/m J'J; for the cross-entropy H_L = diag(p) - pp'.
    module, domain = normalised_net(), mp.BooleanCube(4)
    points = domain.exhaustive()
    rows = []
    for point in points:
        gradients = torch.autograd.grad(module(point[None].double()).squeeze(), list(module.parameters()))
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    jacobian = torch.stack(rows)
    ours = dense(mp.Subject(module, domain), squared_error, points, "ggn")
    assert torch.allclose(ours, 2 * jacobian.T @ jacobian / len(points), atol=1e-10)
    top = mp.curvature(module, domain=domain, loss=squared_error, operator="ggn", seed=0)
    expected = 2 * torch.linalg.matrix_norm(jacobian, 2) ** 2 / len(points)
    assert top.value == pytest.approx(float(expected), rel=1e-3)

    classifier = normalised_net(outputs=3)
    total = torch.zeros(flat(classifier).numel(), flat(classifier).numel(), dtype=torch.float64)
    for point in points:
        outputs = classifier(point[None].double())[0]
        jacobian = torch.stack(
            [
                torch.cat(
                    [g.flatten() for g in torch.autograd.grad(o, list(classifier.parameters()), retain_graph=True)]
                )
                for o in outputs
            ]
        )
        p = outputs.detach().softmax(0)
        total += jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian / len(points)
    ours = dense(mp.Subject(classifier, domain), cross_entropy, points, "ggn", chunk=5)
    assert torch.allclose(ours, total, atol=1e-10)


def test_density_integrates_to_one_and_has_the_mean_of_the_eigenvalues() -> None:
    module, domain = normalised_net(), mp.BooleanCube(4)
    values = torch.linalg.eigvalsh(central_hessian(module, domain.exhaustive())).numpy()
    found = mp.curvature(module, domain=domain, loss=squared_error, quantity="density", seed=0)
    grid = np.array(found.details["grid"])
    step = grid[1] - grid[0]
    assert found.value.sum() * step == pytest.approx(1.0, abs=0.01)
    # 8 probes: the mean of the density is the trace / p up to their scatter, known from |H|_F.
    scatter = math.sqrt(2 * float((values**2).sum()) / 8) / len(values)
    assert float((found.value * grid).sum() * step) == pytest.approx(values.mean(), abs=5 * scatter)
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()


class Encoder(torch.nn.Module):
    """A fused-path candidate: eval mode would take torch's fast path, which has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(2, 8)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.encoder(self.embedding(bits))[:, -1]))


def test_module_is_left_as_found_and_a_second_call_is_identical() -> None:
    module, domain = Encoder(), mp.BooleanCube(5, encoding="bits")
    module.train()
    module.head.weight.requires_grad_(False)
    next(module.parameters()).grad = marker = torch.ones(2, 8)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = mp.curvature(module, domain=domain, loss=squared_error, seed=3)
    second = mp.curvature(module, domain=domain, loss=squared_error, seed=3)
    assert (first.value, first.low, first.high) == (second.value, second.low, second.high)
    assert module.training
    assert module.encoder.training
    assert not module.head.weight.requires_grad
    assert next(module.parameters()).grad is marker
    assert torch.equal(marker, torch.ones(2, 8))
    assert all(weight.grad is None for weight in list(module.parameters())[1:])
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.backends.mha.get_fastpath_enabled()


def test_frozen_parameters_count_and_exclusion_restricts() -> None:
    module, domain = normalised_net(), mp.BooleanCube(4)
    free = mp.curvature(module, domain=domain, loss=squared_error, seed=0)
    for weight in module.parameters():
        weight.requires_grad_(False)
    assert mp.curvature(module, domain=domain, loss=squared_error, seed=0).value == free.value
    head = mp.curvature(module, domain=domain, loss=squared_error, exclude=r"^(?!2\.)", seed=0)
    hidden = module[:2](domain.exhaustive().double()).detach()
    features = torch.cat([hidden, torch.ones(16, 1)], 1)  # the last layer sees least squares: H = 2/m X'X
    expected = 2 * torch.linalg.matrix_norm(features, 2) ** 2 / 16
    assert head.details["parameters"] == 6
    assert head.value == pytest.approx(float(expected), rel=1e-3)


class Tied(torch.nn.Module):
    """T(x) = w'x + (w'x)^2 with one weight under two names: the chain rule must add both uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 1, bias=False).double()
        self.second = torch.nn.Linear(2, 1, bias=False).double()
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) * self.second(x)


def test_tied_weights_count_once() -> None:
    # loss = T = (w'x)^2, so H = 2 E xx' = 2 I on the cube.
    found = mp.curvature(Tied(), domain=mp.BooleanCube(2), loss=lambda outputs, points: outputs, seed=0)
    assert found.details["parameters"] == 2
    assert found.value == pytest.approx(2.0, rel=1e-9)


def test_half_precision_weights_are_computed_with_in_single() -> None:
    module, domain = normalised_net().to(torch.bfloat16), mp.BooleanCube(4)
    found = mp.curvature(module, domain=domain, loss=squared_error, seed=0)
    stored = torch.nn.Sequential(*module).to(torch.bfloat16)
    values = torch.linalg.eigvalsh(central_hessian(stored.double(), domain.exhaustive()))
    assert found.details["dtype"] == "float32"
    assert found.value == pytest.approx(float(values[-1]), rel=1e-3)


class ForgetsCurvature(torch.autograd.Function):
    """x^2 whose backward is right once and constant the second time, as on devices without double backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return (2 * ctx.saved_tensors[0] * g).detach()


class Skewed(torch.autograd.Function):
    """x^2 whose second derivative is three times too large."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * (3 * x - 2 * x.detach()) * g


@pytest.mark.parametrize("square", [ForgetsCurvature, Skewed])
@pytest.mark.parametrize("quantity", ["top", "trace", "density"])
def test_wrong_second_derivative_is_an_error_and_never_a_number(square, quantity: str) -> None:
    class Wrong(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([0.5, -0.3]).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (square.apply(self.w) * x).sum(-1)

    with pytest.raises(mp.CurvatureError, match="self-check"):
        mp.curvature(
            Wrong(), domain=mp.BooleanCube(2), loss=lambda outputs, points: outputs * points[:, 0], quantity=quantity
        )


def test_zero_curvature_is_believed_where_the_difference_agrees() -> None:
    module = torch.nn.Linear(3, 1).double()
    found = mp.curvature(module, domain=mp.BooleanCube(3), loss=lambda outputs, points: outputs, seed=0)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_identity_like_operator_converges_at_once() -> None:
    # loss = |w|^2/2 whatever the input: H = I.
    class Length(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(50).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.w**2).sum().expand(len(x)) / 2

    found = mp.curvature(Length(), domain=mp.BooleanCube(3), loss=lambda outputs, points: outputs, seed=0)
    assert found.value == pytest.approx(1.0, abs=1e-9)
    trace = mp.curvature(
        Length(), domain=mp.BooleanCube(3), loss=lambda outputs, points: outputs, quantity="trace", seed=0
    )
    assert trace.value == pytest.approx(50.0, rel=0.05)


def test_claims_pass_fail_and_stay_open() -> None:
    module, domain = normalised_net(n=6, width=16), mp.BooleanCube(6)
    values = torch.linalg.eigvalsh(central_hessian(module, domain.exhaustive())).numpy()
    top = float(values[-1])
    subject = mp.Subject(module, domain)
    verdict = mp.assert_bounded_curvature(subject, 2 * top, loss=squared_error, seed=0)
    assert verdict.outcome == "pass"
    assert verdict.estimate.high >= top
    with pytest.raises(mp.PropertyViolation) as caught:
        mp.assert_bounded_curvature(subject, top / 2, loss=squared_error, seed=0)
    assert top / 2 < caught.value.verdict.estimate.low <= top
    with pytest.raises(mp.Inconclusive):
        mp.assert_bounded_curvature(subject, 2 * top, loss=squared_error, seed=0, budget=64 * 6, inputs=64)


def test_upper_confidence_bound_holds_over_random_starts() -> None:
    # 200 starts at level .05 on a spectrum with a close pair on top, few steps: exact binomial P(> 25 misses) < 1e-5.
    values = np.concatenate([np.linspace(-1, 0.9, 300), [0.99, 1.0]])
    diagonal = torch.tensor(values)
    missed = 0
    for seed in range(200):
        start = torch.randn(len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        krylov = Krylov(lambda v: diagonal * v, start, 20, 1e-8)
        while not krylov.full:
            krylov.step()
        ritz = krylov.ritz()
        assert ritz.top <= 1.0 + 1e-12
        assert np.abs(values - ritz.top).min() <= ritz.residual + 1e-12
        missed += upper_confidence_bound(ritz, krylov.steps, len(values), 0.05) < 1.0
    assert missed <= 35


def test_asymmetric_products_are_refused_on_the_way() -> None:
    matrix = torch.randn(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    krylov = Krylov(lambda v: matrix @ v, torch.ones(20).double(), 20, 1e-8)
    krylov.step()
    with pytest.raises(mp.CurvatureError, match="not symmetric"):
        krylov.step()


def test_step_readout_and_other_mistakes_are_named() -> None:
    module, domain = normalised_net(), mp.BooleanCube(4)
    with pytest.raises(mp.ArgumentError, match="no gradient"):
        mp.curvature(mp.Subject(module, domain, "sign"), loss=squared_error)
    with pytest.raises(mp.ArgumentError, match="quantity"):
        mp.curvature(module, domain=domain, loss=squared_error, quantity="rank")
    with pytest.raises(mp.OutputError, match="loss returned"):
        mp.curvature(module, domain=domain, loss=lambda outputs, points: outputs[:, None])
    with pytest.raises(mp.NoParametersError):
        mp.curvature(lambda x: x.sum(-1), domain=domain, loss=squared_error)
    with pytest.raises(mp.ArgumentError, match="budget"):
        mp.curvature(module, domain=domain, loss=squared_error, budget=20)
    with pytest.raises(mp.ArgumentError, match="threshold"):
        mp.claim(mp.curvature, "<=", 1.0, loss=squared_error, quantity="density").check(module, domain=domain)


@pytest.mark.parametrize("architecture", ["bert", "llama", "gpt2"])
def test_hugging_face_models_work_with_fused_attention_configured(architecture: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shared = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    if architecture == "bert":
        config = transformers.BertConfig(**shared, intermediate_size=8, max_position_embeddings=8, num_labels=2)
        module, readout = transformers.BertForSequenceClassification(config), None
    elif architecture == "llama":
        config = transformers.LlamaConfig(**shared, intermediate_size=8, tie_word_embeddings=True)
        module, readout = transformers.LlamaForCausalLM(config), "last-token"
    else:
        config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8)
        module, readout = transformers.GPT2LMHeadModel(config), "last-token"
    subject = mp.Subject(module, mp.Tokens(20, 4), readout)

    def loss(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, points[:, 0] % outputs.shape[1], reduction="none")

    found = mp.curvature(subject, loss=loss, inputs=16, seed=0)
    assert found.details["difference_error"] < 2e-2
    assert found.details["parameters"] == sum(weight.numel() for weight in module.parameters())
    ggn = mp.curvature(subject, loss=loss, operator="ggn", inputs=16, seed=0)
    assert ggn.value > 0


class Vocabulary(torch.nn.Module):
    """A 50,000-word head on a narrow model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50_000, 4)
        self.head = torch.nn.Linear(4, 50_000, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(ids).mean(1)))


def test_large_vocabulary_is_cut_into_chunks_that_hold_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 30_000_000
    monkeypatch.setattr(hessian_products, "GRAPH_BYTES", limit)
    subject = mp.Subject(Vocabulary(), mp.Tokens(50_000, 4))

    def loss(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, points[:, 0], reduction="none")

    points = subject.domain.sample(48, torch.Generator().manual_seed(0))
    products = Products(subject, perturbed_parameters(subject, None), loss, points)
    assert products.chunk is not None
    assert 1 <= products.chunk < 48
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        hessian_products.twice_differentiable(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        graph = products._linearise(points[: products.chunk], points[: products.chunk])
    own = {weight.data_ptr() for weight in subject.module.parameters()}
    assert sum(size for pointer, size in held.items() if pointer not in own) <= 1.2 * limit
    del graph
    vector = torch.randn(products.size, generator=torch.Generator().manual_seed(1))
    assert products._kept is None
    chunked = products.product(vector)
    assert products._kept is None
    whole = Products(subject, perturbed_parameters(subject, None), loss, points, chunk=48)
    assert torch.allclose(chunked, whole.product(vector), rtol=1e-3, atol=1e-6)
    assert whole._kept is not None


def test_padding_row_of_an_embedding_is_held_fixed() -> None:
    # T = sum of the embeddings, loss T^2 / 2 on {0, 1}^2: H = E cc' over the counts c, and row 0 is padding.
    module = torch.nn.Sequential(torch.nn.Embedding(2, 1, padding_idx=0), torch.nn.Flatten(), torch.nn.Linear(2, 1))
    module = module.double()
    torch.nn.init.ones_(module[2].weight)
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[0.7], [0.2]]))
    found = mp.curvature(
        module,
        domain=mp.BooleanCube(2, encoding="bits"),
        loss=lambda outputs, points: outputs**2 / 2,
        exclude="2",
        seed=0,
    )
    assert found.value == pytest.approx((1 + 1 + 4) / 4, rel=1e-9)  # E c_1^2


def test_self_check_reports_its_errors() -> None:
    subject = mp.Subject(normalised_net(), mp.BooleanCube(4))
    points = subject.domain.exhaustive()
    products = Products(subject, perturbed_parameters(subject, None), squared_error, points)
    generator = torch.Generator().manual_seed(0)
    vectors = tuple(torch.randn(products.size, generator=generator, dtype=torch.float64) for _ in range(2))
    found = self_check(products, vectors)
    assert found["symmetry_error"] < 1
    assert found["difference_error"] < 1e-5
