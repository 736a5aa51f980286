"""The two Transformers of Hahn & Rofin 2024: the one the theorems speak about, and the encoder of the experiments.

Both read bits (int64, 0 or 1, shape (batch, n)), as `torch.nn.Embedding(2, d)` does; bit b is the theory's x = 2b - 1,
so bit 1 is x = +1. Both return one real number per input, shape (batch,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modelprops.errors import ArgumentError


def layer_norm(y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """LayerNorm without gain and bias, and the factor N it multiplies by: N = 1 / sqrt(var(y) + eps).

    y is (..., d); the results are (y - mean(y)) * N of the same shape, and N of shape (...). The variance is the
    population variance (divided by d). Exact: ||result||_2 <= sqrt(d), N <= eps**-0.5. With eps = 0 and a constant y,
    N is infinite and the result NaN, because the theory's function is undefined there. Source: spec A.3.
    """
    factor = (y.var(dim=-1, correction=0) + eps).rsqrt()
    return (y - y.mean(dim=-1, keepdim=True)) * factor.unsqueeze(-1), factor


def attend(y: Tensor, key: Tensor, query: Tensor, value: Tensor, readers: Tensor | None = None) -> Tensor:
    """Sum over heads of full softmax attention with unscaled logits a_ij = (K y_j)^T (Q y_i).

    y is (batch, n, d); key and query are (heads, width, d), value is (heads, d, d); the result is (batch, n, d), whose
    row i is sum_h sum_j softmax_j(a_ij) V_h y_j. No mask, no 1/sqrt(width). `readers` (batch, m, d) are the positions
    that attend, default all of y: the last layer needs only the last position. Source: spec A.3.
    """
    keys = torch.einsum("hwd,bjd->bhjw", key, y)
    queries = torch.einsum("hwd,bid->bhiw", query, y if readers is None else readers)
    weights = torch.softmax(queries @ keys.transpose(-1, -2), dim=-1)
    values = torch.einsum("hed,bjd->bhje", value, y)
    return (weights @ values).sum(dim=1)


def blowup(n_factors: Tensor) -> tuple[Tensor, Tensor]:
    """tau^(k) = max_w (1 + N_w^(k)) and Blowup = prod_k tau^(k) from all LayerNorm factors (layers, batch, n).

    Exact. Returns tau (layers, batch) and Blowup (batch,); Blowup >= 1, and Blowup <= (1 + eps**-0.5)**L for eps > 0.
    Without any LayerNorm (all N = 0) Blowup is 1. Source: Hahn & Rofin 2024, spec A.4.
    """
    tau = 1 + n_factors.amax(dim=-1)
    return tau, tau.prod(dim=0)


@dataclass(frozen=True)
class Trace:
    """A forward pass with what the theory measures on it.

    output: T(x), (batch,). n_factors: N_w^(k)(x), (layers, batch, positions), 0 where the model computes no LayerNorm.
    tau: (layers, batch). blowup: (batch,).
    """

    output: Tensor
    n_factors: Tensor
    tau: Tensor
    blowup: Tensor


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{name}={size!r}: a size is a whole number of at least 1. Pass {name}>=1.")


def check_bits(bits: Tensor, longest: int) -> None:
    """Raise `ArgumentError` unless bits is an integer tensor (batch, m) with 1 <= m <= longest."""
    if bits.dim() != 2 or not 1 <= bits.shape[1] <= longest:
        raise ArgumentError(
            f"bits of shape {tuple(bits.shape)}: this model reads (batch, m) with 1 <= m <= {longest}. "
            "Add a batch dimension, or build the model for this length."
        )
    if bits.is_floating_point() or bits.is_complex():
        raise ArgumentError(
            f"bits of dtype {bits.dtype}: bits 0/1 index an embedding table. Pass int64; ±1 inputs are (x + 1) // 2."
        )


class AnalysedLayer(nn.Module):
    """One layer of spec A.3 up to its LayerNorm: Y = f_MLP(y + sum_h b_h), f_MLP(z) = z + W_out relu(W_in z + c) + e.

    Attributes are the theory's matrices: key, query (heads, head_width, d), value (heads, d, d).
    """

    def __init__(self, d: int, heads: int, mlp_width: int, head_width: int) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.randn(heads, head_width, d) / math.sqrt(d))
        self.query = nn.Parameter(torch.randn(heads, head_width, d) / math.sqrt(d))
        self.value = nn.Parameter(torch.randn(heads, d, d) / math.sqrt(d))
        self.mlp_in = nn.Linear(d, mlp_width)
        self.mlp_out = nn.Linear(mlp_width, d)

    def forward(self, y: Tensor) -> Tensor:
        z = y + attend(y, self.key, self.query, self.value)
        hidden: Tensor = self.mlp_out(torch.relu(self.mlp_in(z)))
        return z + hidden

    def query_key_norms(self) -> Tensor:
        """||K_h^T Q_h||_2 (spectral norm) of each head, shape (heads,)."""
        norms: Tensor = torch.linalg.matrix_norm(self.key.transpose(-1, -2) @ self.query, ord=2)
        return norms


class AnalysedTransformer(nn.Module):
    """The Transformer the theorems are about, T: {0,1}^n -> R, exactly as in spec A.3.

    y_i^(0) = e(x_i) + p_i; per layer, heads with unscaled logits (K y_j)^T (Q y_i) and full attention, an MLP with its
    own skip, then ONE LayerNorm with the population variance and `eps` >= 0 (0 allowed); T(x) = v_out^T y_n^(L) at the
    last position, no output bias. `affine=True` adds a learned gain and bias after each LayerNorm, which the theory
    does not have; N and Blowup never include the gain.

    n: longest input; shorter inputs use the first positions. d: width. mlp_width: hidden units of the MLP, default d.
    head_width: rows of K and Q, default d. The position vectors are the parameter `positional_encoding`, so that the
    usual name pattern leaves them out of the sharpness. Weights are drawn from torch's global generator
    (N(0, 1/d) for matrices, N(0, 1) for embeddings). Raises `ArgumentError` for impossible sizes or eps < 0.
    """

    def __init__(
        self,
        n: int,
        d: int = 32,
        layers: int = 2,
        heads: int = 2,
        *,
        mlp_width: int | None = None,
        head_width: int | None = None,
        eps: float = 1e-5,
        affine: bool = False,
    ) -> None:
        super().__init__()
        mlp_width = d if mlp_width is None else mlp_width
        head_width = d if head_width is None else head_width
        _check_sizes(n=n, d=d, layers=layers, heads=heads, mlp_width=mlp_width, head_width=head_width)
        if not (math.isfinite(eps) and eps >= 0):
            raise ArgumentError(f"eps={eps!r}: the LayerNorm epsilon is a finite number of at least 0. Pass eps>=0.")
        self.n, self.d, self.eps = n, d, float(eps)
        self.token_embedding = nn.Embedding(2, d)
        self.positional_encoding = nn.Parameter(torch.randn(n, d))
        self.layers = nn.ModuleList(AnalysedLayer(d, heads, mlp_width, head_width) for _ in range(layers))
        self.gain = nn.Parameter(torch.ones(layers, d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(layers, d)) if affine else None
        self.v_out = nn.Parameter(torch.randn(d) / math.sqrt(d))

    def trace(self, bits: Tensor) -> Trace:
        """T(x) together with N_w^(k)(x), tau^(k)(x) and Blowup(x) for every row of bits (batch, m), m <= n.

        Exact (up to floating point). Raises `ArgumentError` if bits is not an integer tensor of that shape.
        """
        check_bits(bits, self.n)
        y = self.token_embedding(bits) + self.positional_encoding[: bits.shape[1]]
        factors = []
        for k, layer in enumerate(self.layers):
            y, factor = layer_norm(layer(y), self.eps)
            factors.append(factor)
            if self.gain is not None and self.bias is not None:
                y = y * self.gain[k] + self.bias[k]
        n_factors = torch.stack(factors)
        tau, product = blowup(n_factors)
        return Trace(output=y[:, -1] @ self.v_out, n_factors=n_factors, tau=tau, blowup=product)

    def forward(self, bits: Tensor) -> Tensor:
        """T(x) for every row of bits: (batch, m) int64 0/1 with m <= n -> (batch,)."""
        return self.trace(bits).output

    def query_key_norms(self) -> Tensor:
        """||K_{k,h}^T Q_{k,h}||_2 for every layer and head, shape (layers, heads); the constants of spec A.5."""
        return torch.stack([layer.query_key_norms() for layer in self.layers if isinstance(layer, AnalysedLayer)])


class EncoderTransformer(nn.Module):
    """The encoder of the experiments: `nn.TransformerEncoder`, T: {0,1}^n -> R, shape (batch, n) -> (batch,).

    Input: learned token embedding (d_model/2) concatenated with learned position embedding (d_model/2, the parameter
    `positional_encoding.weight`); post-LayerNorm layers with ReLU, no dropout, feed-forward width `dim_feedforward`
    (default d_model), LayerNorm eps 1e-5; output Linear(d_model, 1) at the last position. Source: spec C.0.

    How it differs from `AnalysedTransformer` (spec D.15); none of it changes a scaling in n, all of it changes
    absolute numbers:
    - embeddings are concatenated, not added (a special case of adding);
    - logits are divided by sqrt(d_model / heads);
    - two LayerNorms per layer (after attention and after the MLP), with gain and bias, instead of one without;
    - attention projections and the head have biases;
    - experiments train it on 0/1 targets, so squared differences are multiplied by 4 to speak of ±1 outputs.

    Parameters without the position table: 199,425 / 50,561 / 12,993 / 281 for d_model = 128 / 64 / 32 / 4.
    Raises `ArgumentError` for impossible sizes, an odd d_model, or heads that do not divide d_model.
    """

    def __init__(
        self, n: int, d_model: int = 128, layers: int = 2, heads: int = 2, *, dim_feedforward: int | None = None
    ) -> None:
        super().__init__()
        width = d_model if dim_feedforward is None else dim_feedforward
        _check_sizes(n=n, d_model=d_model, layers=layers, heads=heads, dim_feedforward=width)
        if d_model % 2 or d_model % heads:
            raise ArgumentError(
                f"d_model={d_model}, heads={heads}: tokens and positions take half the width each and heads split it "
                "evenly. Pass an even d_model that heads divides."
            )
        self.n, self.d_model = n, d_model
        self.token_embedding = nn.Embedding(2, d_model // 2)
        self.positional_encoding = nn.Embedding(n, d_model // 2)
        layer = nn.TransformerEncoderLayer(d_model, heads, dim_feedforward=width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, 1)

    def forward(self, bits: Tensor) -> Tensor:
        """T(x) for every row of bits: (batch, m) int64 0/1 with m <= n -> (batch,)."""
        check_bits(bits, self.n)
        tokens = self.token_embedding(bits)
        positions = self.positional_encoding.weight[: bits.shape[1]].expand(*bits.shape, -1)
        y = self.encoder(torch.cat([tokens, positions], dim=-1))
        output: Tensor = self.head(y[:, -1]).squeeze(-1)
        return output
