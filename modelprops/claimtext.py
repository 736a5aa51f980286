"""The small grammar of claims without code, parsed without evaluating anything.

    claim  = measure [ "(" name "=" literal { "," name "=" literal } ")" ] [ ("<=" | ">=") number ]

For example `average_sensitivity <= 2` or `noise_stability(rho=0.9) >= 0.5`. Literals are Python's numbers, strings,
True, False, None and tuples or lists of them. Imports no torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from modelprops.errors import ArgumentError


class CallText(NamedTuple):
    """A name with positional and keyword literals: `Tokens(50, 32)`, `noise_stability(rho=0.9)`."""

    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


class ClaimText(NamedTuple):
    """A parsed claim; `comparison` and `threshold` are None where the text only names a measure."""

    measure: str
    parameters: Mapping[str, Any]
    comparison: str | None
    threshold: float | None

    def rest(self) -> tuple[str | None, float | None, dict[str, Any]]:
        """Comparison, threshold and parameters."""
        return self.comparison, self.threshold, dict(self.parameters)


def parse_claim(text: str) -> ClaimText:
    """Parse a claim; `ArgumentError` points at the character that does not fit."""
    tree = _expression(text)
    call, comparison, threshold = tree, None, None
    if isinstance(tree, ast.Compare):
        call = tree.left
        if len(tree.ops) > 1:
            _refuse(text, _operator_at(text, tree.comparators[0]), "a claim has one comparison")
        if not isinstance(tree.ops[0], (ast.LtE, ast.GtE)):
            _refuse(text, _operator_at(text, call), 'compare with "<=" or ">="')
        comparison = "<=" if isinstance(tree.ops[0], ast.LtE) else ">="
        value = _literal(text, tree.comparators[0])
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            _refuse(text, tree.comparators[0].col_offset, "the threshold must be a number")
        threshold = float(value)
    parsed = _call(text, call)
    if parsed.arguments:
        assert isinstance(call, ast.Call)
        _refuse(text, call.args[0].col_offset, "parameters are written name=value")
    return ClaimText(parsed.name, parsed.keywords, comparison, threshold)


def parse_call(text: str) -> CallText:
    """Parse `name(literals)`, such as a domain."""
    return _call(text, _expression(text))


def _expression(text: str) -> ast.expr:
    if not text.strip():
        _refuse(text, 0, "the text is empty")
    stripped = text.strip()
    try:
        return ast.parse(stripped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        offset = (getattr(error, "offset", None) or 1) - 1
        _refuse(stripped, min(offset, len(stripped)), "this is not part of a claim")


def _call(text: str, node: ast.expr) -> CallText:
    if isinstance(node, ast.Name):
        return CallText(node.id, (), {})
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        _refuse(text, node.col_offset, "a name is expected here, such as average_sensitivity")
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            _refuse(text, keyword.value.col_offset, "** is not allowed")
        if keyword.arg in keywords:
            _refuse(text, keyword.col_offset, f"{keyword.arg} is given twice")
        keywords[keyword.arg] = _literal(text, keyword.value)
    return CallText(node.func.id, tuple(_literal(text, argument) for argument in node.args), keywords)


def _literal(text: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        _refuse(text, node.col_offset, "a literal is expected here: a number, a quoted string, True, False or None")


def _operator_at(text: str, left: ast.expr) -> int:
    found = re.search(r"[<>=!]", text.strip()[left.end_col_offset or 0 :])
    return (left.end_col_offset or 0) + (found.start() if found else 0)


def _refuse(text: str, at: int, rule: str) -> NoReturn:
    shown = text.strip()
    raise ArgumentError(f'{rule}, as in "noise_stability(rho=0.9) >= 0.5":\n  {shown}\n  {" " * at}^')
