"""Tensors drawn by Hypothesis: they print as Python, and are told apart from uniform samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modelprops.errors import ArgumentError
from modelprops.estimate import literal


class Drawn(torch.Tensor):
    """A tensor whose `repr` can be pasted into a test.

    What is computed from it is an ordinary tensor, but for copies, casts to integers, stacks and concatenations.
    """

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Drawn:
        """Mark a tensor as drawn by Hypothesis."""
        return tensor.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on plain tensors; mark the result of what only rearranges drawn inputs."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor):
            return result
        return result.as_subclass(cls if func in _REARRANGE else torch.Tensor)

    def __deepcopy__(self, memo: dict[int, Any]) -> Drawn:
        return Drawn.of(self.as_subclass(torch.Tensor).clone())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch leaves its own untyped
        plain = self.as_subclass(torch.Tensor)
        if plain.dtype == torch.int8 and plain.numel() > _LONG and bool((plain.abs() == 1).all()):
            # A shrunk batch is +1 nearly everywhere.
            minus = (plain.flatten() < 0).nonzero()[:, 0].tolist()
            return f"modelprops.drawn.signs({tuple(plain.shape)}, minus={minus})"
        return literal(plain)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis would show the call of the strategy's internals.
        printer.text(repr(self))


_LONG = 256
_REARRANGE = {
    torch.stack,
    torch.cat,
    torch.vstack,
    torch.clone,
    torch.Tensor.clone,
    torch.Tensor.long,
    torch.Tensor.int,
}


def signs(shape: Sequence[int], minus: Sequence[int]) -> torch.Tensor:
    """An int8 tensor of +1 but for -1 at the flattened positions `minus`: how a large drawn batch prints."""
    points = torch.ones(tuple(shape), dtype=torch.int8)
    points.view(-1)[list(minus)] = -1
    return points


def refuse_drawn(what: str, value: object) -> None:
    """Raise `ArgumentError` where Hypothesis inputs are given for a domain, over which averages are taken."""
    if isinstance(value, (list, tuple)):
        for part in value:
            refuse_drawn(what, part)
        return
    strategy = any(kind.__module__.startswith("hypothesis.") for kind in type(value).__mro__)
    if not strategy and not isinstance(value, Drawn):
        return
    given = "a Hypothesis strategy" if strategy else "a tensor drawn by Hypothesis"
    raise ArgumentError(
        f"{what} is {given}: such inputs are not uniform (they are picked and shrunk to find failures), so an average "
        "over them estimates nothing. Give a domain, such as mp.BooleanCube(n), for averages; to speak of every input "
        "use @given with an assertion about single inputs, or mp.assert_sensitivity_everywhere and its like"
    )
