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
    """LayerNorm of the doubled vector [y; -y], whose mean is 0: its first half, and N = 1/sqrt(mean(y^2) + eps).

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


def _check_length(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n={n!r}: the input length is a whole number of at least 1. Pass n>=1.")


class HandcraftedLayer(nn.Module):
    """z = y + sum_h V_h (attention average), Y = z + W_out relu(W_in z + c) + e; all weights zero until written.

    key, query: (2, d/2, d); value: (2, d, d); logits unscaled, times `logit_scale`, which is not a parameter.
    """

    def __init__(self, d: int, mlp_width: int, logit_scale: float = 1.0) -> None:
        super().__init__()
        self.key, self.query = _zeros(HEADS, d // HEADS, d), _zeros(HEADS, d // HEADS, d)
        self.value = _zeros(HEADS, d, d)
        self.mlp_in, self.mlp_in_bias = _zeros(mlp_width, d), _zeros(mlp_width)
        self.mlp_out, self.mlp_out_bias = _zeros(d, mlp_width), _zeros(d)
        self.logit_scale = logit_scale

    def attention(self, y: Tensor, readers: Tensor) -> Tensor:
        """z at the reading positions, (batch, m, d), from all positions y (batch, n, d)."""
        return readers + attend(y, self.key, self.query * self.logit_scale, self.value, readers)

    def feed_forward(self, z: Tensor) -> Tensor:
        """f_MLP(z) with its own skip connection, same shape as z."""
        return z + torch.relu(z @ self.mlp_in.T + self.mlp_in_bias) @ self.mlp_out.T + self.mlp_out_bias

    def erase_all_but(self, kept: int) -> None:
        """Write an MLP of width 2d that sets every coordinate to 0 except `kept`: z - relu(z) + relu(-z) = 0."""
        d = self.mlp_out.shape[0]
        _write(self.mlp_in, {(c, c): 1.0 for c in range(d)})
        _write(self.mlp_in, {(d + c, c): -1.0 for c in range(d)})
        erased = [c for c in range(d) if c != kept]
        _write(self.mlp_out, {(c, c): -1.0 for c in erased})
        _write(self.mlp_out, {(c, d + c): 1.0 for c in erased})


class HandcraftedTransformer(nn.Module):
    """A Transformer of spec A.3 with written weights: layers, mirrored LayerNorm, linear output at the last position.

    Subclasses write the weights. `eps`: LayerNorm epsilon >= 0, or None for no LayerNorm. `norms_per_layer`: 1 is the
    theory's single LayerNorm after the MLP; 2 adds one after attention, as PyTorch does, and Blowup is then the product
    over all of them. The last layer is evaluated at the last position only, since T reads nothing else, so its N and
    tau are those of that position. Raises `ArgumentError` for an eps or norms_per_layer outside these values.
    """

    positional_encoding: Tensor

    def __init__(
        self, positions: Tensor, tokens: int, layers: list[HandcraftedLayer], eps: float | None, norms_per_layer: int
    ) -> None:
        super().__init__()
        if eps is not None and not (math.isfinite(eps) and eps >= 0):
            raise ArgumentError(f"eps={eps!r}: the LayerNorm epsilon is at least 0. Pass eps>=0, or None for no norm.")
        if norms_per_layer not in (1, 2):
            raise ArgumentError(f"norms_per_layer={norms_per_layer!r}: a layer has 1 or 2 LayerNorms. Pass 1 or 2.")
        length, d = positions.shape
        self.n, self.eps, self.norms_per_layer = length, eps, norms_per_layer
        self.register_buffer("positional_encoding", positions)
        self.token_embedding = _zeros(tokens, d)
        self.layers = nn.ModuleList(layers)
        self.v_out, self.output_bias = _zeros(2 * d), _zeros(1)

    def tokens(self, bits: Tensor) -> Tensor:
        """The token sequence the first layer reads; here the bits themselves."""
        return bits

    def _normalise(self, y: Tensor, factors: list[Tensor]) -> Tensor:
        if self.eps is None:
            return y
        y, factor = mirrored_layer_norm(y, self.eps)
        factors.append(nn.functional.pad(factor, (self.positional_encoding.shape[0] - factor.shape[1], 0)))
        return y

    def trace(self, bits: Tensor) -> Trace:
        """T(x), N, tau and Blowup for every row of bits (batch, n); exact up to float64. Raises `ArgumentError`.

        The first axis of `n_factors` and `tau` counts LayerNorms: norms_per_layer * layers, or 0 when eps is None.
        """
        check_bits(bits, self.n)
        if bits.shape[1] != self.n:
            raise ArgumentError(f"bits of length {bits.shape[1]}: this model has n={self.n}. Build it for this length.")
        y = self.token_embedding[self.tokens(bits)] + self.positional_encoding
        factors: list[Tensor] = []
        for layer in self.layers:
            assert isinstance(layer, HandcraftedLayer)
            z = layer.attention(y, y[:, -1:] if layer is self.layers[-1] else y)
            if self.norms_per_layer == 2:
                z = self._normalise(z, factors)
            y = self._normalise(layer.feed_forward(z), factors)
        n_factors = torch.stack(factors) if factors else y.new_zeros(0, *y.shape[:2])
        tau, product = blowup(n_factors)
        last = y[:, -1]
        output = torch.cat([last, -last], dim=-1) @ self.v_out + self.output_bias
        return Trace(output=output, n_factors=n_factors, tau=tau, blowup=product)

    def forward(self, bits: Tensor) -> Tensor:
        """T(x) for every row of bits: (batch, n) int64 0/1 -> (batch,) float64."""
        return self.trace(bits).output


class HandcraftedParity(HandcraftedTransformer):
    """PARITY for every n: T(x) > 0 iff the number of ones is odd, so sign T = 2 (sum of bits mod 2) - 1.

    In ±1 terms sign T(x) = (-1)^(n+1) prod_i x_i with x = 2b - 1. d = 10 mirrored to 20, two layers of two heads, a CLS
    token appended at position n, position features i/(n+1) and cos(pi i). Layer 1 averages uniformly to get #ones/(n+1)
    and 1/(n+1), and its ReLU MLP writes I[i = #ones]/(n+1); in layer 2 CLS attends to even and to odd positions in two
    heads and subtracts them. 1,354 parameters. With eps = 0, |T| = sqrt(10) and s(T,x) = 10 n at every x; with eps > 0
    both fall to 0 as n grows; with eps = None, |T| is about 1.5/n^2. Two LayerNorms per layer are the default because
    the E Blowup^2 column of A.13 is theirs (one per layer gives about 1/15 of it and the same T to three digits).
    Source: spec A.13, Chiang & Cholak 2022.
    """

    def __init__(self, n: int, eps: float | None = 0.0, *, norms_per_layer: int = 2) -> None:
        _check_length(n)
        place = torch.arange(n + 1, dtype=torch.float64)
        positions = torch.zeros(n + 1, 10, dtype=torch.float64)
        positions[:, 3], positions[:, 4] = place / (n + 1), 1 - 2 * (place % 2)
        first, second = HandcraftedLayer(10, mlp_width=3), HandcraftedLayer(10, mlp_width=20)
        super().__init__(positions, 3, [first, second], eps, norms_per_layer)
        self.n = n
        _write(self.token_embedding, {(0, 0): 1.0, (1, 1): 1.0, (CLS, 2): 1.0})
        _write(first.value, {(0, 5, 1): 1.0, (0, 6, 2): 1.0})
        for unit, offset in enumerate((-1.0, 0.0, 1.0)):
            _write(first.mlp_in, {(unit, 3): -1.0, (unit, 5): 1.0, (unit, 6): offset})
        _write(first.mlp_out, {(7, 0): 1.0, (7, 1): -2.0, (7, 2): 1.0})
        for head, sign in enumerate((1.0, -1.0)):
            _write(second.query, {(head, 0, 2): 1.0})
            _write(second.key, {(head, 0, 4): sign})
            _write(second.value, {(head, 8, 7): -sign})
        second.erase_all_but(8)
        _write(self.v_out, {(8,): 1.0})

    def tokens(self, bits: Tensor) -> Tensor:
        """The bits followed by the CLS token, (batch, n + 1)."""
        return torch.cat([bits, bits.new_full((bits.shape[0], 1), CLS)], dim=1)


class HandcraftedFirst(HandcraftedTransformer):
    """FIRST by attention whose logits grow with log n: T(x) = w x_1 + (1 - w) mean(x_2..x_n), no LayerNorm.

    w = n^c / (n^c + n - 1) with c = `strength` when `log_scaled`, so |T - x_1| <= 2 (n-1)/(n^c + n - 1), and sign T
    is x_1 at every x for c >= 1 (w > 1/2); no parameter depends on n. Without scaling w = e^c / (e^c + n - 1) -> 0, and
    sign T differs from x_1 at some x as soon as n - 1 > e^c: the model fails to generalise in length. d = 4, one layer.
    Source: spec A.12, Chiang & Cholak 2022. Raises `ArgumentError` for n < 1 or a strength that is not positive.
    """

    def __init__(self, n: int, *, strength: float = 2.0, log_scaled: bool = True) -> None:
        _check_length(n)
        if not (math.isfinite(strength) and strength > 0):
            raise ArgumentError(f"strength={strength!r}: the logit of the first position is positive. Pass strength>0.")
        positions = torch.zeros(n, 4, dtype=torch.float64)
        positions[0, 1], positions[:, 2] = 1.0, 1.0
        layer = HandcraftedLayer(4, mlp_width=1, logit_scale=math.log(n) if log_scaled else 1.0)
        super().__init__(positions, 2, [layer], None, 1)
        _write(self.token_embedding, {(0, 0): -1.0, (1, 0): 1.0})
        _write(layer.query, {(0, 0, 2): strength})
        _write(layer.key, {(0, 0, 1): 1.0})
        _write(layer.value, {(0, 3, 0): 1.0})
        _write(self.v_out, {(3,): 1.0})


class HandcraftedMean(HandcraftedTransformer):
    """MEAN by uniform attention: T(x) = (1/n) sum_i x_i in [-1, 1], no LayerNorm; s(T,x) = 1/n at every x. d = 4.

    Source: spec A.2, A.12. Raises `ArgumentError` for n < 1.
    """

    def __init__(self, n: int) -> None:
        _check_length(n)
        layer = HandcraftedLayer(4, mlp_width=1)
        super().__init__(torch.zeros(n, 4, dtype=torch.float64), 2, [layer], None, 1)
        _write(self.token_embedding, {(0, 0): -1.0, (1, 0): 1.0})
        _write(layer.value, {(0, 3, 0): 1.0})
        _write(self.v_out, {(3,): 1.0})


class HandcraftedMajority(HandcraftedTransformer):
    """MAJORITY by uniform attention and one LayerNorm: sign T = +1 iff more ones than zeros, ties -1 (spec A.2).

    Attention gives m = (1/n) sum_i x_i - 1/(2n), which is never 0; the MLP erases all else and LayerNorm divides by
    sqrt(m^2/4 + eps). With eps = 0, T = ±1 exactly and N = 2/|m|, so Blowup is largest next to balanced inputs
    (N = 4n), where spec A.8 asks for it. With eps = None, T = m. d = 4. Raises `ArgumentError` for n < 1 or eps < 0.
    """

    def __init__(self, n: int, eps: float | None = 0.0) -> None:
        _check_length(n)
        positions = torch.zeros(n, 4, dtype=torch.float64)
        positions[-1, 1] = 1.0
        layer = HandcraftedLayer(4, mlp_width=8)
        super().__init__(positions, 2, [layer], eps, 1)
        _write(self.token_embedding, {(0, 0): -1.0, (1, 0): 1.0})
        _write(layer.value, {(0, 3, 0): 1.0, (0, 3, 1): -0.5})
        layer.erase_all_but(3)
        _write(self.v_out, {(3,): 1.0 if eps is None else 0.5})
