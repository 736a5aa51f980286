"""Runs on disk: a configuration's hash, atomic files, and everything a training loop needs to go on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, uint8

from modelprops.errors import ArgumentError, LoadError


def describe(value: Any) -> Any:
    """Return `value` as JSON data: frozen dataclasses with their type's name, sequences, strings, numbers, None.

    A tensor is described by the hash of its content. Two configurations describe alike iff they ask for the same run.
    Raises `ArgumentError` for anything else, such as a function, since it has no stable text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": f"{type(value).__module__}.{type(value).__qualname__}", **fields}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous()
        digest = hashlib.sha256(content.view(-1).view(uint8).numpy().tobytes()).hexdigest()
        return {"tensor": digest, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArgumentError(
        f"{value!r} ({type(value).__name__}) cannot be part of a run's configuration, because it has no stable text; "
        "use frozen dataclasses of numbers, strings, tuples and None"
    )


def configuration_hash(config: Any, version: int) -> str:
    """16 hexadecimal digits of `describe(config)`, the same in every process; `version` is the loop's."""
    text = json.dumps([version, describe(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part, also when two processes write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
    """Write a safetensors file atomically; `notes` is JSON data kept in its header."""
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(own, None if notes is None else {"notes": json.dumps(notes)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote. Raises `LoadError` for a damaged file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            notes = (file.metadata() or {}).get("notes", "{}")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(notes)  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise LoadError(f"{path} is not a readable safetensors file ({error}); delete it to train again") from None


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON atomically; a number that is not finite becomes null."""
    write_atomically(path, (json.dumps(_finite(data), indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `LoadError` for a damaged file."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is not readable JSON ({error}); delete it to train again") from None
    return data


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
