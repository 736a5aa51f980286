"""What is known about a pair (U, V) of activations: second moment, gap, almost-sure norms; and what maps do to it.

U and V are exchangeable with one marginal (x and its noisy copy pushed through the same module), of shape (positions,
width). Totals run over both:

    q = E ||U||_F^2 = E ||V||_F^2        g = E ||U - V||_F^2 / 2 = q - E <U, V>  (so Stab = q - g)

Nothing else is assumed: no Gaussian law, no independence of positions. The functions of this module are theorems for
real arithmetic (rounding of the module's own forward is not covered). Source: spec A15, rules R1-R4, R8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from modelprops.errors import ArgumentError
from modelprops.theory.relu import relu_stability
from modelprops.theory.resampling import Resampling

Kind = Literal["sound", "gaussian", "heuristic"]
_WEAKER: dict[Kind, int] = {"sound": 0, "gaussian": 1, "heuristic": 2}


def affine(moments: Moments, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Moments:
    """Moments of W u + b per position, `weight` (out, in). Sound: R2, with singular values for both ends."""
    moments, weight, bias = folded(moments, weight, bias)
    values = torch.linalg.svdvals(weight)
    # The factor covers the rounding of the decomposition, so that the largest value is an upper bound.
    top = float(values[0]) * (1 + 1e-9)
    bottom = float(values[-1]) * (1 - 1e-9) if weight.shape[0] >= weight.shape[1] else 0.0
    return _stretched(moments, top, bottom, bias, width=weight.shape[0])


def scaled(moments: Moments, gain: torch.Tensor | None, bias: torch.Tensor | None = None) -> Moments:
    """Moments of gain * u + bias, elementwise, `gain` (width,). Sound: R2 for a diagonal."""
    if gain is None and bias is None:
        return moments
    size = torch.ones(moments.width, dtype=torch.float64) if gain is None else gain.detach().double()
    result = _stretched(moments, float(size.abs().max()), float(size.abs().min()), bias, width=moments.width)
    return replace(result, origin=(moments, size, None if bias is None else bias.detach().double()))


def folded(
    moments: Moments, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[Moments, torch.Tensor, torch.Tensor | None]:
    """(state, W', b') with W u + b = W' u' + b', u' of that state: undoes the gain and shift of `scaled`. Exact.

    ||W diag(gain)|| can be far below ||W|| max|gain|: trained normalisations damp the directions that W amplifies.
    """
    w = weight.detach().double()
    b = None if bias is None else bias.detach().double()
    if moments.origin is None:
        return moments, w, b
    before, gain, shift = moments.origin
    if shift is not None:
        b = w @ shift if b is None else w @ shift + b
    return replace(before, kind=weaker(before.kind, moments.kind)), w * gain, b


def pointwise(
    moments: Moments, *, lipschitz: float, at_zero: float = 0.0, slope: float | None = None, bound: float = math.inf
) -> Moments:
    """Moments of phi(u) for |phi(a) - phi(b)| <= lipschitz |a - b|, |phi(a)| <= at_zero + slope |a|, |phi| <= bound.

    Sound: R1. `slope` defaults to `lipschitz`. For phi >= 0 follow with `replace(..., nonnegative=True)`: then E <U,
    V> >= 0 and the gap is at most q (R4).
    """
    slope = lipschitz if slope is None else slope
    root_width, root_all = math.sqrt(moments.width), math.sqrt(moments.width * moments.positions)
    return Moments(
        q=Interval(0.0, min(at_zero * root_all + slope * math.sqrt(moments.q.high), bound * root_all) ** 2),
        g=Interval(0.0, lipschitz**2 * moments.g.high),
        positions=moments.positions,
        width=moments.width,
        norm=Interval(0.0, min(at_zero * root_width + slope * moments.norm.high, bound * root_width)),
        kind=moments.kind,
    )


def relu(moments: Moments, *, gaussian: bool = False) -> Moments:
    """Moments of relu(u). Sound: R4, 0 <= E <U, V> and q' <= q.

    With `gaussian` and a state whose `correlation` is known, R5: q' = q/2 and E <U, V> = q T(rho), exact for jointly
    Gaussian centred pairs and for no others, so the result is labelled "gaussian".
    """
    result = replace(pointwise(moments, lipschitz=1.0), nonnegative=True)
    if not gaussian or moments.correlation is None:
        return result
    share = 0.5 - relu_stability(moments.correlation)
    return replace(
        result,
        q=Interval(moments.q.low / 2, moments.q.high / 2),
        g=Interval(share * moments.q.low, share * moments.q.high),
        kind=weaker(moments.kind, "gaussian"),
    )


def normalised(moments: Moments, *, eps: float, centred: bool) -> Moments:
    """Moments of sqrt(d) u / sqrt(||u||^2 + d eps), u first centred if `centred` (LayerNorm, else RMSNorm). Sound: R8.

    With r <= ||u|| almost surely the map has Lipschitz constant sqrt(d)/sqrt(r^2 + d eps) on pairs, because ||a/|a| -
    b/|b| || <= ||a - b||/sqrt(|a||b|) for a = (u, sqrt(d eps)); and the output has norm at most sqrt(d) whatever u
    is.
    """
    size = moments.spread if centred else moments.norm
    root = math.sqrt(moments.width)
    floor = size.low**2 + moments.width * eps

    def length(radius: float) -> float:
        return root if math.isinf(radius) else root * radius / math.sqrt(max(radius**2 + moments.width * eps, 1e-300))

    lipschitz = math.inf if floor == 0 else root / math.sqrt(floor)
    norm = Interval(length(size.low), length(size.high))
    return Moments(
        q=Interval(0.0, math.inf),
        g=Interval(0.0, _product(lipschitz**2, moments.g.high)),
        positions=moments.positions,
        width=moments.width,
        norm=norm,
        spread=norm if centred else Interval(),
        kind=moments.kind,
    )


def added(left: Moments, right: Moments) -> Moments:
    """Moments of U + U' for two states computed from one input (a residual). Sound: R3, the L2 triangle both ways."""
    return Moments(
        q=_triangle(left.q, right.q),
        g=_triangle(left.g, right.g),
        positions=left.positions,
        width=left.width,
        norm=_sum(left.norm, right.norm),
        spread=_sum(left.spread, right.spread),
        nonnegative=left.nonnegative and right.nonnegative,
        kind=weaker(left.kind, right.kind),
    )


