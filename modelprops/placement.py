"""Where a module and its inputs live: device, dtype, wrappers. The user's own module is never moved or cast."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

from modelprops.errors import ArgumentError


def unwrapped(module: Any) -> Any:
    """See through `torch.compile` and data-parallel wrappers, whose parameters have other names."""
    while isinstance(module, torch.nn.Module):
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
            module = module.module
        else:
            break
    return module


def placed(module: Any, device: str | torch.device | None, dtype: torch.dtype | None) -> Any:
    """Return a copy of the module on `device` in `dtype`; the module itself if it is there already."""
    tensor = first_floating(module)
    if tensor is None or (device is None and dtype is None):
        return module
    try:
        target = torch.device(device) if device is not None else tensor.device
        here = (target.type, target.index or 0) == (tensor.device.type, tensor.device.index or 0)
        if here and dtype in (None, tensor.dtype):
            return module
        return copy.deepcopy(module).to(device=target, dtype=dtype)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"device={device!r}, dtype={dtype}: the model cannot be copied there: {reason}") from error


def device_of(device: str) -> torch.device:
    """Return the device of that name; `ArgumentError` for a kind that torch does not know."""
    try:
        return torch.device(device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f'device={device!r} is no device: {reason}; use "cpu", "cuda" or "cuda:1"') from None


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return a floating dtype, given as such or by name."""
    if dtype is None:
        return None
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    raise ArgumentError(f'dtype={dtype!r} is no floating dtype; use "float32", "float64", "bfloat16" or "float16"')


def first_floating(module: Any) -> torch.Tensor | None:
    """The first floating parameter or buffer of a module: its device and dtype stand for the whole."""
    if not isinstance(module, torch.nn.Module):
        return None
    return next((tensor for tensor in chain(module.parameters(), module.buffers()) if tensor.is_floating_point()), None)


def described(inputs: Any) -> str:
    """Shape and dtype of what a module is called with."""
    if isinstance(inputs, torch.Tensor):
        return f"a tensor of shape (batch, {', '.join(map(str, inputs.shape[1:]))}) and dtype {inputs.dtype}"
    return f"a {type(inputs).__name__}"


def moved_to(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """To the module's device; floats to its dtype, integers as they are."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device=device, dtype=dtype if inputs.is_floating_point() else None)
    if isinstance(inputs, Mapping):
        return {key: moved_to(value, device, dtype) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return type(inputs)(moved_to(value, device, dtype) for value in inputs)
    return inputs
