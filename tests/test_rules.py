"""The grammar of regression rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import modelprops as mp
from modelprops.plugin.options import OPTIONS
from modelprops.rules import Rule, default_rules, parse_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sensitivity:mean+5%", Rule("sensitivity", None, 1, share=0.05)),
        ("stability@0.9:-0.02", Rule("stability", 0.9, -1, amount=0.02)),
        ("sharpness:x1.5", Rule("sharpness", None, 1, share=0.5)),
        ("sharpness@1e-1:mean+1e-3", Rule("sharpness", 0.1, 1, amount=1e-3)),
        ("noise_stability:x.9", Rule("noise_stability", None, -1, share=pytest.approx(0.1))),
    ],
)
def test_rules_are_read(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        (":+5%", 0),
        ("sensitivity", 11),
        ("sensitivity:", 12),
        ("sensitivity:5%", 12),
        ("sensitivity:mean5%", 16),
        ("stability@:-0.02", 10),
        ("stability@0.9-0.02", 13),
        ("sharpness:x", 11),
        ("sharpness:x0", 11),
        ("sharpness:x1.5%", 14),
        ("sharpness:+5%%", 13),
        ("sharpness:+-5", 11),
        ("sharpness:+1e999", 11),
    ],
)
def test_an_error_points_at_the_character(text: str, at: int) -> None:
    with pytest.raises(mp.ArgumentError) as caught:
        parse_rule(text)
    shown, caret = str(caught.value).split("\n")[1:]
    assert shown == "  " + text
    assert caret == "  " + " " * at + "^"


def test_a_rule_speaks_of_a_measure_by_its_last_word_and_its_parameter() -> None:
    rule = parse_rule("stability@0.9:-0.02")
    assert rule.speaks_of("noise_stability", {"rho": 0.9})
    assert not rule.speaks_of("noise_stability", {"rho": 0.5})
    assert not rule.speaks_of("average_sensitivity", {"rho": 0.9})
    assert not parse_rule("bility:-0.02").speaks_of("noise_stability", {})


def test_a_rule_is_written_as_it_is_read() -> None:
    for text in ("sensitivity:+5%", "stability@0.9:-0.02", "sharpness:+50%"):
        assert str(parse_rule(text)) == text
        assert parse_rule(str(parse_rule(text))) == parse_rule(text)


def test_a_percentage_is_one_of_the_magnitude_also_below_zero() -> None:
    # 10% of |-2| is 0.2: new <= -1.8 is new <= 0.9 * old
    rule = parse_rule("stability:+10%")
    assert rule.allowed(-2.0) == pytest.approx(0.2)
    assert rule.factor(-2.0) * -2.0 == pytest.approx(-1.8)
    assert rule.factor(2.0) * 2.0 == pytest.approx(2.2)


def test_the_default_knows_which_way_is_worse() -> None:
    assert [str(rule) for rule in default_rules("average_sensitivity")] == ["average_sensitivity:+5%"]
    assert [str(rule) for rule in default_rules("noise_stability")] == ["noise_stability:-5%"]
    assert [str(rule) for rule in default_rules("sharpness", {"radius": 0.1})] == ["sharpness@0.1:+5%"]
    assert len(default_rules("my_own_measure")) == 2


def test_the_recipes_in_the_documentation_are_yaml_with_options_that_exist_and_rules_that_parse() -> None:
    yaml = pytest.importorskip("yaml")
    text = (Path(__file__).parent.parent / "docs" / "gates.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert len(recipes) == 2
    known = {option.flag for option in OPTIONS} | {"--modelprops"}
    for recipe in recipes:
        assert yaml.safe_load(recipe)
        flags = re.findall(r"(--modelprops[a-z-]*)", recipe)
        assert flags
        assert set(flags) <= known
        for rule in re.findall(r"--modelprops-compare-fail=(\S+)", recipe):
            assert str(parse_rule(rule))
