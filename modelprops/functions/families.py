"""The standard Boolean functions, each with the closed forms that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from modelprops.errors import ArgumentError
from modelprops.estimate import Array
from modelprops.functions.boolean import LARGEST_TABLE, Answers, BooleanFunction, Family, whole


@Family
def parity(n: int) -> BooleanFunction:
    """PARITY: prod x_i. Everything at degree n: as = n, Stab = rho^n."""
    n = whole(n, "n")
    answers = Answers(
        level_weights=lambda: np.eye(n + 1)[n],
        influences=lambda: np.ones(n),
        noise_stability=lambda rho: float(rho) ** n,
    )
    return BooleanFunction(f"parity({n})", n, lambda x: x.prod(1), answers)


@Family
def first(n: int) -> BooleanFunction:
    """FIRST, the dictator x_1: as = 1, Stab = rho."""
    n = whole(n, "n")
    answers = Answers(
        level_weights=lambda: np.eye(n + 1)[1], influences=lambda: np.eye(n)[0], noise_stability=lambda rho: float(rho)
    )
    return BooleanFunction(f"first({n})", n, lambda x: x[:, 0].clone(), answers)


@Family
def mean(n: int) -> BooleanFunction:
    """MEAN: the average of the inputs, in [-1, 1]. s(f, x) = 1/n at every x; Stab = rho/n."""
    n = whole(n, "n")
    answers = Answers(
        level_weights=lambda: np.eye(n + 1)[1] / n,
        influences=lambda: np.full(n, 1 / n**2),
        average_sensitivity=lambda: 1 / n,
        noise_stability=lambda rho: float(rho) / n,
    )
    return BooleanFunction(f"mean({n})", n, lambda x: x.mean(1), answers)


@Family
def majority(n: int) -> BooleanFunction:
    """MAJORITY: +1 iff more than half of the inputs are +1 (ties of an even n give -1). as ~ sqrt(2n/pi)."""
    n = whole(n, "n")
    values = [1 if n - minus > n / 2 else -1 for minus in range(n + 1)]
    return _symmetric(f"majority({n})", n, values, lambda x: torch.where(x.sum(1) > 0, 1.0, -1.0))


@Family
def conjunction(n: int) -> BooleanFunction:
    """AND with -1 as True: -1 iff every input is -1. Each influence is 2^-(n-1)."""
    n = whole(n, "n")
    return _symmetric(f"conjunction({n})", n, [1] * n + [-1], lambda x: torch.where((x < 0).all(1), -1.0, 1.0))


@Family
def disjunction(n: int) -> BooleanFunction:
    """OR with -1 as True: +1 iff every input is +1. Each influence is 2^-(n-1)."""
    n = whole(n, "n")
    return _symmetric(f"disjunction({n})", n, [1] + [-1] * n, lambda x: torch.where((x < 0).any(1), -1.0, 1.0))


@Family
def tribes(width: int, count: int) -> BooleanFunction:
    """Tribes: OR of `count` ANDs of `width` inputs each, s ANDs of w.

    Each influence is 2^-(w-1) (1 - 2^-w)^(s-1). With q = (1 - 2^-w)^s = P(f = +1),
    Stab = 1 - 4q + 4 (1 - 2^(1-w) + ((1 + rho) / 4)^w)^s: neither of two points has a tribe of -1s.
    """
    width = whole(width, "width")
    count = whole(count, "count")
    n = width * count
    each = 2.0 ** -(width - 1) * (1 - 2.0**-width) ** (count - 1)

    def rule(x: torch.Tensor) -> torch.Tensor:
        return torch.where((x.view(len(x), count, width) < 0).all(2).any(1), -1.0, 1.0)

    false = (1 - 2.0**-width) ** count

    def weights() -> Array:
        one = np.array([math.comb(width, j) / 4**width for j in range(width + 1)])
        one[0] = (1 - 2.0**-width) ** 2
        both = np.ones(1)
        for _ in range(count):
            both = np.convolve(both, one)
        return np.array([(2 * false - 1) ** 2, *(4 * both[1:])])

    answers = Answers(
        level_weights=weights,
        influences=lambda: np.full(n, each),
        average_sensitivity=lambda: n * each,
        noise_stability=lambda rho: 1 - 4 * false + 4 * (1 - 2.0 ** (1 - width) + ((1 + rho) / 4) ** width) ** count,
    )
    return BooleanFunction(f"tribes({width}, {count})", n, rule, answers)


@Family
def address(bits: int) -> BooleanFunction:
    """The multiplexer: `bits` inputs choose one of 2^bits data inputs. An address bit matters half the time.

    Stab = rho ((1 + rho) / 2)^bits: two points that address different inputs are uncorrelated.
    """
    bits = whole(bits, "bits")
    n = bits + 2**bits

    def rule(x: torch.Tensor) -> torch.Tensor:
        chosen = ((x[:, :bits] < 0).long() * 2 ** torch.arange(bits, device=x.device)).sum(1)
        return x[:, bits:].gather(1, chosen[:, None])[:, 0]

    def weights() -> Array:
        return np.array([0.0, *(math.comb(bits, j) / 2**bits for j in range(bits + 1)), *[0.0] * (n - bits - 1)])

    answers = Answers(
        level_weights=weights,
        influences=lambda: np.array([0.5] * bits + [2.0**-bits] * 2**bits),
        average_sensitivity=lambda: bits / 2 + 1,
        noise_stability=lambda rho: float(rho * ((1 + rho) / 2) ** bits),
    )
    return BooleanFunction(f"address({bits})", n, rule, answers)


@Family
def hidden_weighted_bit(n: int) -> BooleanFunction:
    """The bit whose number is the count of -1s: x_k with k = #(-1), and +1 (False) where there is none.

    Answers by enumeration, n <= 20.
    """
    n = whole(n, "n")

    def rule(x: torch.Tensor) -> torch.Tensor:
        count = (x < 0).long().sum(1)
        picked = x.gather(1, (count - 1).clamp_min(0)[:, None])[:, 0]
        return torch.where(count == 0, torch.ones_like(picked), picked)

    return BooleanFunction(f"hidden_weighted_bit({n})", n, rule)


@Family
def recursive_majority(depth: int) -> BooleanFunction:
    """Majority of three, `depth` times, on 3^depth inputs: Stab maps rho -> 3/4 rho + 1/4 rho^3 at each level."""
    depth = whole(depth, "depth")
    n = 3**depth

    def rule(x: torch.Tensor) -> torch.Tensor:
        while x.shape[1] > 1:
            x = x.view(len(x), x.shape[1] // 3, 3).sum(2).sign()
        return x[:, 0]

    def stability(rho: float) -> float:
        for _ in range(depth):
            rho = 0.75 * rho + 0.25 * rho**3
        return rho

    def weights() -> Array:
        polynomial = np.array([0.0, 1.0])
        for _ in range(depth):
            cube = np.convolve(np.convolve(polynomial, polynomial), polynomial)
            polynomial = 0.25 * cube + 0.75 * np.pad(polynomial, (0, len(cube) - len(polynomial)))
        return polynomial

    answers = Answers(
        level_weights=weights,
        influences=lambda: np.full(n, 0.5**depth),
        average_sensitivity=lambda: 1.5**depth,
        noise_stability=stability,
    )
    return BooleanFunction(f"recursive_majority({depth})", n, rule, answers)


@Family
def random_function(n: int, seed: int = 0) -> BooleanFunction:
    """A uniformly random truth table, n <= 20. In expectation as = n/2. Answers by enumeration."""
    n, seed = whole(n, "n"), whole(seed, "seed", least=0)
    if n > LARGEST_TABLE:
        raise ArgumentError(f"n={n} is above {LARGEST_TABLE}: a table of 2^{n} entries is too large; take a smaller n")
    values = torch.from_numpy(1.0 - 2.0 * np.random.default_rng(seed).integers(0, 2, 2**n))
    return BooleanFunction(f"random_function({n}, seed={seed})", n, _lookup(values, n))


def _lookup(values: torch.Tensor, n: int) -> Callable[[torch.Tensor], torch.Tensor]:
    places = 2 ** torch.arange(n)
    return lambda x: values.to(x.device)[((x < 0).long() * places.to(x.device)).sum(1)]


def _symmetric(
    expression: str, n: int, values: Sequence[int], rule: Callable[[torch.Tensor], torch.Tensor]
) -> BooleanFunction:
    """A function of the number of -1s alone, with answers in exact integers for any n."""

    def sensitivity() -> float:
        flips = sum(math.comb(n, minus) * (n - minus) for minus in range(n) if values[minus] != values[minus + 1])
        return 2 * flips / (1 << n)

    def weights() -> Array:
        # The coefficients of one degree k are equal: 2^-n sum_w f(w) K_w(k), K Krawtchouk's polynomials of order n.
        # Summed by parts, only the w where f jumps remain, as C(n-1, w) K_{k-1}(w) / C(n-1, k-1) of order n - 1.
        totals = [0] * (n + 1)
        for minus in (w for w in range(n) if values[w] != values[w + 1]):
            before, now = 0, math.comb(n - 1, minus) * (values[minus] - values[minus + 1])
            for k in range(1, n + 1):
                totals[k] += n * now
                before, now = now, ((n - 1 - 2 * minus) * now - (n - k + 1) * before) // k
        average = sum(math.comb(n, minus) * value for minus, value in enumerate(values))
        higher = (totals[k] ** 2 / (k * k * math.comb(n, k) * 4**n) for k in range(1, n + 1))
        return np.array([average**2 / 4**n, *higher])

    answers = Answers(
        level_weights=weights,
        influences=lambda: np.full(n, sensitivity() / n),
        average_sensitivity=sensitivity,
    )
    return BooleanFunction(expression, n, rule, answers)
