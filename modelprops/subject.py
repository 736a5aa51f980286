"""A subject: a model seen as one function on one domain.

Calling it on domain points gives float64 values. The module underneath runs in eval mode without gradients and is left
bit for bit as found; whatever it returns is read through a readout (`modelprops.readouts`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from modelprops.domains import Domain, generator_of
from modelprops.drawn import refuse_drawn
from modelprops.errors import (
    ArgumentError,
    DomainError,
    ModelpropsError,
    NondeterministicModelError,
    NonFiniteOutputError,
    NoParametersError,
    OutputError,
)
from modelprops.estimate import Witness, literal
from modelprops.placement import described, dtype_of, first_floating, moved_to, placed, unwrapped
from modelprops.preserve import advanced_random_state, preserved, replaced
from modelprops.readouts import Reading, Readout, Spec, freeze_token, resolve
from modelprops.seeds import derive

_PROBE = 8
# On a CPU the fastest batch is the one whose activations stay in the cache: about this many tokens or bits in all.
_ELEMENTS_PER_BATCH = 5120
_LARGEST_BATCH = 256
Parameters = Mapping[str, torch.Tensor]


class Subject:
    """A module (or any callable on tensors) with the domain of its inputs and the readout of its output.

    `batch_size="auto"` starts near the fastest size and halves when memory runs out; results do not depend on it
    beyond float rounding. `range=(low, high)` states the range of one output where the readout does not know it.
    `claims` are claim texts that come with the model (a demo's card); the plugin asserts them where none are given.
    `device` and `dtype` that differ from the module's are met by a copy; the module itself is never moved or cast.

    Raises `ArgumentError` for a module without a domain, `NondeterministicModelError` when the same input gives two
    outputs, `OutputError` when the output is ambiguous, `NonFiniteOutputError` for NaN or infinity.
    """

    def __init__(
        self,
        module: torch.nn.Module | Callable[..., Any],
        domain: Domain,
        readout: Spec | Readout = None,
        *,
        name: str | None = None,
        batch_size: int | str = "auto",
        device: str | torch.device | None = None,
        dtype: torch.dtype | str | None = None,
        range: tuple[float, float] | None = None,
        claims: tuple[str, ...] = (),
    ) -> None:
        if not callable(module):
            raise ArgumentError(f"module={module!r} is not callable; give an nn.Module or a function on tensors")
        refuse_drawn("domain", domain)
        missing = [part for part in ("coordinates", "sample", "resample", "correlated") if not hasattr(domain, part)]
        if missing:
            raise ArgumentError(
                f"domain={domain!r} has no {', '.join(missing)}; give mp.BooleanCube(n), mp.Tokens(...), "
                "mp.Gaussian(...) or an object with the same methods"
            )
        if domain.coordinates < 1:
            raise DomainError(f"domain={domain!r} has {domain.coordinates} coordinates; give at least 1")
        if batch_size != "auto" and (not isinstance(batch_size, int) or batch_size < 1):
            raise ArgumentError(f'batch_size={batch_size!r} is not a positive integer; use "auto" or a number')
        self._callable = placed(unwrapped(module), device, dtype_of(dtype))
        self.domain = domain
        # A module may know the range of what it returns, such as the Boolean functions of this package.
        known = getattr(self._callable, "range", None) if readout is None else None
        self.readout = resolve(readout, range or known)
        self.name = name or getattr(module, "__name__", None) or type(module).__name__
        self.claims = tuple(claims)
        self.batch_size = batch_size
        self._batch: int | None = batch_size if isinstance(batch_size, int) else None
        self._outputs: int | None = None
        self._noise = 0.0
        self._located: dict[str, list[tuple[torch.nn.Module, str]]] | None = None
        self._last_logits = self.readout.last_only and _accepts(self._callable, "logits_to_keep")

    def __repr__(self) -> str:
        return f"<Subject {self.name} on {self.domain!r}, readout {self.readout.name}>"

    @property
    def module(self) -> torch.nn.Module:
        """The module; `NoParametersError` for a plain callable."""
        if not isinstance(self._callable, torch.nn.Module):
            raise NoParametersError(
                f"{self.name} is a plain callable without parameters; pass the torch.nn.Module itself to measure "
                "sharpness, curvature, blowup or norms"
            )
        return self._callable

    @property
    def outputs(self) -> int:
        """How many real outputs the readout has."""
        self.probe()
        assert self._outputs is not None
        return self._outputs

    @property
    def noise(self) -> float:
        """Rounding noise of the readout's margin, measured by evaluating one batch in two batch sizes."""
        self.probe()
        return self._noise

    @property
    def diameter(self) -> float:
        """Greatest squared distance between two values, infinite if the readout is unbounded."""
        return self.readout.diameter(self.outputs)

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """Return values (batch,) or (batch, outputs), float64 on the CPU."""
        return self.read(points).values

    def read(self, points: torch.Tensor, parameters: Parameters | None = None) -> Reading:
        """Return values and margins at `points`, optionally with some parameters replaced for this call only."""
        self.probe()
        return self._checked(points, self._batched(points, parameters))

    def differentiable(self, points: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return values at `points`, in one batch on the module's device, with a graph back to `parameters`.

        For derivatives by autograd: `parameters` are leaves that require a gradient and stand in for the module's own,
        so neither `.grad` nor `requires_grad` of the module is touched. Eval mode, state preserved.
        """
        self.probe()
        with preserved(self._as_module()), torch.inference_mode(False), torch.enable_grad():
            reading = self.readout.read(self._forward(self._encode(points), parameters))
        self._checked(points, reading)
        return reading.values

    def cast(self, dtype: torch.dtype) -> Subject:
        """Return the same function with a copy of the module in another dtype, not probed anew."""
        self.probe()
        other = Subject(self.module, self.domain, self.readout, name=self.name, dtype=dtype)
        other._outputs, other._noise = self._outputs, self._noise
        return other

    def steady(self) -> AbstractContextManager[None]:
        """Prepare the module once for a series of calls, and leave it as found at the end."""
        return preserved(self._as_module())

    def probe(self) -> None:
        """Check once that the module is deterministic, and measure its number of outputs and its rounding noise."""
        if self._outputs is not None:
            return
        points = self.domain.sample(_PROBE, generator_of(derive(0, "probe")))
        refuse_drawn("what domain.sample returned", points)
        before = _contents(self._callable)
        if self.readout.frozen_token:
            with preserved(self._as_module()):
                self.readout = freeze_token(self.readout, self._forward(self._encode(points[:1]), None))
        first = self._first_call(points)
        with advanced_random_state():
            second = self._batched(points, None)
        _refuse_changed(self._callable, before, self.name)
        if not torch.equal(first.values.nan_to_num(0.5), second.values.nan_to_num(0.5)):
            self._refuse_random(points, first, second)
        singly = _joined([self._batched(point[None], None) for point in points])
        batched, single = first.values, singly.values
        if first.margin is not None and singly.margin is not None:
            batched, single = first.margin, singly.margin
        gaps = (batched - single).abs().nan_to_num(0.0).view(len(points), -1).amax(1)
        self._refuse_batch_dependent(float(gaps.median()), float(batched.abs().nan_to_num(0.0, 0.0, 0.0).max()))
        self._noise = 2 * float(gaps.max())
        self._outputs = 1 if first.values.ndim == 1 else first.values.shape[1]

    def _refuse_batch_dependent(self, gap: float, scale: float) -> None:
        """Rounding moves values a little between batch sizes: not most of them by a quarter of the largest."""
        tensor = first_floating(self._callable)
        epsilon = torch.finfo(torch.float32 if tensor is None else tensor.dtype).eps
        if gap > max(scale / 4, 64 * epsilon):
            raise NondeterministicModelError(
                f"{self.name} gives an input another output alone than in a batch (difference {gap:.3g}), so it is not "
                "a function of one input. Remove what mixes the batch from forward, such as batch statistics"
            )

    def _first_call(self, points: torch.Tensor) -> Reading:
        """Evaluate once; what the module itself raises is reported with the inputs it was given."""
        try:
            return self._batched(points, None)
        except ModelpropsError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"{self.name} cannot take the inputs of {self.domain!r}, {described(self._encode(points[:1]))}: "
                f"{type(error).__name__}: {error}. Give the domain (and its encoding) that the model was trained on"
            ) from error

    def _as_module(self) -> torch.nn.Module | None:
        return self._callable if isinstance(self._callable, torch.nn.Module) else None

    def _batched(self, points: torch.Tensor, parameters: Parameters | None) -> Reading:
        if self._batch is None:
            self._batch = max(1, min(_LARGEST_BATCH, _ELEMENTS_PER_BATCH // max(1, points[:1].numel())))
        readings: list[Reading] = []
        start = 0
        with preserved(self._as_module()):
            while start < len(points):
                # Equal batches: a short one at the end would cost nearly as much as a full one.
                left = len(points) - start
                part = points[start : start + math.ceil(left / math.ceil(left / self._batch))]
                try:
                    reading = self.readout.read(self._forward(self._encode(part), parameters))
                except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                    if self._batch == 1 or not _is_out_of_memory(error):
                        raise
                    self._batch = self._batch // 2
                    continue
                if len(reading.values) != len(part):
                    raise OutputError(
                        f"{self.name} was given {len(part)} inputs and returned {len(reading.values)} rows; the first "
                        "dimension of the output must be the batch"
                    )
                readings.append(_to_cpu(reading))
                start += len(part)
        return _joined(readings) if readings else Reading(torch.zeros(0, dtype=torch.float64))

    def _encode(self, points: torch.Tensor) -> Any:
        encode = getattr(self.domain, "encode", None)
        inputs = encode(points) if encode else points
        if inputs is points:
            inputs = points.clone()  # a forward that writes to its input must not change the points
        tensors = first_floating(self._callable)
        if tensors is None:
            return inputs
        return moved_to(inputs, tensors.device, tensors.dtype)

    def _forward(self, inputs: Any, parameters: Parameters | None) -> Any:
        keywords: dict[str, Any] = {"logits_to_keep": 1} if self._last_logits else {}
        arguments: tuple[Any, ...] = ()
        if isinstance(inputs, Mapping):
            keywords |= dict(inputs)
        elif isinstance(inputs, (tuple, list)):
            arguments = tuple(inputs)
        else:
            arguments = (inputs,)
        if parameters is None:
            return self._callable(*arguments, **keywords)
        places = [(place, parameters[name]) for name in parameters for place in self._places(name)]
        with replaced([place for place, _ in places], [tensor for _, tensor in places]):
            return self._callable(*arguments, **keywords)

    def _places(self, name: str) -> list[tuple[torch.nn.Module, str]]:
        """Where a parameter is used: more than one submodule for tied weights."""
        if self._located is None:
            parameters = dict(self.module.named_parameters())
            owners: dict[int, list[tuple[torch.nn.Module, str]]] = {}
            for submodule in self.module.modules():
                for key, parameter in submodule._parameters.items():
                    owners.setdefault(id(parameter), []).append((submodule, key))
            self._located = {key: owners[id(parameter)] for key, parameter in parameters.items()}
        return self._located[name]

    def _checked(self, points: torch.Tensor, reading: Reading) -> Reading:
        finite = torch.isfinite(reading.values)
        if not finite.all():
            row = int((~finite.view(len(points), -1).all(1)).nonzero()[0, 0])
            witness = Witness(point=points[row])
            raise NonFiniteOutputError(
                f"{self.name} returned {reading.values.view(len(points), -1)[row].tolist()[:4]} for the input "
                f"{literal(points[row])}; NaN and infinity have no sensitivity, mend the model or the readout",
                witness,
            )
        low, high = self.readout.range
        if math.isfinite(low) and math.isfinite(high) and len(reading.values):
            least, most = reading.values.min().item(), reading.values.max().item()
            slack = 1e-6 * max(1.0, high - low)
            if least < low - slack or most > high + slack:
                raise ArgumentError(
                    f"{self.name} returned values from {least:.6g} to {most:.6g}, outside the stated range "
                    f"[{low:.6g}, {high:.6g}], so no bound would hold; correct range="
                )
        return reading

    def _refuse_random(self, points: torch.Tensor, first: Reading, second: Reading) -> None:
        gap = float((first.values - second.values).abs().max())
        if gap <= 1e-6 * max(1.0, float(first.values.abs().max())) and first.margin is None:
            return  # accelerator kernels that add in varying order: rounding, not randomness
        culprit = self._first_random_submodule(points)
        where = f"; the first submodule whose output changes is {culprit}" if culprit else ""
        raise NondeterministicModelError(
            f"{self.name} gave two outputs for the same input in eval mode (difference {gap:.3g}){where}. Remove the "
            "randomness from forward (functional dropout needs training=self.training), or fix its seed inside"
        )

    def _first_random_submodule(self, points: torch.Tensor) -> str | None:
        module = self._as_module()
        if module is None:
            return None
        runs: list[dict[str, torch.Tensor]] = []
        for state in (nullcontext, advanced_random_state):
            seen: dict[str, torch.Tensor] = {}
            handles = [
                submodule.register_forward_hook(_recorder(seen, name or type(module).__name__))
                for name, submodule in module.named_modules()
            ]
            try:
                with state():
                    self._batched(points, None)
            finally:
                for handle in handles:
                    handle.remove()
            runs.append(seen)
        for name, output in runs[0].items():
            if name in runs[1] and not torch.equal(output, runs[1][name]):
                return f"{name!r}"
        return None


def as_subject(subject: Any, domain: Domain | None = None) -> Subject:
    """Return a subject: itself, or a module or callable on `domain`."""
    if domain is not None:
        refuse_drawn("domain", domain)
    if isinstance(subject, Subject):
        if domain is not None and domain is not subject.domain and domain != subject.domain:
            raise ArgumentError("domain= was given beside a Subject, which has its own; leave it out")
        return subject
    if domain is None:
        raise ArgumentError(
            f"{type(subject).__name__} is not a Subject and no domain was given; pass domain=, for example "
            "domain=mp.BooleanCube(16)"
        )
    return Subject(subject, domain)


def _recorder(seen: dict[str, torch.Tensor], name: str) -> Callable[[Any, Any, Any], None]:
    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            seen.setdefault(name, output.detach().clone())

    return hook


def _accepts(function: Any, keyword: str) -> bool:
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return keyword in inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or ("memory" in text and "alloc" in text)


def _to_cpu(reading: Reading) -> Reading:
    return Reading(reading.values.cpu(), None if reading.margin is None else reading.margin.cpu())


def _joined(readings: list[Reading]) -> Reading:
    margins = [reading.margin for reading in readings if reading.margin is not None]
    return Reading(torch.cat([reading.values for reading in readings]), torch.cat(margins) if margins else None)


def _contents(module: Any) -> list[tuple[torch.nn.Parameter, int, torch.Tensor]]:
    if not isinstance(module, torch.nn.Module):
        return []
    return [(parameter, parameter._version, parameter.detach().clone()) for parameter in module.parameters()]


def _refuse_changed(module: Any, before: list[tuple[torch.nn.Parameter, int, torch.Tensor]], name: str) -> None:
    changed = [parameter for parameter, version, _ in before if parameter._version != version]
    if not changed:
        return
    with torch.no_grad():
        for parameter, _, content in before:
            parameter.copy_(content)
    names = [key for key, parameter in module.named_parameters() if any(parameter is other for other in changed)]
    raise ModelpropsError(
        f"forward of {name} writes to its own parameters ({', '.join(names)}), so it is not a function of its input; "
        "they were put back. Remove the update from forward"
    )
