"""`torch.export` programs (`.pt2`), read only after everything in the archive that could run code has been ruled out.

`torch.export.load` unpickles freely where the archive says so, evaluates symbolic sizes with `sympify` and resolves
operator names by attribute; so each is checked against what `torch.export.save` writes for a plain tensor program.
Guards, which are Python source, are left out.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from modelprops.checkpoints import unpickled
from modelprops.errors import LoadError, UnsafeCheckpointError

_OPERATOR = re.compile(
    r"torch\.ops\.(?!aten\.(from_file|save|load)\b)(aten|prims|higher_order|quantized|quantized_decomposed|torchvision)(\.\w+){1,2}"
    r"|torch\.(sym_\w+|_sym_\w+|_check\w*)|torch\._C\._(set_grad_enabled|functorch\.\w+)"
    r"|_operator\.(?!attrgetter|methodcaller|call)\w+|math\.\w+"
)
_NAME = re.compile(r"[\w.\-]*")
_SIZE_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.keyword),
)
_SIZE_FUNCTIONS = re.compile(
    r"Symbol|Integer|Float|Rational|Add|Mul|Pow|Abs|Max|Min|Eq|Ne|Equality|Unequality|LessThan"
    r"|StrictLessThan|GreaterThan|StrictGreaterThan|And|Or|Not|Piecewise|FloorDiv|ModularIndexing|Where"
    r"|PythonMod|Mod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow|FloatTrueDiv"
    r"|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal|ToFloat"
    r"|Identity|BitwiseFn_bitwise_and|BitwiseFn_bitwise_or"
)


def load_exported(path: Path) -> torch.nn.Module:
    """Return the module of a `.pt2` file.

    Raises `UnsafeCheckpointError` before loading for anything that would run code (free pickles, custom objects,
    compiled libraries, foreign operators or expressions) and `LoadError` for a damaged file or one exported for a
    single batch size.
    """
    if not path.is_file():
        raise LoadError(f"{str(path)!r} is not a file; give a path that exists")
    try:
        _refuse_unsafe(path)
        program = _loaded(path)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(
            f"{path} is not a torch.export program that this torch {torch.__version__} reads ({_first_line(error)}); "
            "export it again with torch.export.save"
        ) from None
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.name in program.graph_signature.user_inputs and isinstance(value, torch.Tensor) and value.ndim:
            rows: Any = value.shape[0]
            if isinstance(rows, int):
                raise LoadError(
                    f"{path} was exported for the batch size {rows} alone; export it with "
                    'dynamic_shapes=({0: torch.export.Dim("batch")},)'
                )
            break
    return _without_guards(program)


def _loaded(path: Path) -> torch.export.ExportedProgram:
    loggers = [
        logging.getLogger(name) for name in ("torch.export", "torch._export", "torch.export.pt2_archive._package")
    ]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _without_guards(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """The module without the guards that the file brings as Python source, which torch would evaluate."""
    if "check_guards" in inspect.signature(program.module).parameters:
        return program.module(check_guards=False)
    return program.module()


def _refuse_unsafe(path: Path) -> None:
    """Look at every member through the reader that will load it, which finds names whatever their case."""
    from torch.export.pt2_archive._package import PT2ArchiveReader

    with PT2ArchiveReader(str(path)) as archive:
        members = archive.get_file_names()
        if not any(member.startswith("models/") for member in members):
            raise LoadError(f"{path} holds no program in the current format; export it again with torch.export.save")
        if len(members) != len({member.lower() for member in members}):
            _refuse(path, "two members of the same name")
        for member in members:
            lowered = member.lower()
            if lowered.startswith("data/aotinductor"):
                _refuse(path, f"the compiled library {member}")
            if lowered.endswith((".pt", ".pkl", ".pickle")):
                unpickled(archive.read_bytes(member), f"{path} ({member})")
            if lowered.endswith("_config.json"):
                _check_payloads(path, archive, member)
            elif lowered.startswith("models/"):
                _check_program(path, json.loads(archive.read_bytes(member)))


def _check_payloads(path: Path, archive: Any, member: str) -> None:
    folder = member.rpartition("/")[0]
    for entry in json.loads(archive.read_bytes(member))["config"].values():
        name = str(entry["path_name"])
        if name.startswith(("custom_obj", "opaque_obj")):
            _refuse(path, f"the pickled object {folder}/{name}")
        if entry.get("use_pickle"):
            unpickled(archive.read_bytes(f"{folder}/{name}"), f"{path} ({folder}/{name})")


def _check_program(path: Path, program: Any) -> None:
    for key, value in _strings(program):
        if key == "expr_str" and not _is_size(value):
            _refuse(path, f"the expression {value!r}")
        if key == "target" and not _OPERATOR.fullmatch(value):
            _refuse(path, f"the operator {value!r}")
        if key.endswith("name") and not _NAME.fullmatch(value):
            _refuse(path, f"the name {value!r}, which would become source code")
        if key in ("in_spec", "out_spec") and "default_factory_module" in value:
            _refuse(path, "the import of a defaultdict's factory")
        if key == "as_operator" and not _OPERATOR.fullmatch(value):
            _refuse(path, f"the operator {value!r}")


def _strings(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, key)


def _is_size(text: str) -> bool:
    """Whether `text` is arithmetic on named sizes, the only thing that may reach `sympify`."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_size_node(node) for node in ast.walk(tree)) and "__" not in text


def _is_size_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and _SIZE_FUNCTIONS.fullmatch(node.func.id) is not None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.isidentifier()
    return isinstance(node, _SIZE_NODES)


def _refuse(path: Path, what: str) -> None:
    raise UnsafeCheckpointError(
        f"{path} was not read: it holds {what}, which could run code. Nothing was executed. Load its weights through a "
        "factory from a safetensors file"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
