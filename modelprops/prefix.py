"""Single-token changes of a causal language model without recomputing what comes before the change.

A causal model's keys and values at positions < i do not depend on token i. So the base input's are computed once, and
a variant that differs at position i only runs its suffix i..L-1 and the last position's logits. For all L positions of
one input that is half of the tokens and none of the other L - 1 rows of logits.

Exact up to float rounding. Used by `sensitivities`, hence by average sensitivity, influences and junta size, for
Hugging Face models with a growing key-value cache whose readout reads the last position. Before its first use on a
subject three variants are compared with full passes; a model that fails (one that attends both ways, say) is
evaluated in full.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch

from modelprops.domains import Tokens
from modelprops.readouts import Reading, unpack
from modelprops.subject import Subject

SHORTEST = 48
"""Below this many tokens whole inputs in large batches are faster than suffixes one input at a time."""

_TOKENS_AT_ONCE = 1024
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_agreed: WeakKeyDictionary[Subject, bool] = WeakKeyDictionary()


def read_neighbours(subject: Subject, points: torch.Tensor, near: torch.Tensor, places: torch.Tensor) -> Reading:
    """Return the reading of each point followed by its neighbours, flattened: (batch * (1 + neighbours), ...).

    `near` has shape (batch, neighbours, ...); neighbour c of a point differs from it at most in coordinate
    `places[point, c]`.
    """
    if shares_prefixes(subject):
        with subject.steady():
            reading = _joined([_read_one(subject, *row) for row in zip(points, near, places, strict=True)])
        if torch.isfinite(reading.values).all():
            return reading
    return subject.read(torch.cat([points[:, None], near], 1).flatten(0, 1))


def shares_prefixes(subject: Subject) -> bool:
    """Whether suffixes after a shared prefix give this subject's values; checked once against full passes."""
    if subject not in _agreed:
        _agreed[subject] = _is_candidate(subject) and _agrees(subject)
    return _agreed[subject]


def _is_candidate(subject: Subject) -> bool:
    domain = subject.domain
    if not isinstance(domain, Tokens) or domain.length < SHORTEST:
        return False
    subject.probe()  # a "frozen" readout chooses its token here
    module: Any = subject._as_module()
    if module is None or not subject.readout.last_only or "transformers" not in sys.modules:
        return False
    return _cache_name(module) is not None and {"input_ids", "use_cache", "logits_to_keep"} <= _accepted(module)


def _accepted(module: torch.nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def _cache_name(module: torch.nn.Module) -> str | None:
    """What the key-value cache is called: `cache` in newer versions of transformers."""
    return next((name for name in ("cache", "past_key_values") if name in _accepted(module)), None)


def _agrees(subject: Subject) -> bool:
    """Compare last-position logits of the first, middle and last free position's variants with full passes."""
    domain = subject.domain
    assert isinstance(domain, Tokens)
    module = subject.module
    device = next(module.parameters()).device
    base = domain.sample(1, torch.Generator().manual_seed(0))[0]
    free = domain.free
    places = torch.stack([free[0], free[len(free) // 2], free[-1]])
    variants = base.repeat(len(places), 1)
    allowed = domain.allowed
    for row, place in enumerate(places.tolist()):
        others = allowed[allowed != base[place]]
        if not len(others):
            return False
        variants[row, place] = others[0]
    with subject.steady():
        whole = unpack(module(input_ids=variants.to(device), logits_to_keep=1))[:, -1]
        output = module(input_ids=base[None].to(device), use_cache=True, logits_to_keep=1)
        cached = _layers(output, _cache_name(module), domain.length)
        if cached is None:
            return False
        parts = torch.cat(
            [
                unpack(_suffix(module, cached, variants[row : row + 1].to(device), place))[:, -1]
                for row, place in enumerate(places.tolist())
            ]
        )
    rounding = _ROUNDING.get(whole.dtype, 2e-2) * float(whole.abs().max())
    return float((whole - parts).abs().max()) <= rounding


def _read_one(subject: Subject, point: torch.Tensor, near: torch.Tensor, places: torch.Tensor) -> Reading:
    """The readings of one input and its neighbours."""
    domain, module = subject.domain, subject.module
    assert isinstance(domain, Tokens)
    device = next(module.parameters()).device
    output = module(input_ids=point[None].to(device), use_cache=True, logits_to_keep=1)
    cached = _layers(output, _cache_name(module), domain.length)
    base = _on_cpu(subject.readout.read(output))
    values = base.values.repeat(1 + len(near), *[1] * (base.values.ndim - 1))
    margin = None if base.margin is None else base.margin.repeat(1 + len(near), *[1] * (base.margin.ndim - 1))
    assert cached is not None
    positions = domain.free[places]
    # A redrawn token can come out the same: its reading is the base's.
    changed = (near != point).any(1).nonzero()[:, 0]
    rows = changed[positions[changed].argsort()]
    largest = subject.batch_size if isinstance(subject.batch_size, int) else len(near)
    for group, start in _groups(rows, positions, domain.length, largest):
        part = _on_cpu(subject.readout.read(_suffix(module, cached, near[group].to(device), start)))
        values[1 + group] = part.values
        if margin is not None and part.margin is not None:
            margin[1 + group] = part.margin
    return Reading(values, margin)


def _groups(
    rows: torch.Tensor, positions: torch.Tensor, length: int, largest: int
) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield neighbours with near positions, from the end, and the first position of each group.

    A group shares the prefix before its first position; it holds about `_TOKENS_AT_ONCE` tokens, so that it is large
    where suffixes are short.
    """
    end = len(rows)
    while end > 0:
        begin = end - 1
        while begin > 0 and end - begin < largest:
            if (end - begin + 1) * (length - int(positions[rows[begin - 1]])) > _TOKENS_AT_ONCE:
                break
            begin -= 1
        yield rows[begin:end], int(positions[rows[begin]])
        end = begin


def _suffix(
    module: torch.nn.Module, cached: list[tuple[torch.Tensor, torch.Tensor]], tokens: torch.Tensor, start: int
) -> Any:
    """The output of whole inputs whose tokens before `start` are those of the cached input."""
    if start == 0:
        return module(input_ids=tokens, logits_to_keep=1)
    from transformers import DynamicCache  # a subject that gets here is a transformers model

    count = len(tokens)
    prefix = DynamicCache([tuple(part[:, :, :start].expand(count, -1, -1, -1) for part in pair) for pair in cached])
    keywords: dict[str, Any] = {_cache_name(module) or "": prefix}
    return module(input_ids=tokens[:, start:], use_cache=True, logits_to_keep=1, **keywords)


def _layers(output: Any, name: str | None, length: int) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Keys and values (1, heads, length, size) of each layer; None unless every layer keeps all positions."""
    layers = getattr(getattr(output, name or "", None), "layers", None)
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return None
    pairs = [(layer.keys, layer.values) for layer in layers]
    return pairs if all(part.ndim == 4 and part.shape[2] == length for pair in pairs for part in pair) else None


def _on_cpu(reading: Reading) -> Reading:
    return Reading(reading.values.cpu(), None if reading.margin is None else reading.margin.cpu())


def _joined(readings: list[Reading]) -> Reading:
    margins = [reading.margin for reading in readings if reading.margin is not None]
    return Reading(torch.cat([reading.values for reading in readings]), torch.cat(margins) if margins else None)
