"""The f of a language model: whether the score that the paper leaves open is above its median (f = +1 or -1).

The paper does not say what f is. The probability of one fixed token, the plain reading, is about 1e-6 on uniform
tokens: of its range [0, 1] it uses a millionth, and bounds that hold for every function of that range say nothing. So
f(x) = sign(score(x) - median), where the score is the model's own readout. Its variance is about 1, the greatest that
its range allows, whatever the scale of the score; it needs no temperature or clipping level that could be tuned; and it
is Boolean-valued, which is what the paper's sensitivity and Friedgut's theorem speak of. The price: a threshold adds
weight at high degree. The choice was fixed before any table was computed with it.

- A causal model's score is the probability of the token that is likeliest after one reference input.
- An encoder's score is the inner product of the embedding with that of one reference input.

Reference input and median come from `REFERENCES` inputs of a seed of their own, so that f is the same for every seed
of the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from modelprops.domains import Tokens, generator_of
from modelprops.prefix import read_neighbours
from modelprops.readouts import Reading
from modelprops.seeds import derive
from modelprops.subject import Subject

REFERENCES = 65
"""The first is the reference input, the median is that of the others."""


@dataclass(frozen=True)
class Remembered:
    """The values of a subject on tokens, each input computed once: several f of one model share their forward passes.

    A batch of one input followed by all its neighbours, in order, is computed with the shared prefix where the model
    allows it.
    """

    subject: Subject
    known: dict[bytes, torch.Tensor] = field(default_factory=dict, repr=False)

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """Values (batch,) or (batch, outputs) of points (batch, length)."""
        keys = [row.tobytes() for row in points.numpy()]
        missing = {key: row for row, key in enumerate(keys) if key not in self.known}
        if missing:
            wanted = points if self._is_neighbourhood(points) else points[list(missing.values())]
            for row, value in zip(wanted.numpy(), self._values(wanted), strict=True):
                self.known.setdefault(row.tobytes(), value)
        return torch.stack([self.known[key] for key in keys])

    def _values(self, points: torch.Tensor) -> torch.Tensor:
        if not self._is_neighbourhood(points):
            return self.subject(points)
        places = torch.arange(len(points) - 1)[None]
        return read_neighbours(self.subject, points[:1], points[None, 1:], places).values

    def _is_neighbourhood(self, points: torch.Tensor) -> bool:
        domain = self.subject.domain
        assert isinstance(domain, Tokens)
        if len(points) != 1 + domain.coordinates:
            return False
        differs = points[1:] != points[:1]
        differs[torch.arange(domain.coordinates), domain.free] = False
        return not bool(differs.any())


def functions_of(subject: Subject) -> dict[str, Subject]:
    """The median split of a subject on tokens and the subject's own readout, by name, on shared forward passes."""
    known = Remembered(subject)
    points = subject.domain.sample(REFERENCES, generator_of(derive(0, "reference inputs")))
    values = known(points)
    anchor = values[0]

    def score(inputs: torch.Tensor) -> torch.Tensor:
        found = known(inputs)
        return found if found.ndim == 1 else found @ anchor

    median = score(points[1:]).median()
    batch = 1 + subject.domain.coordinates
    own = replace(subject.readout, read=Reading, last_only=False, frozen_token=False)
    scored = subject.readout.name if values.ndim == 1 else f"{subject.readout.name} . reference"
    return {
        f"sign({scored} - median)": Subject(
            lambda inputs: score(inputs) - median, subject.domain, "sign", name=subject.name, batch_size=batch
        ),
        subject.readout.name: Subject(known, subject.domain, own, name=subject.name, batch_size=batch),
    }
