"""What a measurement and a decision return: plain frozen dataclasses, JSON both ways. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Number = float | Array


@dataclass(frozen=True)
class Estimate:
    """A quantity with its confidence interval.

    With probability >= `confidence` the interval [`low`, `high`] covers the truth, in the sense named by `guarantee`:

    - `exact`: the whole domain was enumerated, the interval has zero width;
    - `confidence bound`: finite-sample and anytime-valid (it may be looked at after every chunk);
    - `one-sided bound`: the truth is at least `low` (a worst-case search; `high` is infinite);
    - `residual bound`: an eigenvalue of the operator lies in the interval (linear algebra, no sampling error in it);
    - `asymptotic`: anytime-valid in the large-sample limit, where no finite-sample bound exists (unbounded outputs).

    `samples` counts independent units, `evaluations` forward passes of single inputs. `details` holds what else was
    measured on the same samples (a share of ties, a standard error, the attention kernel). A vector measure has
    arrays of one shape in `value`, `low` and `high`.
    """

    measure: str
    value: Number
    low: Number
    high: Number
    confidence: float
    samples: int
    evaluations: int
    method: str
    seed: int
    seconds: float
    guarantee: str = "confidence bound"
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Estimate:
        """Rebuild an estimate from `to_dict`; unknown keys are ignored so that newer files stay readable."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        for name in ("value", "low", "high"):
            if isinstance(known[name], list):
                known[name] = np.asarray(known[name], dtype=np.float64)
            elif known[name] is None:
                known[name] = float("nan")
            else:
                known[name] = _number(known[name])
        return cls(**known)

    def __str__(self) -> str:
        if isinstance(self.value, np.ndarray):
            flat = np.ravel(self.value)
            shown = (
                f"{flat.size} values from {_short(flat.min())} to {_short(flat.max())}" if flat.size else "no values"
            )
            width = float(np.max(np.asarray(self.high) - np.asarray(self.low))) if flat.size else 0.0
            interval = f"intervals at most {_short(width)} wide"
        else:
            shown = _short(self.value)
            interval = self.interval()
        return (
            f"{self.measure} = {shown}, {interval} ({self.method}, {self.samples:,} samples, "
            f"{self.evaluations:,} evaluations, {self.seconds:.1f} s)"
        )

    def interval(self) -> str:
        """Return the interval of a scalar estimate in words, such as `99% interval [1.93, 2.07]`."""
        if self.method == "exact":
            return "exact"
        if self.method == "search":
            return f"a one-sided bound: the maximum is at least {_short(float(self.low))}"
        if isinstance(self.value, np.ndarray):
            return f"the extreme of {self.value.size} values with simultaneous {_percent(self.confidence)} intervals"
        side = f"[{_short(float(self.low))}, {_short(float(self.high))}]"
        return f"{_percent(self.confidence)} interval {side}"


@dataclass(frozen=True)
class Witness:
    """The input (and flip), or the direction in parameter space, that shows the most extreme value found.

    `point` is one domain point, `coordinate` the coordinate whose change matters most there, `partner` the second
    point of a pair, `direction_seed` reproduces a parameter direction. `repr` can be pasted into a test.
    """

    point: torch.Tensor | None = None
    coordinate: int | None = None
    direction_seed: int | None = None
    score: float = float("nan")
    partner: torch.Tensor | None = None

    def __repr__(self) -> str:
        parts = []
        for name in ("point", "partner"):
            tensor = getattr(self, name)
            if tensor is not None:
                parts.append(f"{name}={literal(tensor)}")
        if self.coordinate is not None:
            parts.append(f"coordinate={self.coordinate}")
        if self.direction_seed is not None:
            parts.append(f"direction_seed={self.direction_seed}")
        parts.append(f"score={_score(self.score)}")
        return f"mp.Witness({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; tensors become nested lists with their dtype beside them."""
        out: dict[str, Any] = {"score": _plain(self.score)}
        for name in ("point", "partner"):
            tensor = getattr(self, name)
            if tensor is not None:
                out[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "values": _plain(tensor.tolist())}
        for name in ("coordinate", "direction_seed"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Witness:
        """Rebuild a witness from `to_dict`."""
        import torch

        known = {name: data[name] for name in ("coordinate", "direction_seed") if name in data}
        for name in ("point", "partner"):
            if name in data:
                known[name] = torch.tensor(_number(data[name]["values"]), dtype=getattr(torch, data[name]["dtype"]))
        return cls(score=float(data["score"]), **known)


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it.

    `outcome` is `pass`, `fail`, `inconclusive`, or `measured` where no threshold was given. With a `tolerance`, a pass
    of `value <= threshold` certifies value < threshold + tolerance and a fail certifies value > threshold - tolerance.
    `log_e` is the natural logarithm of the e-value against the hypothesis that the decision rejects.
    """

    outcome: str
    claim: str
    estimate: Estimate
    threshold: float | None = None
    comparison: str | None = None
    tolerance: float = 0.0
    witness: Witness | None = None
    reproduce: str = ""
    subject: str = ""
    hint: str = ""
    log_e: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        out = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}
        out["estimate"] = self.estimate.to_dict()
        out["witness"] = self.witness.to_dict() if self.witness else None
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Rebuild a verdict from `to_dict`; unknown keys are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        for name in ("threshold", "tolerance", "log_e"):
            if name in known:
                known[name] = _number(known[name])
        known["estimate"] = Estimate.from_dict(data["estimate"])
        known["witness"] = Witness.from_dict(data["witness"]) if data.get("witness") else None
        return cls(**known)

    def __str__(self) -> str:
        return f"{self.outcome}: {self.claim}; {self.estimate}"


def literal(tensor: torch.Tensor) -> str:
    """Return a line of Python that builds `tensor`, dtype included."""
    text = repr(tensor.tolist()).replace("nan", "float('nan')").replace("inf", "float('inf')")
    return f"torch.tensor({text}, dtype={tensor.dtype})"


def _score(value: float) -> str:
    return repr(float(value)) if np.isfinite(value) else f"float('{float(value)}')"


def _short(value: float) -> str:
    return f"{value:.4g}"


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.10g}%"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _number(value: Any) -> Any:
    """Undo `_plain`: JSON has no infinity and no NaN, so they are written as strings."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    return float(value) if isinstance(value, str) else value
