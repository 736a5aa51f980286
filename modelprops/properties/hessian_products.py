"""Products of the Hessian, or the generalised Gauss-Newton matrix, of a batch loss with vectors, by double backward.

Reverse mode twice, in a plain loop, because it is right: `torch.func.hessian` and `jvp(jacrev)` return a wrong,
asymmetric Hessian through LayerNorm in torch 2.13.0. The graph of the first backward pass is kept and used for every
product where the whole batch fits `GRAPH_BYTES`; otherwise chunks of inputs are differentiated anew each time and no
graph outlives a product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, CurvatureError, OutputError
from modelprops.properties.perturbation import Loss, shaped
from modelprops.subject import Subject

OPERATORS = ("hessian", "ggn")
ATTENTION_KERNEL = "math"
GRAPH_BYTES = 2**30
"""Graphs of at most about this size are kept between products; larger batches are cut into chunks of this size."""

_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Differentiate, with kernels that allow it twice: MATH attention, unfused encoder layers, no cuDNN (its RNN)."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def in_single_precision(subject: Subject) -> Subject:
    """Return a subject whose half-precision weights are float32 (a copy), or the subject itself.

    Second derivatives of arithmetic in half precision are noise: the weights are taken as stored, the arithmetic not.
    """
    if all(weight.dtype not in _HALF for weight in subject.module.parameters()):
        return subject
    return subject.cast(torch.float32)


def in_double_precision(subject: Subject) -> Subject | None:
    """Return a float64 copy of a subject, or None where its forward pass cannot run in float64."""
    try:
        copy = subject.cast(torch.float64)
        copy.differentiable(subject.domain.sample(1, generator_of(0)), {})
    except (RuntimeError, TypeError, ValueError):
        return None
    return copy


@dataclass
class Products:
    """v -> Hv or v -> J^T H_L J v of (1/m) sum of loss(output, points) over m points, as flat vectors.

    `parameters` are the weights differentiated by, each distinct tensor once; vectors are flat (p,), float32 or
    float64, on the first parameter's device. The loss is given `targets` in place of the points, if there are any.
    `spent` counts the inputs passed through the model, forwards, and again for every product. Raises `ArgumentError`
    for a loss or readout without a gradient.
    """

    subject: Subject
    parameters: Mapping[str, torch.nn.Parameter]
    loss: Loss
    points: torch.Tensor
    operator: str = "hessian"
    chunk: int | None = None
    targets: torch.Tensor | None = None
    spent: int = 0
    _kept: _Linearised | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.chunk is None:
            self.chunk = self._fitting_chunk()

    @property
    def size(self) -> int:
        """p, the number of entries of the parameters."""
        return sum(weight.numel() for weight in self.parameters.values())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the vectors."""
        doubles = any(weight.dtype == torch.float64 for weight in self.parameters.values())
        return torch.float64 if doubles else torch.float32

    @property
    def device(self) -> torch.device:
        """The device of the vectors."""
        return next(iter(self.parameters.values())).device

    def product(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the operator applied to a flat vector; non-finite entries are an error."""
        parts = {name: part.to(self.parameters[name].dtype) for name, part in shaped(vector, self.parameters).items()}
        total = torch.zeros(self.size, dtype=self.dtype, device=self.device)
        with twice_differentiable():
            for linearised in self._linearisations():
                total += self._joined(linearised.product(parts))
        self.spent += len(self.points)
        if not bool(torch.isfinite(total).all()):
            raise CurvatureError(
                f"a {self.operator} product of {self.subject.name} holds NaN or infinity, so its curvature is not "
                "defined here; look for a square root or logarithm of 0 in the model or the loss"
            )
        return total

    def gradient(self, offset: torch.Tensor | None = None) -> torch.Tensor:
        """Return the gradient of the batch loss, at the parameters moved by a flat `offset`."""
        return self.value_and_gradient(offset)[1]

    def value_and_gradient(self, offset: torch.Tensor | None = None) -> tuple[float, torch.Tensor]:
        """Return the batch loss and its gradient, at the parameters moved by a flat `offset`."""
        loss = 0.0
        total = torch.zeros(self.size, dtype=self.dtype, device=self.device)
        with twice_differentiable():
            for part, target in self._parts():
                leaves = self._leaves(offset)
                value = self._batch_loss(self.subject.differentiable(part, leaves), target)
                loss += float(value.detach())
                total += self._joined(_gradients(value, [leaves[name] for name in self.parameters]))
        self.spent += len(self.points)
        return loss, total

    def outputs(self, offset: torch.Tensor | None = None) -> torch.Tensor:
        """Return the subject's outputs at the parameters moved by a flat `offset`, without a graph."""
        self.spent += len(self.points)
        with twice_differentiable():
            leaves = self._leaves(offset)
            return torch.cat([self.subject.differentiable(part, leaves).detach() for part, _ in self._parts()])

    def loss_gradient(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the batch loss by the outputs themselves."""
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            return _gradients(self._batch_loss(leaf, self._targets), [leaf])[0]

    def _linearisations(self) -> Iterator[_Linearised]:
        if self._kept is not None:
            yield self._kept
            return
        for part, target in self._parts():
            linearised = self._linearise(part, target)
            if len(part) == len(self.points):
                self._kept = linearised
            yield linearised

    def _linearise(self, part: torch.Tensor, target: torch.Tensor) -> _Linearised:
        leaves = self._leaves(None)
        chosen = [leaves[name] for name in self.parameters]
        outputs = self.subject.differentiable(part, leaves)
        self.spent += len(part)
        if self.operator == "hessian":
            value = self._batch_loss(outputs, target)
            return _Linearised(chosen, _gradients(value, chosen, create_graph=True))
        _require_graph(outputs, self.subject)
        cotangent = torch.zeros_like(outputs, requires_grad=True)
        transposed = torch.autograd.grad(
            outputs, chosen, cotangent, create_graph=True, allow_unused=True, materialize_grads=True
        )
        at = outputs.detach().requires_grad_()
        by_output = _gradients(self._batch_loss(at, target), [at], create_graph=True)
        return _Linearised(chosen, transposed, outputs, cotangent, at, by_output[0])

    def _batch_loss(self, outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        """The chunk's share of the mean over the batch."""
        value = self.loss(outputs, points)
        if not isinstance(value, torch.Tensor) or value.shape not in ((), (len(points),)):
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise OutputError(f"loss returned {found}; return one value an input ({len(points)},) or their mean")
        _require_graph(value, self.subject)
        return value.sum() / len(self.points) if value.ndim else value * (len(points) / len(self.points))

    @property
    def _targets(self) -> torch.Tensor:
        return self.points if self.targets is None else self.targets

    def _leaves(self, offset: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Detached stand-ins for all parameters; only the chosen ones require a gradient, whatever the model says."""
        moved = None if offset is None else shaped(offset, self.parameters)
        leaves = {}
        for name, weight in self.subject.module.named_parameters():
            leaf = weight.detach()
            if name in self.parameters:
                if moved is not None:
                    leaf = (leaf + moved[name]).to(weight.dtype)
                leaf = leaf.requires_grad_()
            leaves[name] = leaf
        return leaves

    def _joined(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.cat([tensor.detach().flatten().to(self.device, self.dtype) for tensor in tensors])

    def _parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        assert self.chunk is not None
        size = min(self.chunk, len(self.points))
        return zip(torch.split(self.points, size), torch.split(self._targets, size), strict=True)

    def _fitting_chunk(self) -> int:
        """As many inputs as have a graph of at most `GRAPH_BYTES`, judged by the graphs of one and of two inputs."""
        count = len(self.points)
        single = self._graph_bytes(1)
        if single * count <= GRAPH_BYTES:
            return count
        each = max(1, self._graph_bytes(2) - single)
        return max(1, min(count, (GRAPH_BYTES - (single - each)) // each))

    def _graph_bytes(self, inputs: int) -> int:
        seen: dict[int, int] = {weight.data_ptr(): 0 for weight in self.subject.module.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            seen.setdefault(storage.data_ptr(), storage.nbytes())
            return tensor

        with twice_differentiable(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            graph = self._linearise(self.points[:inputs], self._targets[:inputs])
        del graph
        return sum(seen.values())


@dataclass(frozen=True)
class _Linearised:
    """The kept graph of one chunk: the gradient (Hessian), or J^T u and the loss's own gradient (GGN)."""

    leaves: list[torch.Tensor]
    gradient: tuple[torch.Tensor, ...]
    outputs: torch.Tensor | None = None
    cotangent: torch.Tensor | None = None
    at: torch.Tensor | None = None
    by_output: torch.Tensor | None = None

    def product(self, vector: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        parts = list(vector.values())
        if self.outputs is None:
            return _backward(self.gradient, self.leaves, parts)
        assert self.cotangent is not None
        assert self.at is not None
        assert self.by_output is not None
        # J^T u is linear in u, so its derivative along v with respect to u is J v.
        pushed = _backward(self.gradient, [self.cotangent], parts)[0]
        curved = _backward((self.by_output,), [self.at], [pushed])[0]
        return torch.autograd.grad(
            self.outputs, self.leaves, curved, retain_graph=True, allow_unused=True, materialize_grads=True
        )


def _backward(
    outputs: tuple[torch.Tensor, ...], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Backward of the outputs that have a graph; the others are constant and contribute nothing."""
    pairs = [(output, cotangent) for output, cotangent in zip(outputs, cotangents, strict=True) if output.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(tensor) for tensor in inputs)
    live, weights = zip(*pairs, strict=True)
    return torch.autograd.grad(live, inputs, weights, retain_graph=True, allow_unused=True, materialize_grads=True)


def _gradients(
    value: torch.Tensor, inputs: list[torch.Tensor], *, create_graph: bool = False
) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(value, inputs, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def _require_graph(value: torch.Tensor, subject: Subject) -> None:
    if not value.requires_grad:
        raise ArgumentError(
            f"the loss of {subject.name} has no gradient (readout {subject.readout.name!r}); use a differentiable "
            'readout such as None or "probability", and a loss made of torch operations on its first argument'
        )


def self_check(
    products: Products, seed_vectors: tuple[torch.Tensor, torch.Tensor], inputs: int = 8
) -> dict[str, float]:
    """Compare products on a few inputs with their mirror image and with one central difference; return the errors.

    Symmetry: u'Hv = v'Hu. Difference: Hv against (g(theta + hv) - g(theta - hv)) / 2h (Gauss-Newton: v'Gv against
    differences of the outputs and of the loss's gradient), in float64 where the model runs in it. A product of zeros
    is believed only if the difference is zero as well. Raises `CurvatureError` when either fails.
    """
    part = Products(
        products.subject,
        products.parameters,
        products.loss,
        products.points[:inputs],
        products.operator,
        min(inputs, products.chunk or inputs),
        None if products.targets is None else products.targets[:inputs],
    )
    moving = _moving_entries(part)
    u, v = (vector * moving / (vector * moving).norm().clamp_min(1e-30) for vector in seed_vectors)
    hu, hv = part.product(u), part.product(v)
    symmetry = _asymmetry(u, v, hu, hv)
    difference = _difference_error(_reference(part), part, v, hv)
    products.spent += part.spent
    allowed = 1e-5 if part.dtype == torch.float64 else 2e-2
    if symmetry > 1 or not difference <= allowed:
        raise CurvatureError(
            f"the {part.operator} product of {part.subject.name} failed its self-check: u'Hv and v'Hu differ by "
            f"{symmetry:.3g} of the allowed rounding, and the central difference differs by {difference:.3g} (allowed "
            f"{allowed:.0e}). An operation of the model or the loss has a wrong, or no, second derivative; find it by "
            "excluding layers with exclude="
        )
    return {"symmetry_error": symmetry, "difference_error": difference}


def _moving_entries(products: Products) -> torch.Tensor:
    """1 for entries with a gradient, 0 for the padding row of an embedding, which torch holds fixed by definition."""
    mask = torch.ones(products.size, dtype=products.dtype, device=products.device)
    entries = shaped(mask, products.parameters)
    fixed = {
        id(submodule.weight): submodule.padding_idx
        for submodule in products.subject.module.modules()
        if isinstance(submodule, torch.nn.Embedding) and submodule.padding_idx is not None
    }
    for name, weight in products.parameters.items():
        if id(weight) in fixed:
            entries[name][fixed[id(weight)]] = 0.0
    return torch.cat([entry.flatten().to(products.device) for entry in entries.values()])


def _asymmetry(u: torch.Tensor, v: torch.Tensor, hu: torch.Tensor, hv: torch.Tensor) -> float:
    """|u'Hv - v'Hu| in units of what rounding allows."""
    gap = abs(float(u.double() @ hv.double()) - float(v.double() @ hu.double()))
    scale = float(hu.norm() + hv.norm())
    exact = u.dtype == torch.float64
    allowed = (1e-8 if exact else 1e-3) / math.sqrt(len(u)) + 10 * torch.finfo(u.dtype).eps
    return gap / (allowed * scale) if scale else 0.0


def _reference(part: Products) -> Products:
    """The same products in float64, on a copy, or as they are where the model refuses float64."""
    copy = in_double_precision(part.subject)
    if copy is None:
        return part
    own = dict(copy.module.named_parameters())
    parameters = {name: own[name] for name in part.parameters}
    return Products(copy, parameters, part.loss, part.points, part.operator, part.chunk, part.targets)


def _difference_error(reference: Products, part: Products, v: torch.Tensor, hv: torch.Tensor) -> float:
    """Least relative error over a few step sizes: kinks want small steps, rounding wants large ones."""
    direction = v.to(reference.dtype)
    length = math.sqrt(sum(float(weight.detach().double().square().sum()) for weight in part.parameters.values()))
    length = length or 1.0
    is_hessian = part.operator == "hessian"
    product = hv.double() if is_hessian else (v.double() @ hv.double())[None]
    difference = _hessian_difference if is_hessian else _ggn_difference
    if not bool(product.any()):
        # A device without second derivatives returns zeros: believed only if a step of 1% changes nothing either.
        expected, noise = difference(reference, direction, 1e-2 * length)
        return 0.0 if float(expected.norm()) <= noise else math.inf
    least = math.inf
    for relative in (1e-6, 1e-4, 1e-3, 1e-2):
        expected, _ = difference(reference, direction, relative * length)
        scale = max(float(product.norm()), float(expected.norm()))
        least = min(least, float((product - expected).norm()) / scale)
        if least <= 1e-6 or (part.dtype != torch.float64 and least <= 1e-3):
            break
    return least


def _hessian_difference(reference: Products, v: torch.Tensor, h: float) -> tuple[torch.Tensor, float]:
    above, below = reference.gradient(h * v), reference.gradient(-h * v)
    noise = 100 * torch.finfo(torch.float32).eps * float(above.norm()) / h
    return (above - below).double() / (2 * h), noise


def _ggn_difference(reference: Products, v: torch.Tensor, h: float) -> tuple[torch.Tensor, float]:
    above, below = reference.outputs(h * v), reference.outputs(-h * v)
    pushed = (above - below) / (2 * h)
    middle = (above + below) / 2
    step = 1e-5 * float(middle.norm() + 1) / max(float(pushed.norm()), 1e-30)
    curved = (reference.loss_gradient(middle + step * pushed) - reference.loss_gradient(middle - step * pushed)) / (
        2 * step
    )
    noise = 100 * torch.finfo(torch.float32).eps * float(above.norm()) ** 2 / h**2
    return (pushed * curved).sum().double()[None], noise
