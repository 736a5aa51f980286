"""LayerNorm blowup: by how much the normalisation layers can magnify a change of their input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from modelprops.domains import generator_of
from modelprops.errors import ArgumentError, ModelpropsError
from modelprops.estimate import Array, Verdict, Witness
from modelprops.inference.intervals import order_statistic_ranks
from modelprops.inference.sequential import Box
from modelprops.properties.claim import claim
from modelprops.properties.measure import Exact, Goal, Options, Plan, Solved, measure
from modelprops.properties.tables import is_enumerable
from modelprops.seeds import derive
from modelprops.subject import Subject

REPORTED_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_FIRST_CHUNK = 256
_CHUNKS_AT_MOST = 40


@measure(version=1)
def layernorm_blowup(
    subject: Subject, *, quantile: float = 0.5, gain: bool = False, exclude: str | None = None
) -> Plan:
    """Quantile over x of Blowup(x) = prod_k tau_k(x), tau_k(x) = max over positions w of (1 + N_w), for every norm k.

    N = 1 / sqrt(var + eps) of the vector that is normalised, with the population variance and the module's own eps;
    for an RMSNorm the mean square stands in for the variance. `gain=True`: N max|gamma| instead of N, since a trained
    gain can hide a blowup. Norms are found by type: `LayerNorm`, `RMSNorm`, Hugging Face's `*RMSNorm` and
    `*LayerNorm`; one that is called twice counts twice. `exclude`: a regular expression of module names left out.

    `details`: `quantiles` (value, low, high at several levels), `mean`, `mean_square` (E Blowup^2, spec A.9) with
    their standard errors, `max`, and `layers` (median and maximum of tau_k). Blowup is heavy-tailed, so the mean is a
    plain estimate with standard error.

    Guarantee: exact by enumeration; else a confidence bound by order statistics (binomial), valid at every look. The
    unit is one input. Raises `ArgumentError` where there is no norm, `ModelpropsError` where a norm's hook did not
    fire, so that no layer is silently left out.

    Source: Hahn and Rofin 2024, spec A.4.
    """
    if not isinstance(quantile, (int, float)) or not 0 < quantile < 1:
        raise ArgumentError(f"quantile={quantile!r} is not between 0 and 1; 0.5 is the median")
    norms = norms_of(subject.module, exclude)
    if not norms:
        raise ArgumentError(
            f"{subject.name} has no LayerNorm or RMSNorm (exclude={exclude!r}), so its blowup is 1 by definition"
        )

    def factors(points: torch.Tensor) -> Mapping[str, Array]:
        return magnification(subject, points, norms, gain=gain)

    def solve(options: Options, goal: Goal | None) -> Solved:
        return _sampled(subject, factors, float(quantile), options, goal)

    def exact() -> Exact:
        points = subject.domain.exhaustive()  # type: ignore[attr-defined]  # enumerable implies it
        sample = _Blowups([points], [factors(points)])
        values = sample.values
        worst, least = sample.extremes()
        details = {**sample.moments(exact=True), "layers": sample.layers()}
        details["quantiles"] = {str(q): [_at(np.sort(values), q)] * 3 for q in REPORTED_QUANTILES}
        return Exact(_at(np.sort(values), float(quantile)), len(points), worst, least, details)

    count = is_enumerable(subject.domain)
    return Plan(
        exact=exact if count else None,
        exact_evaluations=count,
        solve=solve,
        hint="details['layers'] says which norm magnifies most; at the point above it is worst",
    )


def assert_blowup_below(
    subject: Any,
    at_most: float,
    *,
    quantile: float = 0.99,
    tolerance: float | None = None,
    gain: bool = False,
    exclude: str | None = None,
    **options: Any,
) -> Verdict:
    """Require that Blowup(x) <= `at_most` for a share `quantile` of the inputs.

    Returns the `Verdict`; raises `PropertyViolation` with the worst input, `Inconclusive` when the budget is spent.
    `options`: domain, confidence, budget, seed. See `layernorm_blowup` for the quantity.
    """
    __tracebackhide__ = True
    changed = {"gain": (gain, False), "exclude": (exclude, None)}
    parameters = {name: value for name, (value, default) in changed.items() if value != default}
    return claim(layernorm_blowup, "<=", at_most, tolerance=tolerance, quantile=quantile, **parameters).require(
        subject, **options
    )


def norms_of(module: torch.nn.Module, exclude: str | None = None) -> dict[str, torch.nn.Module]:
    """Return every normalisation layer over features by its name in the module, each once."""
    try:
        pattern = re.compile(exclude) if exclude else None
    except re.error as error:
        raise ArgumentError(f"exclude={exclude!r} is not a regular expression: {error}") from None
    return {
        name: submodule
        for name, submodule in module.named_modules()
        if _is_norm(submodule) and not (pattern and pattern.search(name))
    }


def magnification(
    subject: Subject, points: torch.Tensor, norms: Mapping[str, torch.nn.Module], *, gain: bool = False
) -> dict[str, Array]:
    """Return tau_k(x) = max_w (1 + N_w) of every norm's every call, each an array (points,).

    A call's name is the norm's, with `#2`, `#3` for further calls in one forward pass.
    """
    subject.probe()  # its own passes are not to be recorded
    axes = _batch_axes(subject, points, norms)
    with _recording(subject.module, norms, gain) as recorder:
        subject.read(points)
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in axes}
    for batch in recorder.passes:
        if list(batch) != list(axes):
            raise ModelpropsError(
                f"{subject.name} called other norms in one batch than in another, so it has no fixed depth; exclude= "
                f"those that vary: {', '.join(sorted(set(batch) ^ set(axes))) or 'their order'}"
            )
        for name, factor in batch.items():
            columns[name].append(_by_input(factor, axes[name], recorder.inputs(batch, axes)))
    return {name: torch.cat(parts).numpy() for name, parts in columns.items()}


def _is_norm(module: torch.nn.Module) -> bool:
    name = type(module).__name__
    if isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
        return True
    return name.endswith(("RMSNorm", "LayerNorm")) and _epsilon(module) is not None


def _epsilon(module: torch.nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value = getattr(module, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _is_root_mean_square(module: torch.nn.Module) -> bool:
    return type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))


def normalising_factor(module: torch.nn.Module, value: torch.Tensor, *, gain: bool = False) -> torch.Tensor:
    """Return N (times max|gamma| if `gain`) for every vector that `module` normalises, float64."""
    shape = getattr(module, "normalized_shape", None)
    dimensions = tuple(range(-len(shape), 0)) if isinstance(shape, (tuple, list)) else (-1,)
    epsilon = _epsilon(module)
    epsilon = torch.finfo(value.dtype).eps if epsilon is None else epsilon  # torch.nn.RMSNorm(eps=None)
    wide = value.detach().double()
    centred = not _is_root_mean_square(module)
    spread = wide.var(dimensions, correction=0) if centred else wide.square().mean(dimensions)
    factor = (spread + epsilon).rsqrt()
    weight = getattr(module, "weight", None)
    if gain and isinstance(weight, torch.Tensor):
        gamma = weight.detach().double()
        if "Gemma" in type(module).__name__:
            gamma = 1 + gamma  # Gemma stores the gain minus one
        factor = factor * gamma.abs().max()
    return factor.cpu()


@dataclass
class _Recorder:
    """The factors of each norm's call, one mapping for each finished forward pass."""

    passes: list[dict[str, torch.Tensor]] = field(default_factory=list)
    pending: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, factor: torch.Tensor) -> None:
        calls = sum(key == name or key.startswith(f"{name}#") for key in self.pending)
        self.pending[name if not calls else f"{name}#{calls + 1}"] = factor

    def inputs(self, batch: Mapping[str, torch.Tensor], axes: Mapping[str, tuple[int, int]]) -> int:
        """How many inputs a pass had, read off its first norm."""
        name = next(iter(axes))
        axis, each = axes[name]
        return int(batch[name].shape[axis]) // each


