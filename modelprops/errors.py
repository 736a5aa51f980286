"""What can go wrong, each with what to do about it. Every error of the package derives from `ModelpropsError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelprops.estimate import Verdict, Witness


class ModelpropsError(Exception):
    """The root of every error that modelprops raises on purpose."""


class ArgumentError(ModelpropsError, ValueError):
    """An argument is outside what the quantity is defined for; the message names the value and the allowed ones."""


class DomainError(ArgumentError):
    """The domain cannot do what was asked of it, such as enumerating R^n."""


class OutputError(ModelpropsError):
    """The module's output cannot be read as one real tensor; the message lists the choices of readout."""


class LoadError(ModelpropsError):
    """A model could not be loaded; nothing was executed and nothing is half-loaded."""


class UnsafeCheckpointError(LoadError):
    """A checkpoint would run code if it were unpickled. Re-save the weights as safetensors."""


class NoParametersError(ModelpropsError):
    """A property of the parameters was asked of a plain callable. Pass the `torch.nn.Module` itself."""


class NondeterministicModelError(ModelpropsError):
    """The same input gave two outputs. Put the module in eval mode, or remove randomness from `forward`."""


class NonFiniteOutputError(ModelpropsError):
    """The module returned NaN or infinity; `.witness` holds the input that did it."""

    def __init__(self, message: str, witness: Witness | None = None) -> None:
        super().__init__(message)
        self.witness = witness


class CurvatureError(ModelpropsError):
    """A second derivative failed its self-check (symmetry or central difference), so no number is reported."""


class BaselineError(ModelpropsError):
    """A stored baseline is missing, unreadable or not comparable; never taken for 'no regression'."""


class PropertyViolation(ModelpropsError, AssertionError):
    """A claim is false at the stated confidence; `.verdict` holds the numbers and the witness."""

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


class Inconclusive(ModelpropsError):
    """The budget ran out before the claim could be decided. Raise `budget=` or `tolerance=`."""

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict
