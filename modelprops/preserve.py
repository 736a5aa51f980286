"""Leave a module bit for bit as it was found, whatever happens in between."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_held: ContextVar[frozenset[int]] = ContextVar("modelprops_held", default=frozenset())


@contextmanager
def preserved(module: torch.nn.Module | None) -> Iterator[None]:
    """Run the body in eval mode without gradients; put modes, buffers, gradients and all random states back after.

    Nested in itself for the same module it costs nothing: the outermost one restores.
    """
    if id(module) in _held.get():
        with torch.no_grad():
            yield
        return
    token = _held.set(_held.get() | {id(module)})
    try:
        with _everything(module):
            yield
    finally:
        _held.reset(token)


@contextmanager
def replaced(places: Sequence[tuple[torch.nn.Module, str]], tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let submodules see other tensors in place of parameters; the parameters themselves are not written to."""
    own = [submodule._parameters[key] for submodule, key in places]
    try:
        for (submodule, key), tensor in zip(places, tensors, strict=True):
            submodule._parameters[key] = tensor  # type: ignore[assignment]  # as torch.func.functional_call does
        yield
    finally:
        for (submodule, key), parameter in zip(places, own, strict=True):
            submodule._parameters[key] = parameter


@contextmanager
def _everything(module: torch.nn.Module | None) -> Iterator[None]:
    with random_state_kept():
        if module is None:
            with torch.no_grad():
                yield
            return
        submodules = list(module.modules())
        modes = [submodule.training for submodule in submodules]
        buffers = [(submodule, dict(submodule._buffers)) for submodule in submodules if submodule._buffers]
        contents = [
            (buffer, buffer._version, buffer.detach().clone())
            for _, named in buffers
            for buffer in named.values()
            if buffer is not None
        ]
        slots = [
            (parameter, parameter.grad)
            for submodule in submodules
            for parameter in submodule._parameters.values()
            if parameter is not None
        ]
        try:
            for submodule in submodules:
                submodule.training = False
            with torch.no_grad():
                yield
        finally:
            for submodule, mode in zip(submodules, modes, strict=True):
                submodule.training = mode
            for submodule, named in buffers:
                if any(submodule._buffers.get(name) is not buffer for name, buffer in named.items()):
                    submodule._buffers.update(named)
            for buffer, version, content in contents:
                if buffer._version != version:
                    with torch.no_grad():
                        buffer.copy_(content)
            for parameter, gradient in slots:
                if parameter.grad is not gradient:
                    parameter.grad = gradient


@contextmanager
def advanced_random_state() -> Iterator[None]:
    """Run the body from other global random states, so that a random forward shows; put them back after."""
    with random_state_kept():
        random.random()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.random()
        torch.rand(1)
        if _cuda_in_use():
            torch.rand(1, device="cuda")
        yield


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put Python's, NumPy's and torch's global generators back as they were."""
    python = random.getstate()
    legacy: Any = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    cpu = torch.get_rng_state()
    accelerators = torch.cuda.get_rng_state_all() if _cuda_in_use() else None
    try:
        yield
    finally:
        random.setstate(python)
        if legacy is not None:
            sys.modules["numpy"].random.set_state(legacy)
        torch.set_rng_state(cpu)
        if accelerators is not None:
            torch.cuda.set_rng_state_all(accelerators)


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch leaves it untyped
