"""Tensors drawn by Hypothesis: they print as Python, and are told apart from uniform samples."""

from __future__ import annotations

from typing import Any

import torch

from modelprops.estimate import literal


class Drawn(torch.Tensor):
    """A tensor whose `repr` can be pasted into a test. What is computed from it is an ordinary tensor."""

    # Operations on a drawn tensor give plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own idiom

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Drawn:
        """Mark a tensor as drawn by Hypothesis."""
        return tensor.as_subclass(cls)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch leaves its own untyped
        return literal(self.as_subclass(torch.Tensor))