@contextmanager
def _recording(module: torch.nn.Module, norms: Mapping[str, torch.nn.Module], gain: bool) -> Iterator[_Recorder]:
    """Hook the norms for the body; hooks also keep the fused encoder layer, which would skip them, from being used."""
    recorder = _Recorder()

    def begin(*_: Any) -> None:
        recorder.pending = {}

    def finish(*_: Any) -> None:
        silent = [name for name in norms if name not in recorder.pending]
        if silent:
            raise ModelpropsError(
                f"the forward pass did not call {', '.join(repr(name) for name in silent[:3])}, so the blowup would "
                "silently leave it out; exclude= it if the model does not use it"
            )
        recorder.passes.append(recorder.pending)

    def watch(name: str) -> Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(norm: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            value = arguments[0] if arguments else next(iter(keywords.values()))
            recorder.add(name, 1.0 + normalising_factor(norm, value, gain=gain))

        return hook

    fused = torch.backends.mha.get_fastpath_enabled()
    handles = [module.register_forward_pre_hook(begin)]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        handles += [norm.register_forward_pre_hook(watch(name), with_kwargs=True) for name, norm in norms.items()]
        handles.append(module.register_forward_hook(finish))
        yield recorder
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for handle in handles:
            handle.remove()


def _batch_axes(
    subject: Subject, points: torch.Tensor, norms: Mapping[str, torch.nn.Module]
) -> dict[str, tuple[int, int]]:
    """Where each call has the batch, and how many rows an input takes there: the axis that grows from 1 to 2 inputs.

    Guessing by size would mistake positions for inputs where the two numbers agree.
    """
    with _recording(subject.module, norms, False) as one:
        subject.differentiable(points[:1], {})
    with _recording(subject.module, norms, False) as two:
        subject.differentiable(points[:1].repeat(2, *[1] * (points.ndim - 1)), {})
    axes = {}
    for name, factor in one.passes[0].items():
        double = two.passes[0].get(name, factor)
        grown = [axis for axis in range(factor.ndim) if double.shape[axis] == 2 * factor.shape[axis]]
        if double.ndim != factor.ndim or len(grown) != 1:
            raise ModelpropsError(
                f"the norm {name!r} sees {tuple(factor.shape)} vectors for one input and {tuple(double.shape)} for "
                "two; it must normalise each input by itself, exclude= it otherwise"
            )
        axes[name] = (grown[0], factor.shape[grown[0]])
    return axes


def _by_input(factor: torch.Tensor, axis: tuple[int, int], count: int) -> torch.Tensor:
    return factor.movedim(axis[0], 0).reshape(count, -1).amax(1)


@dataclass
class _Blowups:
    """tau by call for the inputs seen so far."""

    points: list[torch.Tensor] = field(default_factory=list)
    factors: list[Mapping[str, Array]] = field(default_factory=list)

    @property
    def values(self) -> Array:
        """Blowup(x), in drawing order."""
        return np.concatenate([np.prod(np.stack(list(part.values())), axis=0) for part in self.factors])

    def extremes(self) -> tuple[Witness, Witness]:
        """The inputs with the largest and the smallest blowup."""
        values, points = self.values, torch.cat(self.points)
        high, low = int(values.argmax()), int(values.argmin())
        return (
            Witness(point=points[high], score=float(values[high])),
            Witness(point=points[low], score=float(values[low])),
        )

    def moments(self, *, exact: bool = False) -> dict[str, float]:
        """Mean of Blowup and of its square with standard errors, and the maximum."""
        values = self.values
        found = {"max": float(values.max())}
        for name, column in (("mean", values), ("mean_square", values**2)):
            found[name] = float(column.mean())
            error = float(column.std(ddof=1) / np.sqrt(len(column))) if len(column) > 1 else float("inf")
            found[f"{name}_standard_error"] = 0.0 if exact else error
        return found

    def layers(self) -> dict[str, dict[str, float]]:
        """Median and maximum of tau for every call of a norm."""
        columns = {name: np.concatenate([part[name] for part in self.factors]) for name in self.factors[0]}
        return {name: {"median": float(np.median(tau)), "max": float(tau.max())} for name, tau in columns.items()}


def _sampled(
    subject: Subject,
    factors: Callable[[torch.Tensor], Mapping[str, Array]],
    quantile: float,
    options: Options,
    goal: Goal | None,
) -> Solved:
    sample = _Blowups()
    spent, look = 0, 0
    while True:
        size = min(max(_FIRST_CHUNK, spent // 2), options.budget - spent)
        points = subject.domain.sample(size, generator_of(derive(options.seed, look)))
        sample.points.append(points)
        sample.factors.append(factors(points))
        spent, look = spent + size, look + 1
        ordered = np.sort(sample.values)
        # The error rate is spread over the looks, sum 1/(j(j+1)) = 1, so that stopping early costs nothing.
        box = _quantile_box(ordered, quantile, options.level / (look * (look + 1)))
        if spent >= options.budget or look >= _CHUNKS_AT_MOST or _is_enough(box, options, goal, spent):
            break
    highest, lowest = sample.extremes()
    quantiles = {}
    for q in REPORTED_QUANTILES:
        each = _quantile_box(ordered, q, options.level / (look * (look + 1)))
        quantiles[str(q)] = [float(each.value), float(each.low), float(each.high)]
    details = {**sample.moments(), "layers": sample.layers(), "quantiles": quantiles}
    method = "fixed" if goal is None else "sequential"
    return Solved(box, spent, spent, method, "confidence bound", details, highest, lowest)


def _is_enough(box: Box, options: Options, goal: Goal | None, spent: int) -> bool:
    if goal is not None:
        return goal.outcome(box) != "inconclusive"
    wanted = 0.1 * float(box.value) if options.width is None else options.width
    narrow = float(box.high) - float(box.low) <= wanted
    return narrow or (options.width is None and spent >= options.effort)


def _at(ordered: Array, quantile: float) -> float:
    """The least value with at least a share `quantile` of all at or below it."""
    return float(ordered[max(0, int(np.ceil(quantile * len(ordered) - 1e-9)) - 1)])


def _quantile_box(ordered: Array, quantile: float, level: float) -> Box:
    low, high = order_statistic_ranks(len(ordered), quantile, level)
    return Box(
        _at(ordered, quantile),
        float(ordered[low]) if low >= 0 else 1.0,
        float(ordered[high]) if high < len(ordered) else float("inf"),
    )
