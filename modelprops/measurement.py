"""A measurement as it is stored: the estimate, the units it came from, and what it takes to draw them again.

Imports no torch until a subject is looked at.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from modelprops.estimate import Array, Estimate
from modelprops.settings import Run, current, defaults, running

if TYPE_CHECKING:
    from modelprops.properties.measure import Measured
    from modelprops.subject import Subject


MOST_UNIT_VALUES = 2**22
"""Units beyond this many numbers are not kept; such a measurement is compared unpaired."""


@dataclass(frozen=True)
class Measurement:
    """One estimate with what it takes to repeat it.

    `parameters` are the measure's keyword arguments; those that are no JSON (a loss function) are named in `opaque`.
    `subject` holds name, fingerprint (hash of the weights), dtype, device, attention kernel, and whether it was the
    fixture `subject`. `sizes` are the chunk sizes in drawing order and `units` (units, components) their values; an
    exact measurement has none, and neither has one too large to store. `limits` is the range of one unit where the
    measure is a plain mean of units.
    """

    test: str
    measure: str
    version: int
    parameters: Mapping[str, Any]
    opaque: tuple[str, ...]
    subject: Mapping[str, Any]
    domain: str
    coordinates: int
    readout: str
    sizes: tuple[int, ...]
    limits: tuple[float, float] | None
    estimate: Estimate
    units: Array | None = None

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.parameters.items())
        shown = ", ".join(filter(None, [shown, *(f"{key}=..." for key in self.opaque)]))
        return f"{self.measure}({shown})" if shown else self.measure

    @property
    def scalar(self) -> bool:
        """Whether the measure is one number; only those are gated."""
        return not isinstance(self.estimate.value, np.ndarray)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, without the units."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "units"}
        return {
            **out,
            "parameters": dict(self.parameters),
            "subject": dict(self.subject),
            "opaque": list(self.opaque),
            "sizes": list(self.sizes),
            "limits": None if self.limits is None else [str(edge) for edge in self.limits],
            "estimate": self.estimate.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], units: Array | None) -> Measurement:
        """Rebuild a measurement; raises `KeyError`, `TypeError` or `ValueError` where the data are none."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name != "units"}
        known["estimate"] = Estimate.from_dict(data["estimate"])
        known["opaque"], known["sizes"] = tuple(data["opaque"]), tuple(map(int, data["sizes"]))
        known["limits"] = None if data["limits"] is None else (float(data["limits"][0]), float(data["limits"][1]))
        if units is not None and (units.ndim != 2 or len(units) != sum(known["sizes"])):
            raise ValueError("the units do not fit the chunk sizes")
        if not isinstance(known["parameters"], dict) or not isinstance(known["subject"], dict):
            raise TypeError("parameters and subject are objects")
        return cls(**known, units=units)

    def packed(self) -> dict[str, Any]:
        """Return JSON types with the units in them: what travels from an xdist worker on a test's report."""
        if self.units is None:
            return {"measurement": self.to_dict(), "units": None}
        return {"measurement": self.to_dict(), "units": base64.b64encode(compressed({"u": self.units})).decode()}

    @classmethod
    def unpacked(cls, data: Mapping[str, Any]) -> Measurement:
        """The inverse of `packed`."""
        units = None if data["units"] is None else arrays_of(base64.b64decode(data["units"]))["u"]
        return cls.from_dict(data["measurement"], units)


@contextmanager
def measured() -> Iterator[list[Measurement]]:
    """Collect what is measured inside the block: `with mp.measured() as kept: ...; mp.save_baseline("v1", kept)`."""
    kept: list[Measurement] = []
    outer = current()
    run = Run(outer.settings if outer else defaults(), outer.node if outer else "")

    def keep(found: Measured) -> None:
        kept.append(measurement_of(found))
        if outer is not None and outer.measured is not None:
            outer.measured(found)

    run.measured = keep
    with running(run):
        yield kept
    if outer is not None:
        outer.verdicts.extend(run.verdicts)


def measurement_of(found: Measured, test: str = "", *, fixture: bool = False) -> Measurement:
    """Turn a measurement made just now into a stored one; `fixture`: its subject was the fixture `subject`."""
    plan, subject, sample = found.plan, found.subject, found.sample
    literals = {name: value for name, value in plan.parameters.items() if _is_json(value)}
    units, limits = None, None
    if sample is not None and plan.design is not None:
        columns = len(plan.design.ranges)
        units = sample.values[:, :columns] if sample.units * columns <= MOST_UNIT_VALUES else None
        limits = plan.design.ranges[0] if columns == 1 and plan.design.combine is None else None
    return Measurement(
        test=test,
        measure=found.measure.name,
        version=found.measure.version,
        parameters=json.loads(json.dumps(literals)),
        opaque=tuple(sorted(set(plan.parameters) - set(literals))),
        subject={**facts(subject), "fixture": fixture},
        domain=domain_text(subject.domain),
        coordinates=int(subject.domain.coordinates),
        readout=readout_text(subject),
        sizes=() if sample is None else tuple(len(chunk.values) for chunk in sample.chunks),
        limits=limits,
        estimate=found.estimate,
        units=units,
    )


_FACTS: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def facts(subject: Subject) -> dict[str, Any]:
    """Return name, fingerprint, dtype, device and attention kernel of a subject; None where it has no weights."""
    import torch

    known = _FACTS.get(subject)
    if known is not None:
        return known
    module = subject._callable
    found: dict[str, Any] = {"name": subject.name, "fingerprint": None, "dtype": None, "device": None, "kernel": None}
    if isinstance(module, torch.nn.Module):
        floating = [t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()]
        if floating:
            kinds = sorted({str(t.dtype).removeprefix("torch.") for t in floating})
            found |= {"dtype": "+".join(kinds), "device": floating[0].device.type}
        found |= {"fingerprint": fingerprint(module), "kernel": _kernel(module)}
    _FACTS[subject] = found
    return found


def fingerprint(module: Any) -> str:
    """Return a hash of names, shapes, dtypes and bytes of all weights and buffers: equal for equal functions."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    seen = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in sorted(seen, key=lambda pair: pair[0]):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def domain_text(domain: Any) -> str:
    """Return a domain's repr, the same in every process; tensors that the repr leaves out are hashed into it."""
    import torch

    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(domain))
    hidden = [field.name for field in fields(domain) if not field.repr] if is_dataclass(domain) else []
    for name in hidden:
        value = getattr(domain, name)
        if isinstance(value, torch.Tensor):
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            text += f" {name} {hashlib.blake2b(content, digest_size=8).hexdigest()}"
    return text


def readout_text(subject: Subject) -> str:
    """Return the readout's name, number of outputs and range; a frozen token is named by its id."""
    outputs = subject.outputs
    low, high = subject.readout.range
    return f"{subject.readout.name}, {outputs} output{'s' * (outputs > 1)} in [{low:.10g}, {high:.10g}]"


def _kernel(module: Any) -> str | None:
    kernel = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return None if kernel is None else str(kernel)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def compressed(arrays: Mapping[str, Array]) -> bytes:
    """An .npz whose bytes depend on the values alone: zip members would carry the time of writing."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            member = io.BytesIO()
            np.save(member, np.ascontiguousarray(array, dtype=np.float64), allow_pickle=False)
            info = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def arrays_of(content: bytes) -> dict[str, Array]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {key: np.asarray(archive[key], dtype=np.float64) for key in archive.files}
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"side file: {error}") from None
