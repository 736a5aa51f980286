"""Curvature against PyHessian, hessian-eigenthings and curvlinops, each where it is installed, in one run.

    python benchmarks/bench_curvature.py                 # the table

Job: a trained two-layer Transformer of 101,186 parameters, batch of 64, float32, one thread. Top eigenvalue to 1e-3
and trace to 1%. Every peer gets the same batch, its own best algorithm, zeroed gradients and no determinism check; a
peer that is wrong through LayerNorm is timed and its error shown.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import modelprops as mp
from modelprops.domains import generator_of
from modelprops.seeds import derive

N, WIDTH, BATCH, SEED = 12, 64, 64, 0


class Encoder(torch.nn.Module):
    """Two layers, width 64, feed-forward 256, one score an input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(2, WIDTH)
        self.positional_encoding = torch.nn.Parameter(torch.randn(N, WIDTH) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, 1)

    def forward(self, bits: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(bits) + self.positional_encoding)[:, -1])[:, 0]


def trained(steps: int = 300) -> tuple[mp.Subject, torch.Tensor]:
    """Return an encoder trained on majority, and the batch that `seed=SEED` draws."""
    torch.manual_seed(0)
    model, domain = Encoder(), mp.BooleanCube(N, encoding="bits")
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(steps):
        points = domain.sample(128, generator_of(step))
        loss = squared_error(model((points > 0).long()), points).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return mp.Subject(model.eval(), domain), domain.sample(BATCH, generator_of(derive(SEED, "inputs")))


def squared_error(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Against majority, +1 on a tie."""
    return (outputs - torch.where(points.sum(1) >= 0, 1.0, -1.0)) ** 2


def jobs(subject: mp.Subject, points: torch.Tensor) -> dict[str, dict[str, Callable[[], float]]]:
    """Kind of job -> name -> a function that returns the number."""
    model: Any = subject.module
    bits, target = (points > 0).long(), torch.where(points.sum(1) >= 0, 1.0, -1.0)
    mean = torch.nn.MSELoss()
    width = 0.04 * float(mp.curvature(subject, loss=squared_error, quantity="trace", inputs=BATCH, seed=SEED).value)

    def ours(quantity: str, **options: Any) -> Callable[[], float]:
        return lambda: float(
            mp.curvature(subject, loss=squared_error, quantity=quantity, inputs=BATCH, seed=SEED, **options).value
        )

    # 99% anytime-valid interval of +-2%, whose standard error is well below 1%.
    found: dict[str, dict[str, Callable[[], float]]] = {
        "top": {"modelprops": ours("top")},
        "trace": {"modelprops": ours("trace", width=width)},
    }
    if find_spec("pyhessian"):
        from pyhessian import hessian

        def fresh() -> Any:
            model.zero_grad(set_to_none=True)
            torch.manual_seed(SEED)
            return hessian(model, mean, data=(bits, target), cuda=False)

        found["top"]["PyHessian power"] = lambda: float(fresh().eigenvalues(tol=1e-3)[0][0])
        found["trace"]["PyHessian Hutchinson"] = lambda: float(statistics.fmean(fresh().trace(maxIter=99, tol=0)))
    if find_spec("hessian_eigenthings"):
        import hessian_eigenthings as eigenthings

        def operator() -> Any:
            model.zero_grad(set_to_none=True)
            return eigenthings.HessianOperator(model, [(bits, target)], eigenthings.supervised_loss(mean))

        found["top"]["hessian-eigenthings Lanczos"] = lambda: float(
            eigenthings.lanczos(operator(), k=1, max_iter=4, tol=1e-3, seed=SEED, which="LA").eigenvalues[0]
        )
        found["top"]["hessian-eigenthings power"] = lambda: float(
            eigenthings.power_iteration_one(operator(), seed=SEED, tol=1e-3)[0]
        )
        found["trace"]["hessian-eigenthings Hutch++ (99)"] = lambda: float(
            eigenthings.hutch_plus_plus(operator(), num_matvecs=99, seed=SEED).estimate
        )
    if find_spec("curvlinops") and find_spec("backpack") and find_spec("linear_operator"):
        import curvlinops

        def linear() -> Any:
            torch.manual_seed(SEED)
            parameters = [*model.parameters()]
            return curvlinops.HessianLinearOperator(
                model, mean, parameters, [(bits, target)], check_deterministic=False
            )

        for count in (15, 30, 99):
            found["trace"][f"curvlinops Hutch++ ({count})"] = lambda count=count: float(
                curvlinops.hutchpp_trace(linear(), num_matvecs=count)
            )
    return found


def truth(subject: mp.Subject) -> dict[str, float]:
    """The batch's own numbers: top eigenvalue to a residual of 1e-4, trace to a standard error far below 1%."""
    options = {"loss": squared_error, "inputs": BATCH, "seed": SEED}
    top = mp.curvature(subject, width=2e-2, **options)
    trace = mp.curvature(subject, quantity="trace", width=1e-9, budget=BATCH * 500, **options)
    print(
        f"truth: top {top.value:.4f} +- {top.details['residual']:.1g}, trace {trace.value:.3f} +- "
        f"{trace.details['standard_error']:.2g}"
    )
    return {"top": float(top.value), "trace": float(trace.value)}


def main(repeats: int = 5) -> None:
    """Print a table; jobs are run in turn so that a drift of the machine hits all alike."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    subject, points = trained()
    print(f"{sum(weight.numel() for weight in subject.module.parameters()):,} parameters")
    exact, found = truth(subject), jobs(subject, points)
    for kind, runs in found.items():
        times: dict[str, list[float]] = {name: [] for name in runs}
        values: dict[str, float] = {}
        for _ in range(repeats + 1):
            for name in list(runs):
                start = time.perf_counter()
                try:
                    with sdpa_kernel(SDPBackend.MATH):  # the peers leave the kernel to the caller
                        values[name] = runs[name]()
                except Exception as error:
                    print(f"{kind}: {name} failed: {error!r:.150}")
                    runs.pop(name)
                    continue
                times[name].append(time.perf_counter() - start)
        own = statistics.median(times["modelprops"][1:])
        print(f"\n{kind:34} {'seconds':>9} {'value':>10} {'error':>9} {'time / ours':>12}")
        for name in runs:
            seconds = statistics.median(times[name][1:])
            error = values[name] / exact[kind] - 1
            print(f"{name:34} {seconds:9.3f} {values[name]:10.3f} {error:9.1e} {seconds / own:12.2f}")


if __name__ == "__main__":
    main()
