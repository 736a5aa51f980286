"""Token sequences seen through the model's embedding layer, standardised so that the Gaussian measure applies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from modelprops.domains import _require_coordinate, _require_count, _require_rho
from modelprops.errors import ArgumentError, DomainError

NOISES = ("gaussian", "resample")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Standard Gaussian measure on (length, width) arrays z, fed to the model as embeddings e = m + L z per token.

    m and L L^T are the mean and covariance of the rows of the embedding table, so that e has the first two moments of
    the embedding of a uniformly random token. `to_points` (z = L^-1 (e - m)) and `to_embeddings` are inverse to each
    other; where the covariance is singular (a table with fewer rows than columns) `ridge` times its mean variance is
    added to it. This is how Gaussian-noise properties run on a language model.

    `noise="gaussian"`: coordinates are the length * width entries, partners are rho z + sqrt(1 - rho^2) z', degree is
    Hermite degree. `noise="resample"`: coordinates are the tokens, whole vectors are kept or redrawn, degree counts
    tokens.

    `model` is a Hugging Face model (its `get_input_embeddings()`), or any module with `layer` its `nn.Embedding`.
    Points reach the module as the keyword `feed` (`inputs_embeds`).

    Raises `ArgumentError` where no embedding layer is found, `DomainError` for an empty length.
    Source: Haris, Zhang and Yoshida 2026 (spec D0, Gaussian variant).
    """

    model: torch.nn.Module = field(repr=False)
    length: int = 32
    layer: torch.nn.Embedding | None = field(default=None, repr=False)
    noise: str = "gaussian"
    feed: str = "inputs_embeds"
    ridge: float = 1e-6
    product = True

    def __post_init__(self) -> None:
        _require_count("Embeddings", "length", self.length)
        if self.noise not in NOISES:
            raise ArgumentError(f"noise={self.noise!r} is unknown; use one of {', '.join(NOISES)}")
        weight = _table(self.model, self.layer)
        mean = weight.mean(0)
        centred = weight - mean
        covariance = centred.T @ centred / len(weight)
        scale = float(covariance.diagonal().mean())
        if not scale > 0:
            raise DomainError("the embedding table has no variance (all rows are equal); there is nothing to perturb")
        covariance += self.ridge * scale * torch.eye(len(covariance), dtype=weight.dtype)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "factor", torch.linalg.cholesky(covariance))

    @property
    def width(self) -> int:
        """Entries of one embedding."""
        return len(self._mean)

    @property
    def coordinates(self) -> int:
        """length * width for Gaussian noise, length where whole vectors are resampled."""
        return self.length * (self.width if self.noise == "gaussian" else 1)

    def sample(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Draw standard Gaussian points of shape (size, length, width)."""
        return torch.randn((size, self.length, self.width), generator=generator)

    def resample(self, points: torch.Tensor, coordinate: int, generator: torch.Generator) -> torch.Tensor:
        """Draw one entry (Gaussian noise) or one token's whole vector (resampling noise) afresh."""
        _require_coordinate(coordinate, self.coordinates)
        changed = points.clone()
        if self.noise == "gaussian":
            changed.view(len(points), -1)[:, coordinate] = torch.randn(len(points), generator=generator)
        else:
            changed[:, coordinate] = torch.randn((len(points), self.width), generator=generator)
        return changed

    def correlated(self, points: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """rho z + sqrt(1 - rho^2) z', or each token's vector kept with probability rho and else redrawn."""
        rho = _require_rho(rho, negative=self.noise == "gaussian")
        fresh = self.sample(len(points), generator)
        if self.noise == "gaussian":
            mixed: torch.Tensor = points * rho + fresh * math.sqrt(1.0 - rho * rho)
            return mixed
        kept = torch.rand(points.shape[:2], generator=generator) < rho
        return torch.where(kept[:, :, None], points, fresh)

    def to_embeddings(self, points: torch.Tensor) -> torch.Tensor:
        """e = m + L z, shape (batch, length, width), float64."""
        embedded: torch.Tensor = self._mean + points.double() @ self._factor.T
        return embedded

    def to_points(self, embeddings: torch.Tensor) -> torch.Tensor:
        """z = L^-1 (e - m), the inverse of `to_embeddings`."""
        centred = (embeddings.double() - self._mean).reshape(-1, self.width).T
        solved: torch.Tensor = torch.linalg.solve_triangular(self._factor, centred, upper=False)
        return solved.T.reshape(embeddings.shape)

    def tokens_to_points(self, ids: torch.Tensor) -> torch.Tensor:
        """Standardised embeddings of real sequences, (batch, length) -> (batch, length, width)."""
        return self.to_points(_table(self.model, self.layer)[ids])

    def encode(self, points: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the module is called with."""
        return {self.feed: self.to_embeddings(points).to(torch.float32)}

    @property
    def _mean(self) -> torch.Tensor:
        mean: torch.Tensor = self.__dict__["mean"]
        return mean

    @property
    def _factor(self) -> torch.Tensor:
        factor: torch.Tensor = self.__dict__["factor"]
        return factor


def _table(model: Any, layer: torch.nn.Embedding | None) -> torch.Tensor:
    found = layer
    if found is None and hasattr(model, "get_input_embeddings"):
        found = model.get_input_embeddings()
    weight = getattr(found, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        raise ArgumentError(
            f"{type(model).__name__} has no input embedding that can be found; give layer= its nn.Embedding"
        )
    return weight.detach().cpu().double()
