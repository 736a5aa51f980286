"""From noise stability or sensitivity to spectral concentration: Lemma 1 in its true direction and the two tail bounds.

W^j is the squared mass of f at degree j and W^{>=k} the tail. Sources: Haris, Zhang & Yoshida 2026, Lemma 1 (the main
text prints the threshold with the wrong sign, its Appendix D has it right); spec A7-A10, B1, B2, B6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from modelprops.errors import ArgumentError
from modelprops.theory.resampling import Noise, correlation_of


def concentration_degree(delta: float, eps: float, noise: Noise) -> float:
    """Lemma 1: Stab >= (1 - delta) E f^2 puts at most `eps` of the mass at degrees >= T, T = log_lambda(1 - delta/eps).

    A theorem, sharp at integer T. The returned real T is positive and falls with delta: higher stability pushes the
    mass to lower degrees. Vacuous, hence an ArgumentError, unless 0 < delta < eps <= 1 and 0 < lambda < 1. Spec A8,
    B1, B2.
    """
    factor = _decay(noise)
    if not 0 < delta < eps <= 1:
        raise ArgumentError(f"delta={delta!r}, eps={eps!r}: the lemma is empty there. Give 0 < delta < eps <= 1.")
    return math.log1p(-delta / eps) / math.log(factor)


def stability_tail_bound(second_moment: float, stability: float, noise: Noise, degree: int) -> float:
    """SB: W^{>=k} <= (E f^2 - Stab) / (1 - lambda^k), in units of f^2. A bound for exact inputs. Spec A8.

    With estimates use `gap_tail_bound` on the paired mean of (f(x) - f(y))^2 / 2: subtracting separate means costs
    orders of magnitude in variance. Raises ArgumentError if stability exceeds the second moment.
    """
    if not stability <= second_moment:
        raise ArgumentError(
            f"stability={stability!r} exceeds E f^2={second_moment!r}, which no function has. Estimate the gap "
            "from pairs and give it to gap_tail_bound."
        )
    return gap_tail_bound(second_moment - stability, noise, degree)


def gap_tail_bound(gap: float, noise: Noise, degree: int) -> float:
    """SB from the gap E (f(x) - f(y))^2 / 2 = E f^2 - Stab: W^{>=k} <= gap / (1 - lambda^k). A bound for an exact gap.

    Monotone in `gap`, so an upper confidence limit of the gap gives one of the tail. Raises ArgumentError for gap < 0
    or degree < 1. Spec A8.
    """
    factor = _decay(noise, allow_zero=True)
    _require_degree(degree)
    if not gap >= 0:
        raise ArgumentError(f"gap={gap!r} is negative. A gap is half a mean squared difference.")
    # 1 - lambda^k = -expm1(k log lambda) keeps its digits as lambda -> 1.
    lost = 1.0 if factor == 0 else -math.expm1(degree * math.log(factor))
    return gap / lost


def sensitivity_tail_bound(total_influence: float, degree: int) -> float:
    """AB: W^{>=k} <= I[f] / k, in units of f^2. A bound (Markov on levels).

    Neither AB nor SB dominates: SB charges more for levels below k and less above; SB -> AB as lambda -> 1. Raises
    ArgumentError for I < 0 or degree < 1. Spec A9.
    """
    _require_degree(degree)
    if not total_influence >= 0:
        raise ArgumentError(f"total_influence={total_influence!r} is negative. It is a sum of influences.")
    return total_influence / degree


def friedgut_number(total_influence: float, eps: float, coordinates: int, constant: float = 1.0) -> FriedgutNumber:
    """Friedgut's junta size 2^{C I[f]/eps} of a +-1-valued f on uniform bits, and whether it says anything. Spec A10.

    The theorem holds for an absolute constant C that is larger than 1; with `constant` = 1 the value is the printed
    formula, not a theorem. It does not apply to real-valued outputs. Raises ArgumentError unless I >= 0, 0 < eps <= 1.
    """
    if not (total_influence >= 0 and 0 < eps <= 1 and constant > 0 and coordinates >= 1):
        raise ArgumentError(
            f"total_influence={total_influence!r}, eps={eps!r}, constant={constant!r}, coordinates={coordinates!r}: "
            "give I >= 0, 0 < eps <= 1, C > 0 and at least one coordinate."
        )
    exponent = constant * total_influence / eps
    return FriedgutNumber(2.0**exponent if exponent < 1024 else math.inf, coordinates)


@dataclass(frozen=True)
class FriedgutNumber:
    """A junta size `size` for a function of `coordinates` coordinates."""

    size: float
    coordinates: int

    @property
    def vacuous(self) -> bool:
        """True if size >= coordinates: every function depends on at most that many coordinates, so nothing is said."""
        return self.size >= self.coordinates

    def __str__(self) -> str:
        label = f"vacuous: only {self.coordinates} coordinates exist" if self.vacuous else f"of {self.coordinates}"
        return f"{self.size:.6g} coordinates ({label})"


def _decay(noise: Noise, allow_zero: bool = False) -> float:
    factor = correlation_of(noise)
    if not (0 < factor < 1 or (allow_zero and factor == 0)):
        raise ArgumentError(f"{noise} has correlation {factor!r}; tails need a correlation strictly between 0 and 1.")
    return factor


def _require_degree(degree: int) -> None:
    if degree < 1:
        raise ArgumentError(f"degree={degree} has no tail bound. Give a degree of at least 1.")
