"""Domains and readouts written as text, for the command line: literals only, nothing is evaluated.

`BooleanCube(12)`, `Tokens(50257, 64, exclude=(0, 1))`, `Gaussian((3, 8))`; `sign`, `logit 3`,
`next-token-probability frozen`, `("logit", 3)`.
"""

from __future__ import annotations

import ast

from modelprops import domains
from modelprops.claimtext import parse_call
from modelprops.domains import Domain
from modelprops.errors import ArgumentError
from modelprops.readouts import NAMES, Spec, resolve

DOMAINS = ("BooleanCube", "Tokens", "Gaussian")
_INDEXED = ("logit", "next-token-probability")


def parse_domain(text: str) -> Domain:
    """Return the domain that `text` names; `ArgumentError` for an unknown name or arguments that do not fit."""
    call = parse_call(text)
    if call.name not in DOMAINS:
        raise ArgumentError(f"domain {text!r} is unknown; write one of {', '.join(DOMAINS)}, as in BooleanCube(12)")
    try:
        domain: Domain = getattr(domains, call.name)(*call.arguments, **call.keywords)
    except TypeError as error:
        reason = str(error).replace("__init__", "").replace("..", ".")
        raise ArgumentError(f"domain {text!r} does not fit: {reason}; write for example Tokens(50257, 64)") from None
    return domain


def parse_readout(text: str) -> Spec:
    """Return the readout that `text` names: a name, a name and an index, or the tuple as in Python."""
    words = text.strip()
    if words.lower() == "none":
        return None
    if words.startswith("("):
        readout = _tuple(words)
    else:
        name, _, which = words.partition(" ")
        readout = (name, _index(which.strip())) if name in _INDEXED else words
    resolve(readout, None)
    return readout


def _tuple(text: str) -> Spec:
    try:
        pair = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pair = None
    if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise ArgumentError(f'readout {text!r} is not a pair of literals; write for example ("logit", 3)')
    return pair


def _index(text: str) -> int | str:
    if text == "frozen":
        return text
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"readout index {text!r} is not a number; use {NAMES}") from None
