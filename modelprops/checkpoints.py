"""State dicts from files, and from there into a module: weights only, all or nothing.

A pickle is never unpickled freely: `torch.load(weights_only=True)` interprets it with an allow-list, and what it
refuses is named here by reading the opcodes, which runs none of them.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from modelprops.errors import LoadError, UnsafeCheckpointError

STATE_DICT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
WRAPPERS = ("state_dict", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")
_LISTED = 8
_LEGACY_PICKLES = 5


def state_dict_of(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a `.safetensors`, `.pt`, `.pth` or `.bin` file by name.

    A dict that holds its weights under `state_dict` or `model_state_dict` is unwrapped. Raises `LoadError` for a
    missing or damaged file, `UnsafeCheckpointError` for a pickle that would run code.
    """
    if not path.is_file():
        raise LoadError(f"checkpoint {str(path)!r} is not a file; give a path that exists")
    if path.suffix not in STATE_DICT_SUFFIXES:
        raise LoadError(f"checkpoint {str(path)!r} is of no known kind; use one of {', '.join(STATE_DICT_SUFFIXES)}")
    content = _safetensors(path) if path.suffix == ".safetensors" else unpickled(path, str(path))
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise LoadError(f"{path} holds a {type(content).__name__}, not a state dict; save model.state_dict()")
    others = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if others or not content:
        found = f"beside tensors it holds {_listing(others)}" if others else "it is empty"
        raise LoadError(
            f"{path} is not a state dict: {found}; save model.state_dict(), alone or under one of {', '.join(WRAPPERS)}"
        )
    return {str(name): value for name, value in content.items()}


def unpickled(source: Path | bytes, shown: str) -> Any:
    """Read what `torch.save` wrote, tensors and plain containers only."""
    try:
        with _opened(source) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        with _opened(source) as file:
            called = globals_of(file)
        if refused := [name for name in called if not _harmless(name)]:
            raise UnsafeCheckpointError(
                f"{shown} was not read: unpickling it would import and run {_listing(refused)}. Nothing was executed. "
                "If you trust its author, re-save model.state_dict() with safetensors.torch.save_file"
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoadError(
            f"{shown} is not a whole torch checkpoint ({reason}); copy it again or save model.state_dict() anew"
        ) from None


def globals_of(file: BinaryIO) -> list[str]:
    """Return the dotted names that a zip or legacy `torch.save` file would import, read without running anything."""
    names: dict[str, None] = {}
    if zipfile.is_zipfile(file):
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.namelist():
                    if member.endswith(".pkl"):
                        names |= dict.fromkeys(_imported(io.BytesIO(archive.read(member))))
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError):
            pass
        return list(names)
    file.seek(0)
    for _ in range(_LEGACY_PICKLES):
        names |= dict.fromkeys(_imported(file))
    return list(names)


def load_weights(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], shown: str) -> None:
    """Copy `weights` into `module`, or raise `LoadError` that lists every key that does not fit and copy nothing.

    A prefix that all keys share because a wrapper was saved (`module.` of data parallelism, `_orig_mod.` of
    `torch.compile`) is taken off. A missing key is accepted where its tensor is tied to one that is loaded.
    """
    own = module.state_dict(keep_vars=True)
    weights = _without_prefix(weights, own)
    wrong = _shape_errors(own, weights) + _tied_conflicts(own, weights)
    given = {id(own[name]) for name in weights if name in own}
    missing = [name for name in own if name not in weights and id(own[name]) not in given]
    unexpected = [name for name in weights if name not in own]
    faults = [
        f"{kind}: {_listing(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("not fitting", wrong))
        if names
    ]
    if faults:
        raise LoadError(
            f"{shown} does not fit {type(module).__name__} ({'; '.join(faults)}); nothing was loaded. Give the factory "
            "of the architecture that was saved"
        )
    module.load_state_dict(dict(weights), strict=False)


def _safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise LoadError(f"{path} is not a whole safetensors file ({error}); copy it again") from None


def _opened(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _harmless(name: str) -> bool:
    allowed = torch._weights_only_unpickler._get_allowed_globals()
    return name in allowed


def _imported(file: BinaryIO) -> Iterator[str]:
    """Follow one pickle's opcodes, keeping the strings that STACK_GLOBAL takes from the stack."""
    strings: list[str] = []
    memo: dict[object, str] = {}
    last = ""
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name in ("GLOBAL", "INST"):
                yield str(argument).replace(" ", ".", 1)
            elif opcode.name == "STACK_GLOBAL":
                yield ".".join(strings[-2:]) or "something"
            elif opcode.name == "MEMOIZE":
                memo[len(memo)] = last
            elif opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[argument] = last
            elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
                strings.append(memo.get(argument, ""))
            if isinstance(argument, str) and opcode.name not in ("GLOBAL", "INST"):
                strings.append(argument)
            last = strings[-1] if isinstance(argument, str) and strings else ""
    except (ValueError, IndexError, pickle.UnpicklingError, EOFError, OverflowError):
        return


def _without_prefix(weights: Mapping[str, torch.Tensor], own: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in weights) and not any(name.startswith(prefix) for name in own):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _shape_errors(own: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> list[str]:
    faults = []
    for name, value in weights.items():
        target = own.get(name)
        if not isinstance(target, torch.Tensor) or torch.nn.parameter.is_lazy(target):
            continue
        if target.shape != value.shape:
            faults.append(f"{name} has shape {tuple(value.shape)}, not {tuple(target.shape)}")
        elif target.is_floating_point() != value.is_floating_point() or target.is_complex() != value.is_complex():
            faults.append(f"{name} has dtype {value.dtype}, not {target.dtype}")
    return faults


def _tied_conflicts(own: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> list[str]:
    first: dict[Any, str] = {}
    faults = []
    for name in (name for name in weights if name in own):
        other = first.setdefault(id(own[name]), name)
        if other != name and not torch.equal(weights[other], weights[name]):
            faults.append(f"{name} differs from {other}, to which the module ties it")
    return faults


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
