"""Transformers written by hand, without training, that compute PARITY, FIRST, MEAN and MAJORITY exactly (spec A.13).

All are float64 modules that read bits (int64 0/1, shape (batch, n)); bit b is x = 2b - 1. Every weight is an
`nn.Parameter` whose value does not depend on n, and the position features are a buffer, so a sharpness perturbs
exactly the theorem's theta (all parameters except positions). The construction of PARITY and of FIRST follows
Chiang & Cholak 2022 (arXiv 2202.12172); the implementation is this project's own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError
from modelprops.theory.transformer import Trace, attend, blowup, check_bits, layer_norm

CLS = 2
HEADS = 2


def mirrored_layer_norm(y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """LayerNorm of the doubled vector [y; -y], whose mean is 0: first half of the result, and N = 1/sqrt(mean(y^2) + eps).

    y is (..., d); LayerNorm acts in width 2d. Mirroring keeps the mean subtraction from mixing the coordinates.
    """
    normalised, factor = layer_norm(torch.cat([y, -y], dim=-1), eps)
    return normalised[..., : y.shape[-1]], factor


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, dtype=torch.float64))


def _write(parameter: nn.Parameter, entries: dict[tuple[int, ...], float]) -> None:
    with torch.no_grad():
        for index, weight in entries.items():
            parameter[index] = weight


class HandcraftedLayer(nn.Module):
    """Y = z + W_out relu(W_in z + c) + e with z = y + sum_h O_h V_h (attention average), all weights zero until written.

    key, query, value: (2, d/2, d); out: (2, d, d/2); logits unscaled, times `logit_scale`, which is not a parameter.
    """

    def __init__(self, d: int, mlp_width: int, logit_scale: float = 1.0) -> None:
        super().__init__()
        self.key, self.query, self.value = (_zeros(HEADS, d // HEADS, d) for _ in range(3))
        self.out = _zeros(HEADS, d, d // HEADS)
        self.mlp_in, self.mlp_in_bias = _zeros(mlp_width, d), _zeros(mlp_width)
        self.mlp_out, self.mlp_out_bias = _zeros(d, mlp_width), _zeros(d)
        self.logit_scale = logit_scale

    def forward(self, y: Tensor, readers: Tensor) -> Tensor:
        z = readers + attend(y, self.key, self.query * self.logit_scale, self.out @ self.value, readers)
        return z + torch.relu(z @ self.mlp_in.T + self.mlp_in_bias) @ self.mlp_out.T + self.mlp_out_bias

    def erase_all_but(self, kept: int) -> None:
        """Write an MLP of width 2d that sets every coordinate to 0 except `kept`: z - relu(z) + relu(-z) = 0."""
        d = self.mlp_out.shape[0]
        _write(self.mlp_in, {(c, c): 1.0 for c in range(d)} | {(d + c, c): -1.0 for c in range(d)})
        erased = [c for c in range(d) if c != kept]
        _write(self.mlp_out, {(c, c): -1.0 for c in erased} | {(c, d + c): 1.0 for c in erased})


class HandcraftedTransformer(nn.Module):
    """A Transformer of spec A.3 with written weights: layers, mirrored LayerNorm, linear output at the last position.

    Subclasses write the weights. `eps`: LayerNorm epsilon >= 0, or None for no LayerNorm. The last layer is evaluated
    at the last position only, since T reads nothing else; so its N and tau are those of that position.
    """

    positional_encoding: Tensor

    def __init__(self, n: int, positions: Tensor, tokens: int, layers: list[HandcraftedLayer], eps: float | None) -> None:
        super().__init__()
        if eps is not None and not (math.isfinite(eps) and eps >= 0):
            raise ArgumentError(f"eps={eps!r}: the LayerNorm epsilon is at least 0. Pass eps>=0, or None for no LayerNorm.")
        d = positions.shape[1]
        self.n, self.d, self.eps = n, d, eps
        self.register_buffer("positional_encoding", positions)
        self.token_embedding = _zeros(tokens, d)
        self.layers = nn.ModuleList(layers)
        self.v_out, self.output_bias = _zeros(2 * d), _zeros(1)

    def tokens(self, bits: Tensor) -> Tensor:
        """The token sequence the first layer reads; here the bits themselves."""
        return bits

    def trace(self, bits: Tensor) -> Trace:
        """T(x), N, tau and Blowup for every row of bits (batch, n); exact up to float64. Raises `ArgumentError`."""
        check_bits(bits, self.n)
        if bits.shape[1] != self.n:
            raise ArgumentError(f"bits of length {bits.shape[1]}: this model was written for n={self.n}. Build it for this n.")
        y = self.token_embedding[self.tokens(bits)] + self.positional_encoding
        n_factors = y.new_zeros(len(self.layers), *y.shape[:2])
        for k, layer in enumerate(self.layers):
            first_reader = -1 if k == len(self.layers) - 1 else 0
            y = layer(y, y[:, first_reader:])
            if self.eps is not None:
                y, n_factors[k, :, first_reader:] = mirrored_layer_norm(y, self.eps)
        tau, product = blowup(n_factors)
        last = y[:, -1]
        output = torch.cat([last, -last], dim=-1) @ self.v_out + self.output_bias
        return Trace(output=output, n_factors=n_factors, tau=tau, blowup=product)

    def forward(self, bits: Tensor) -> Tensor:
        """T(x) for every row of bits: (batch, n) int64 0/1 -> (batch,) float64."""
        return self.trace(bits).output


def _check_length(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n={n!r}: the input length is a whole number of at least 1. Pass n>=1.")


class HandcraftedParity(HandcraftedTransformer):
    """PARITY for every n: T(x) > 0 iff the number of ones is odd, so sign T = 2 (sum of bits mod 2) - 1.

    In ±1 terms sign T(x) = (-1)^(n+1) prod_i x_i with x = 2b - 1. d = 10 mirrored to 20, two layers of two heads, a CLS
    token appended at position n, position features i/(n+1) and cos(pi i). Layer 1 averages uniformly to get #ones/(n+1)
    and 1/(n+1), and its ReLU MLP writes I[i = #ones]/(n+1); in layer 2 CLS attends to even and to odd positions in two
    heads and subtracts them. 1,354 parameters. With eps = 0, |T| = sqrt(10) and s(T,x) = 10 n at every x; with eps > 0
    both fall to 0 as n grows; with eps = None, |T| is about 1.5/n^2. Source: spec A.13, Chiang & Cholak 2022.
    """

    def __init__(self, n: int, eps: float | None = 0.0) -> None:
        _check_length(n)
        place = torch.arange(n + 1, dtype=torch.float64)
        positions = torch.zeros(n + 1, 10, dtype=torch.float64)
        positions[:, 3], positions[:, 4] = place / (n + 1), 1 - 2 * (place % 2)
        first, second = HandcraftedLayer(10, mlp_width=3), HandcraftedLayer(10, mlp_width=20)
        super().__init__(n, positions, 3, [first, second], eps)
        _write(self.token_embedding, {(0, 0): 1.0, (1, 1): 1.0, (CLS, 2): 1.0})
        _write(first.value, {(0, 0, 1): 1.0, (0, 1, 2): 1.0})
        _write(first.out, {(0, 5, 0): 1.0, (0, 6, 1): 1.0})
        for unit, offset in enumerate((-1.0, 0.0, 1.0)):
            _write(first.mlp_in, {(unit, 3): -1.0, (unit, 5): 1.0, (unit, 6): offset})
        _write(first.mlp_out, {(7, 0): 1.0, (7, 1): -2.0, (7, 2): 1.0})
        for head, sign in enumerate((1.0, -1.0)):
            _write(second.query, {(head, 0, 2): 1.0})
            _write(second.key, {(head, 0, 4): sign})
            _write(second.value, {(head, 0, 7): 1.0})
            _write(second.out, {(head, 8, 0): -sign})
        second.erase_all_but(8)
        _write(self.v_out, {(8,): 1.0})

    def tokens(self, bits: Tensor) -> Tensor:
        """The bits followed by the CLS token, (batch, n + 1)."""
        return torch.cat([bits, bits.new_full((bits.shape[0], 1), CLS)], dim=1)