def weaker(left: Kind, right: Kind) -> Kind:
    """The weaker of two labels: sound, then gaussian, then heuristic."""
    return left if _WEAKER[left] >= _WEAKER[right] else right


@dataclass(frozen=True)
class Interval:
    """Closed interval [low, high] of a nonnegative quantity; by default it says nothing."""

    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ArgumentError(f"[{self.low!r}, {self.high!r}] is no interval. Give 0 <= low <= high.")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Moments:
    """Bounds on q and g of a pair, and almost sure ones per position on ||u|| (`norm`) and ||u - mean(u)|| (`spread`).

    `nonnegative`: every coordinate is >= 0. `correlation`: set only if (U, V) is jointly Gaussian, centred, with
    Cov(U, V) = rho Cov(U). `origin`: if u = gain * u' + shift is known, (moments of u', gain, shift). `kind`: the
    weakest rule used so far. Bounds that follow from others are applied on construction: q <= positions norm^2, g <=
    2 q, g <= q if nonnegative. Spec A15.
    """

    q: Interval
    g: Interval
    positions: int
    width: int
    norm: Interval = Interval()
    spread: Interval = Interval()
    nonnegative: bool = False
    correlation: float | None = None
    kind: Kind = "sound"
    origin: tuple[Moments, torch.Tensor, torch.Tensor | None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.positions < 1 or self.width < 1:
            raise ArgumentError(f"positions={self.positions}, width={self.width}: give at least 1 of each.")
        high = min(self.q.high, self.positions * self.norm.high**2)
        low = min(high, max(self.q.low, self.positions * self.norm.low**2))
        gap = min(self.g.high, high if self.nonnegative else 2 * high)
        object.__setattr__(self, "q", Interval(low, high))
        object.__setattr__(self, "g", Interval(min(self.g.low, gap), gap))
        object.__setattr__(self, "spread", Interval(self.spread.low, max(self.spread.low, self._spread_high())))

    @classmethod
    def gaussian(cls, positions: int, width: int, rho: float) -> Moments:
        """X ~ N(0, I) and Y at correlation `rho` in [-1, 1]: q = n d, g = (1 - rho) n d. Exact."""
        size = float(positions * width)
        gap = (1 - rho) * size
        return cls(Interval(size, size), Interval(gap, gap), positions, width, correlation=rho)

    @classmethod
    def signs(cls, width: int, noise: Resampling) -> Moments:
        """Uniform signs of one vector, partly redrawn: q = d, g = (1 - lambda) d, ||u|| = sqrt(d). Exact."""
        gap = (1 - noise.correlation) * width
        radius = math.sqrt(width)
        return cls(Interval(width, width), Interval(gap, gap), 1, width, norm=Interval(radius, radius))

    @classmethod
    def of_tokens(cls, table: torch.Tensor, noise: Resampling, positions: int) -> Moments:
        """Embeddings of iid uniform tokens, `table` (vocabulary, width). Exact.

        q = n E ||e||^2 and g = n (1 - lambda)(E ||e||^2 - ||E e||^2); norms range over the rows of the table.
        """
        rows = table.detach().double()
        norms, mean = rows.norm(dim=1), rows.mean(0)
        spreads = (rows - rows.mean(1, keepdim=True)).norm(dim=1)
        square = float((norms**2).mean())
        size = positions * square
        gap = positions * (1 - noise.correlation) * max(0.0, square - float(mean @ mean))
        return cls(
            Interval(size, size),
            Interval(gap, gap),
            positions,
            rows.shape[1],
            norm=Interval(float(norms.min()), float(norms.max())),
            spread=Interval(float(spreads.min()), float(spreads.max())),
        )

    @classmethod
    def of_pairs(cls, x: torch.Tensor, y: torch.Tensor) -> Moments:
        """The empirical law of pairs `x`, `y` (pairs, positions, width) or (pairs, width), made exchangeable.

        Exact for the sample: bounds that follow hold for the outputs of these very pairs, not for their population.
        Raises ArgumentError for other shapes.
        """
        if x.shape != y.shape or x.ndim not in (2, 3) or len(x) == 0:
            raise ArgumentError(
                f"x {tuple(x.shape)}, y {tuple(y.shape)}: give two (pairs, positions, width) of one shape."
            )
        both = torch.stack([x, y]).detach().double().reshape(2, len(x), -1, x.shape[-1])
        norms = both.norm(dim=-1)
        spreads = (both - both.mean(-1, keepdim=True)).norm(dim=-1)
        size = float((both**2).sum() / (2 * len(x)))
        gap = float(((both[0] - both[1]) ** 2).sum() / (2 * len(x)))
        return cls(
            Interval(size, size),
            Interval(gap, gap),
            both.shape[2],
            both.shape[3],
            norm=Interval(float(norms.min()), float(norms.max())),
            spread=Interval(float(spreads.min()), float(spreads.max())),
        )

    @property
    def stability(self) -> tuple[float, float]:
        """Bounds on Stab = E <U, V> = q - g, which is at least -q, and at least 0 for nonnegative outputs."""
        floor = 0.0 if self.nonnegative else -self.q.high
        return max(floor, self.q.low - self.g.high), self.q.high - self.g.low

    def _spread_high(self) -> float:
        return min(self.spread.high, self.norm.high)


def _stretched(moments: Moments, top: float, bottom: float, bias: torch.Tensor | None, width: int) -> Moments:
    shift = 0.0 if bias is None else float(bias.detach().double().norm())
    shift_all = shift * math.sqrt(moments.positions)
    q_low, q_high = math.sqrt(moments.q.low), math.sqrt(moments.q.high)
    return Moments(
        q=Interval(max(0.0, bottom * q_low - shift_all) ** 2, (_product(top, q_high) + shift_all) ** 2),
        g=Interval(bottom**2 * moments.g.low, _product(top**2, moments.g.high)),
        positions=moments.positions,
        width=width,
        norm=Interval(max(0.0, bottom * moments.norm.low - shift), _product(top, moments.norm.high) + shift),
        correlation=moments.correlation if shift == 0 else None,
        kind=moments.kind,
    )


def _triangle(left: Interval, right: Interval) -> Interval:
    roots = _sum(*(Interval(math.sqrt(side.low), math.sqrt(side.high)) for side in (left, right)))
    return Interval(roots.low**2, roots.high**2)


def _sum(left: Interval, right: Interval) -> Interval:
    low = max(0.0, left.low - right.high, right.low - left.high)
    return Interval(low, left.high + right.high)


def _product(left: float, right: float) -> float:
    return 0.0 if left == 0 or right == 0 else left * right
