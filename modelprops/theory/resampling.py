"""Noise as a type: which perturbation was drawn, and the one number (lambda) every spectral formula may use.

The paper writes "keep with probability (1 + rho)/2, else resample uniformly". Its pairs have correlation (1 + rho)/2
per coordinate, not rho, so rho^k weights are wrong for them and a tail "bound" made from rho is not one. Formulas of
this package therefore take a noise object and read `.correlation`; a bare number is refused. Source: spec A3, A4, B3.
"""

from __future__ import annotations

from dataclasses import dataclass

from modelprops.errors import ArgumentError


def correlation_of(noise: Noise) -> float:
    """lambda of `noise`, as in Stab = sum_j lambda^j W^j. Raises ArgumentError for a bare number."""
    if not isinstance(noise, Resampling | GaussianNoise):
        raise ArgumentError(
            f"noise={noise!r} does not say which noise was drawn. Give Resampling(keep=...), "
            "Resampling.from_paper(rho), Resampling.from_flip(p) or GaussianNoise(rho)."
        )
    return noise.correlation


@dataclass(frozen=True)
class GaussianNoise:
    """Y = rho X + sqrt(1 - rho^2) Z with X, Z ~ N(0, I): correlation `rho` in [-1, 1]. Spec A1."""

    rho: float

    def __post_init__(self) -> None:
        if not -1 <= self.rho <= 1:
            raise ArgumentError(f"rho={self.rho!r} is not a correlation. Give a number in [-1, 1].")

    @property
    def correlation(self) -> float:
        return self.rho


@dataclass(frozen=True)
class Resampling:
    """Each coordinate is kept with probability `keep`, else drawn afresh from its own law (it may draw the old value).

    lambda = keep for every alphabet and every product law. The constructors turn other descriptions of the same noise
    into this one. Raises ArgumentError unless keep is in [0, 1]. Spec A4, B3.
    """

    keep: float

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise ArgumentError(f"keep={self.keep!r} is not a probability. Give a number in [0, 1].")

    @classmethod
    def from_rho(cls, rho: float) -> Resampling:
        """The textbook pair of correlation `rho`: keep = rho. Spec A3."""
        return cls(keep=rho)

    @classmethod
    def from_paper(cls, rho: float) -> Resampling:
        """The paper's sampler: keep = (1 + rho)/2, else uniform. Its rho = .25 means keep .625. Spec B3."""
        _require_setting(rho)
        return cls(keep=(1 + rho) / 2)

    @classmethod
    def from_flip(cls, probability: float) -> Resampling:
        """Signs flipped with `probability` p <= 1/2: in law keep = 1 - 2p. Raises ArgumentError above 1/2."""
        if not 0 <= probability <= 0.5:
            raise ArgumentError(
                f"probability={probability!r}: flipping more often than half is negative correlation. "
                "Give p in [0, 1/2]."
            )
        return cls(keep=1 - 2 * probability)

    @classmethod
    def from_other(cls, probability: float, alphabet: int) -> Resampling:
        """Token replaced with `probability` p by a uniform other one of `alphabet` U tokens: keep = 1 - p U/(U - 1).

        Equal in law for the uniform measure only. Raises ArgumentError if U < 2 or the correlation is negative. Spec
        B3.
        """
        _require_alphabet(alphabet)
        most = (alphabet - 1) / alphabet
        if not 0 <= probability <= most:
            raise ArgumentError(
                f"probability={probability!r} with {alphabet} tokens is negative correlation. Give p in [0, {most:g}]."
            )
        return cls(keep=max(0.0, 1 - probability / most))

    @classmethod
    def from_paper_other(cls, rho: float, alphabet: int) -> Resampling:
        """Keep with (1 + rho)/2, else one of the U - 1 others: lambda = (U (1 + rho)/2 - 1)/(U - 1). Spec B3."""
        _require_setting(rho)
        return cls.from_other((1 - rho) / 2, alphabet)

    @property
    def correlation(self) -> float:
        """lambda, the factor per level: Stab = sum_j lambda^j W^j."""
        return self.keep

    def agreement(self, alphabet: int) -> float:
        """P(Y_i = X_i) = keep + (1 - keep)/U under the uniform law on `alphabet` U tokens. Exact. Spec B3."""
        _require_alphabet(alphabet)
        return self.keep + (1 - self.keep) / alphabet


Noise = Resampling | GaussianNoise


def _require_setting(rho: float) -> None:
    if not -1 <= rho <= 1:
        raise ArgumentError(f"rho={rho!r} is outside the paper's range. Give a number in [-1, 1].")


def _require_alphabet(alphabet: int) -> None:
    if alphabet < 2:
        raise ArgumentError(f"alphabet={alphabet} has no other token. Give at least 2.")
