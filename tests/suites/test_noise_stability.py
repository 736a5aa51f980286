"""The noise-stability suite: statistics of its experiments, statuses of claims, tiny models of every architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import modelprops as mp
from modelprops.prefix import shares_prefixes
from modelprops.suites.findings import machine
from modelprops.suites.noise_stability import findings as rows
from modelprops.suites.noise_stability.__main__ import main
from modelprops.suites.noise_stability.experiments import (
    ArmRun,
    arms,
    compare,
    experiments,
    modular_addition,
    run_arm,
    sign_flip_p_value,
)
from modelprops.suites.noise_stability.language import (
    attention_received,
    language_findings,
    position_bias,
    sink_correlation,
)
from modelprops.suites.noise_stability.marked import junta_bounds, marked_positions
from modelprops.suites.noise_stability.median_split import functions_of
from modelprops.suites.noise_stability.presets import PRESETS
from modelprops.suites.noise_stability.render import markdown, write_figures
from modelprops.suites.noise_stability.theory_checks import boolean_checks, categorical_checks, concentration_checks

TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def tiny(kind: str) -> torch.nn.Module:
    """A random model of the architecture, in eval mode."""
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64)
            return transformers.GPT2LMHeadModel(config).eval()
        if kind == "gemma":
            config = transformers.GemmaConfig(**TINY, num_key_value_heads=1, head_dim=8, max_position_embeddings=32)
            return transformers.GemmaForCausalLM(config).eval()
        name = {"bert": "Bert", "roberta": "Roberta"}[kind]
        config = getattr(transformers, f"{name}Config")(**TINY, max_position_embeddings=32)
        return getattr(transformers, f"{name}Model")(config).eval()


def runs(arm: str, steps: list[int | None]) -> list[ArmRun]:
    return [ArmRun("e", arm, seed, step, step or 100, 0.0, 0.0, 1.0) for seed, step in enumerate(steps)]


@pytest.mark.parametrize("kind", ["gpt2", "bert", "roberta", "gemma"])
def test_every_architecture_of_the_paper_gets_all_its_numbers(kind: str) -> None:
    readout: Any = ("next-token-probability", "frozen") if kind in ("gpt2", "gemma") else "embedding"
    subject = mp.Subject(tiny(kind), mp.Tokens(40, 6, exclude=(0, 1, 2)), readout, name=kind)
    found = language_findings(subject, budget=90, contexts=8, repeat_budget=40)
    assert len(found["functions"]) == 2
    for function in found["functions"]:
        tail = function["tail"]
        # W^{>=15} of 6 tokens is 0, which the programme knows and I/15 does not.
        assert tail["best"]["high"] == 0
        assert tail["sensitivity"]["high"] > 0
        assert 0 <= tail["stability"]["low"] <= tail["stability"]["value"] <= tail["stability"]["high"]
        assert len(function["influences"]["value"]) == 6
        assert 1 <= function["junta"]["low"] <= function["junta"]["high"] <= 6
        assert 0 <= function["sink"]["first_mass"] <= 1
        # 99% intervals of a random model at two seeds: overlap, up to a chance of 4 columns x 2%, seed fixed.
        assert rows.repeat_row(kind, tail, function["repeat"]).status == rows.REPRODUCED


def test_the_median_split_is_the_sign_of_the_models_own_readout_above_its_median() -> None:
    subject = mp.Subject(tiny("gpt2"), mp.Tokens(40, 6), ("next-token-probability", "frozen"))
    split, plain = functions_of(subject).values()
    points = subject.domain.sample(400, torch.Generator().manual_seed(7))
    assert torch.equal(plain(points), plain(points.flip(0)).flip(0))
    assert torch.allclose(plain(points), subject(points), atol=1e-6)
    order = plain(points).argsort()
    signs = split(points)[order]
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert torch.equal(signs, signs.sort().values)
    # The median of 64 inputs has rank 200 +- 25 of 400; 150 is 6 deviations away.
    assert abs(float(signs.mean())) < 0.75


def test_an_input_is_computed_once_for_all_functions() -> None:
    calls: list[int] = []

    def counted(points: torch.Tensor) -> torch.Tensor:
        calls.append(len(points))
        return points.double().mean(1) / 40

    subject = mp.Subject(counted, mp.Tokens(40, 6), range=(0, 1))
    split, plain = functions_of(subject).values()
    points = subject.domain.sample(50, torch.Generator().manual_seed(3))
    signs, before = split(points), sum(calls)
    values = plain(points)
    assert sum(calls) == before
    assert float(values[signs > 0].min()) >= float(values[signs < 0].max())


def test_neighbours_with_a_shared_prefix_have_the_values_of_full_passes() -> None:
    subject = mp.Subject(tiny("gpt2"), mp.Tokens(40, 50), ("next-token-probability", "frozen"))
    plain = list(functions_of(subject).values())[1]
    base = subject.domain.sample(1, torch.Generator().manual_seed(1))
    near = base.repeat(51, 1)
    for place in range(50):
        near[1 + place, place] = (near[1 + place, place] + 1) % 40
    assert shares_prefixes(subject)
    assert torch.allclose(plain(near), subject(near), rtol=1e-4)


def test_attention_received_is_what_a_causal_model_of_equal_logits_gives() -> None:
    """With W_Q = 0 attention is uniform: position j gets mean_{q >= j} 1/(q + 1)."""
    model = tiny("gpt2")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_attn" in name:
                parameter[..., :16] = 0
    received = attention_received(
        mp.Subject(model, mp.Tokens(40, 5), ("next-token-probability", "frozen")), inputs=2, seed=0
    )
    assert received is not None
    assert received == pytest.approx([np.mean([1 / (q + 1) for q in range(j, 5)]) for j in range(5)], abs=1e-6)


def test_attention_implementation_is_put_back() -> None:
    model: Any = tiny("gpt2")
    before = model.config._attn_implementation
    attention_received(mp.Subject(model, mp.Tokens(40, 5), "last-token"), inputs=1, seed=0)
    assert model.config._attn_implementation == before


def test_a_model_without_attention_weights_has_none() -> None:
    assert attention_received(mp.Subject(torch.nn.Embedding(4, 2), mp.Tokens(4, 3)), inputs=1, seed=0) is None


def test_position_bias_of_known_influences() -> None:
    bias = position_bias(np.array([6.0, 0.5, 0.5, 3.0]))
    assert (bias.first_share, bias.last_share, bias.largest) == (0.6, 0.3, 0)
    assert bias.first_or_last_largest
    assert bias.smallest_count == 2
    with pytest.raises(mp.ArgumentError, match="does not depend"):
        position_bias(np.zeros(3))


def test_sink_correlation_is_one_for_the_same_order() -> None:
    found = sink_correlation(np.array([0.5, 0.1, 0.2, 0.3]), np.array([1.0, 2.0, 7.0]), [1, 2, 3])
    assert found.correlation == pytest.approx(1.0)
    assert found.first_mass == 0.5


@pytest.mark.parametrize(
    ("differences", "expected"), [([-1.0] * 6, 2 / 64), ([1.0, -1.0], 1.0), ([3.0, 1.0, 1.0], 0.25)]
)
def test_sign_flip_p_value_by_enumeration(differences: list[float], expected: float) -> None:
    assert sign_flip_p_value(differences) == pytest.approx(expected)


def test_runs_that_never_arrive_count_as_the_limit() -> None:
    both = runs("none", [50, 60, 70]) + runs("arm", [25, None, 35])
    found = compare(both, "arm", limit=100)
    assert (found.reached, found.faster, found.seeds) == (2, 2, 3)
    assert found.ratio == pytest.approx(35 / 60)
    with pytest.raises(mp.ArgumentError, match="no seed in common"):
        compare(both, "other", limit=100)


@pytest.mark.parametrize(
    ("ratio", "p_value", "reached", "base", "status"),
    [
        (0.5, 0.03, 6, [10] * 6, rows.REPRODUCED),
        (0.5, 0.2, 6, [10] * 6, rows.PARTLY),
        (0.9, 0.03, 6, [10] * 6, rows.NOT),
        (1.0, 1.0, 1, [None] * 6, rows.OUT),
    ],
)
def test_status_of_a_speed_claim(
    ratio: float, p_value: float, reached: int, base: list[int | None], status: str
) -> None:
    experiment = {"runs": [{"arm": "none", "steps": steps} for steps in base]}
    assert rows.speed_status(experiment, {"ratio": ratio, "p_value": p_value, "reached": reached, "seeds": 6}) == status


def test_arms_use_the_papers_pair_as_keep_and_both_signs() -> None:
    chosen = {arm.name: arm for arm in arms(0.75, 0.25, 31, all_controls=True, decay=1.0)}
    assert chosen["none"].regulariser is None
    for name in ("encourage", "discourage"):
        regulariser = chosen[name].regulariser
        assert regulariser is not None
        assert (regulariser.keep, regulariser.direction) == (0.625, name)
    assert chosen["weight decay x 2"].weight_decay == 2.0


def test_theory_rows_hold() -> None:
    for row in (*concentration_checks(), *boolean_checks(), *categorical_checks()):
        assert row.holds, row


def test_the_page_names_every_claim_and_its_status(tmp_path: Path) -> None:
    experiment = modular_addition(31, 40)
    found = [run_arm(experiment, arm, 0) for arm in experiment.arms if arm.name in ("none", "encourage")]
    data = {
        "preset": {"name": "quick", "seeds": 1},
        "machine": machine(),
        "seed": 0,
        "started": "today",
        "checks": [{**vars(row), "holds": row.holds} for row in concentration_checks()],
        "models": [],
        "experiments": [
            {
                "name": experiment.name,
                "limit": 40,
                "metric": "accuracy",
                "threshold": 0.99,
                "runs": [{**vars(run), "milliseconds": run.milliseconds} for run in found],
                "comparisons": [vars(compare(found, "encourage", 40))],
            }
        ],
        "not_run": ["model smollm2"],
    }
    page = markdown(data)
    assert "| modular addition, K = 31: encourage reaches the threshold in fewer steps |" in page
    assert rows.OUT in page
    assert "Not run: model smollm2." in page
    pytest.importorskip("matplotlib")
    assert [path.name for path in write_figures(data, tmp_path)] == ["steps.png"]


def test_discouraging_reaches_99_percent_first_in_four_of_five_seeds() -> None:
    """Spec C5 (c): about 300 steps against 660. Every seed of the report agrees, so a miss of two is no accident."""
    experiment = modular_addition(31, 400)
    chosen = {arm.name: arm for arm in experiment.arms}
    faster = 0
    for seed in range(5):
        ours, plain = (run_arm(experiment, chosen[name], seed).steps for name in ("discourage", "none"))
        faster += ours is not None and (plain is None or ours < plain)
    assert faster >= 4


def test_marked_positions_have_the_distribution_of_the_influence() -> None:
    """Parity of positions 0, 1, 2 of 8: they have one influence, the others none."""

    def product(points: torch.Tensor) -> torch.Tensor:
        return 1 - 2 * (points[:, :3].sum(1) % 2).double()

    subject = mp.Subject(product, mp.Tokens(2, 8), range=(-1, 1))
    counts = marked_positions(subject, budget=4000, seed=0, level=0.01)
    # 2,000 pairs, each at one of 8 positions and redrawn to the other value half of the time: 125 a position +- 11.
    assert counts[3:].sum() == 0
    assert counts[:3] == pytest.approx([125] * 3, abs=70)
    assert junta_bounds(counts, 0.9, 0.01) == (3, 3)


def test_junta_bounds_of_extreme_counts() -> None:
    assert junta_bounds(np.array([200, 0, 0, 0]), 0.9, 0.01) == (1, 1)
    assert junta_bounds(np.zeros(5, dtype=np.int64), 0.9, 0.01) == (1, 5)
    assert junta_bounds(np.full(20, 100), 0.9, 0.01)[0] == 18
    with pytest.raises(mp.ArgumentError, match="share"):
        junta_bounds(np.array([1, 2]), 1.0, 0.01)


def test_junta_bounds_miss_no_more_often_than_stated() -> None:
    """10 of 40 positions hold exactly 90%: more than 32 of 1,000 misses at a level of .01 have chance below 1e-6."""
    weights = np.concatenate([np.full(10, 0.09), np.full(30, 0.1 / 30)])
    draws = np.random.default_rng(0).multinomial(150, weights, size=1000)
    misses = 0
    for counts in draws:
        least, greatest = junta_bounds(counts, 0.9, 0.01)
        misses += not least <= 10 <= greatest
    assert misses <= 32


def interval(low: float, high: float) -> dict[str, float]:
    return {"value": (low + high) / 2, "low": low, "high": high}


@pytest.mark.parametrize(
    ("stability", "sensitivity", "status"),
    [
        ((0.1, 0.2), (0.4, 0.6), rows.REPRODUCED),
        ((0.7, 0.9), (0.4, 0.6), rows.NOT),
        ((0.1, 0.5), (0.4, 0.6), rows.OUT),
        ((0.5, 0.9), (0.4, 0.6), rows.OUT),
    ],
)
def test_the_tail_comparison_is_decided_by_certified_ends(
    stability: tuple[float, float], sensitivity: tuple[float, float], status: str
) -> None:
    ends = {name: interval(0.0, 0.1) for name in ("best", "best / variance")}
    ends |= {"stability": interval(*stability), "sensitivity": interval(*sensitivity)}
    function = {"readout": "f", "tail": ends, "junta": {"low": 3, "high": 9, "marked": [50, 50]}, "bias": None}
    first, second = rows.model_findings({"model": "m", "measure": "u", "functions": [function]})
    assert first.status == status
    assert second.status == rows.REPRODUCED


def test_a_repeat_counts_only_where_every_columns_intervals_overlap() -> None:
    table = {"sensitivity": interval(0.1, 0.3), "stability": interval(0.2, 0.4)}
    same = {"sensitivity": interval(0.3, 0.5), "stability": interval(0.0, 0.9)}
    other = same | {"stability": interval(0.41, 0.9)}
    assert rows.repeat_row("m", table, {"seed": 1, "tail": same}).status == rows.REPRODUCED
    found = rows.repeat_row("m", table, {"seed": 1, "tail": other})
    assert (found.status, found.evidence) == (rows.NOT, "1 of 2 columns overlap with those of seed 1; apart: stability")


def test_a_text_of_ones_own_is_an_experiment_beside_the_presets(tmp_path: Path) -> None:
    words = np.random.default_rng(0).choice([f"w{k}" for k in range(300)], 40_000)
    path = tmp_path / "wiki.train.tokens"
    path.write_text(" ".join(words), encoding="utf-8")
    names = [experiment.name for experiment in experiments(PRESETS["quick"], path)]
    assert names == ["next token, wiki.train.tokens", "modular addition, K = 31"]
    experiment = experiments(PRESETS["quick"], path)[0]
    found = run_arm(replace(experiment, steps=2), experiment.arms[0], 0)
    # An untrained model of 500 symbols guesses about uniformly: ln 500 nats a token, and any step helps.
    assert found.ran == 2
    assert found.best < np.log(500) + 0.5


def test_a_text_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--text", str(tmp_path / "none.txt")])
    assert "none.txt: there is no such file" in capsys.readouterr().err
