"""The small grammar of regression rules, and the change that a rule allows.

    rule   = measure [ "@" number ] ":" [ "mean" ] change
    change = ( "+" | "-" ) number [ "%" ]  |  "x" number

`measure` is a measure's name or its last word (`sensitivity` for `average_sensitivity`); `@0.9` picks the measurement
with a parameter of that value (rho, radius). The change is how much worse the mean may become: `+` a rise and `-` a
fall, by a number in units of the measure or by a percentage of the old value, `x1.5` to at most 1.5 times the old value
(and `x0.9` to no less than 0.9 times). So `sensitivity:mean+5%`, `stability@0.9:-0.02`, `sharpness:x1.5`. Imports no
torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from modelprops.errors import ArgumentError

DEFAULT_SHARE = 0.05
"""Without a rule, a measure may not worsen by more than this share of its old value."""

_FALLS = ("noise_stability",)
_RISES = (
    "average_sensitivity",
    "sharpness",
    "worst_sharpness",
    "curvature",
    "layernorm_blowup",
    "parameter_norm",
    "spectral_tail",
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Rule:
    """What may change: `sign` +1 bounds a rise, -1 a fall; by `amount`, or to `share` more (less) of the old value."""

    measure: str
    at: float | None
    sign: int
    amount: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        at = "" if self.at is None else f"@{self.at:.10g}"
        change = f"{100 * self.share:.10g}%" if self.share else f"{self.amount:.10g}"
        return f"{self.measure}{at}:{'+' if self.sign > 0 else '-'}{change}"

    def speaks_of(self, measure: str, parameters: Mapping[str, Any]) -> bool:
        """Whether the rule is about this measurement."""
        if measure != self.measure and not measure.endswith("_" + self.measure):
            return False
        return self.at is None or any(math.isclose(number, self.at, rel_tol=1e-9) for number in _numbers(parameters))

    def factor(self, old: float) -> float:
        """The f of the claim `new - f old <= amount` (`>= -amount` for a fall): 1 unless the rule is a percentage.

        A percentage is one of |old|, so for a negative old value the factor moves the other way.
        """
        return 1.0 + self.sign * math.copysign(self.share, old)

    def allowed(self, old: float) -> float:
        """The signed change from `old` that is still accepted."""
        return self.sign * (self.amount + self.share * abs(old))


def parse_rule(text: str) -> Rule:
    """Parse a rule; `ArgumentError` points at the character that does not fit."""
    measure = _match(_WORD, text, 0, "a rule starts with a measure's name")
    end, at = measure.end(), None
    if text[end : end + 1] == "@":
        number = _match(_NUMBER, text, end + 1, "a number is expected after @")
        at, end = float(number[0]), number.end()
    if text[end : end + 1] != ":":
        _refuse(text, end, "a colon is expected between the measure and its allowed change")
    end += 1
    if text.startswith("mean", end):
        end += 4
    kind = text[end : end + 1]
    if kind not in ("+", "-", "x"):
        _refuse(text, end, "the allowed change starts with +, - or x")
    size = _match(_SIZE, text, end + 1, "a number is expected here")
    value, last = float(size[0]), size.end()
    percent = kind != "x" and text[last : last + 1] == "%"
    last += percent
    if last != len(text):
        _refuse(text, last, "nothing may follow here")
    if not math.isfinite(value):
        _refuse(text, end + 1, "the number is too large")
    if kind == "x":
        if value <= 0:
            _refuse(text, end + 1, "a factor is positive")
        return Rule(measure[0], at, 1 if value >= 1 else -1, share=abs(value - 1))
    sign = 1 if kind == "+" else -1
    return Rule(measure[0], at, sign, share=value / 100) if percent else Rule(measure[0], at, sign, value)


def default_rules(measure: str, parameters: Mapping[str, Any] | None = None) -> tuple[Rule, ...]:
    """Return the rule in force where none is given: no worsening beyond 5% of the old value.

    It names the first number among `parameters`, so that its text picks this measurement again. Worse is higher, except
    for stability, where it is lower; a measure of your own may move neither way.
    """
    at = next(iter(_numbers(parameters or {})), None)
    rise, fall = (Rule(measure, at, sign, share=DEFAULT_SHARE) for sign in (1, -1))
    if measure in _FALLS:
        return (fall,)
    return (rise,) if measure in _RISES else (rise, fall)


def _numbers(parameters: Mapping[str, Any]) -> list[float]:
    return [float(v) for v in parameters.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]


def _match(pattern: re.Pattern[str], text: str, at: int, rule: str) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        _refuse(text, at, rule)
    return found


def _refuse(text: str, at: int, rule: str) -> NoReturn:
    raise ArgumentError(
        f'{rule}, as in "sensitivity:mean+5%", "stability@0.9:-0.02" or "sharpness:x1.5":\n  {text}\n  {" " * at}^'
    )
