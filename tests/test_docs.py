"""The docs keep pace with the code."""

from __future__ import annotations

import re
from pathlib import Path

import modelprops as mp
from modelprops.properties.measure import Measure

DOCS = Path(__file__).parent.parent / "docs"


def public_properties() -> list[str]:
    """Names of public measures and assertions."""
    names = [name for name, module in mp._PUBLIC.items() if module.startswith("properties.")]
    return [name for name in names if name.startswith("assert_") or isinstance(getattr(mp, name), Measure)]


def test_every_public_property_has_a_row() -> None:
    page = (DOCS / "properties.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)`", page, flags=re.MULTILINE))
    named = set(re.findall(r"`(?:mp\.)?(\w+)", page))
    measures = {name for name in public_properties() if not name.startswith("assert_")}
    assertions = {name for name in public_properties() if name.startswith("assert_")}
    assert measures <= rows, f"without a row: {sorted(measures - rows)}"
    assert assertions <= named, f"not mentioned: {sorted(assertions - named)}"


def test_every_measure_states_guarantee_and_source() -> None:
    for name in public_properties():
        value = getattr(mp, name)
        if isinstance(value, Measure):
            text = value.__doc__ or ""
            assert "Guarantee" in text or "guarantee" in text, name
            assert "Source" in text, name


def test_no_public_name_is_hidden_by_a_module_of_the_same_name() -> None:
    """Importing `modelprops.search` would turn `mp.search` into a module."""
    package = Path(mp.__file__).parent
    modules = {path.stem for path in package.glob("*.py")} | {path.name for path in package.iterdir() if path.is_dir()}
    assert not modules & set(mp._PUBLIC)
