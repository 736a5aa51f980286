"""Arrows between modules point one way: plugin -> suites, baseline, report -> properties -> subject -> domains."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import modelprops

ROOT = Path(modelprops.__file__).parent
MODULES = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
OUTER = ("plugin", "suites", "baseline", "report", "cli", "regression", "series")
INNER = (
    "subject",
    "domains",
    "readouts",
    "placement",
    "preserve",
    "drawn",
    "embeddings",
    "estimate",
    "errors",
    "seeds",
)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands under `if TYPE_CHECKING` is for readers of types only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for alternative in child.orelse:
                yield alternative
                yield from statements(alternative)
            continue
        yield child
        yield from statements(child)


def imports(name: str) -> set[str]:
    """What a module imports, at its top or inside a function; names of this package as paths such as `theory/relu`."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.replace(".", "/") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            module = (node.module or "").replace(".", "/")
            found |= {module, *(f"{module}/{alias.name}" for alias in node.names)}
    return {entry.removeprefix("modelprops/") for entry in found}


def within(entry: str, *parts: str) -> bool:
    return any(entry == part or entry.startswith(part + "/") for part in parts)


def ours(entry: str) -> bool:
    """Whether an import is a module of this package (and not a name inside one)."""
    return entry in MODULES or f"{entry}/__init__" in MODULES


def arrows(sources: tuple[str, ...], targets: tuple[str, ...]) -> list[str]:
    return [
        f"{name} -> {entry}"
        for name in MODULES
        if within(name, *sources)
        for entry in sorted(imports(name))
        if within(entry, *targets)
    ]


def test_inference_imports_only_estimates_errors_and_seeds() -> None:
    allowed = ("inference", "estimate", "errors", "seeds")
    wrong = [
        f"{name} -> {entry}"
        for name in MODULES
        if within(name, "inference")
        for entry in sorted(imports(name))
        if ours(entry) and not within(entry, *allowed)
    ]
    assert wrong == []


def test_the_plugin_is_imported_by_nobody() -> None:
    assert arrows(tuple(name for name in MODULES if not within(name, "plugin")), ("plugin",)) == []


def test_pytest_is_imported_only_by_the_plugin_and_the_suites() -> None:
    assert arrows(tuple(name for name in MODULES if not within(name, "plugin", "suites")), ("pytest", "_pytest")) == []


@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        (("theory",), ("training", "properties", *OUTER)),
        (("functions",), ("training", "properties", *OUTER)),
        (("training",), OUTER),
        (("properties",), ("theory", "training", *OUTER)),
        (INNER, ("properties", "inference", "theory", "functions", "training", *OUTER)),
    ],
    ids=["theory", "functions", "training", "properties", "subject"],
)
def test_no_arrow_points_outward(sources: tuple[str, ...], targets: tuple[str, ...]) -> None:
    assert arrows(sources, targets) == []


def test_importing_the_package_imports_neither_torch_nor_hypothesis_nor_pytest() -> None:
    code = "import sys, modelprops; print(sorted({'torch', 'numpy', 'hypothesis', 'pytest'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_longer_than_400_lines(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 400


def test_a_wrong_arrow_would_be_found() -> None:
    assert arrows(("plugin",), ("properties",)) != []
    assert "inference/multiplicity" in imports("report/terminal")
