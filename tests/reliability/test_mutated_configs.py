"""Configs with any bytes and any values changed: each loads, or is refused in our own words; none hangs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_source import register_example_source
from figures import Figure
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import BYTE_CHANGE, TREE_CHANGE, Tally, change_tree, mutate
from paths import ROOT
from small_tree import small_tree

from ppcls.recipe.load import dump_config, load_config, validate
from ppcls.recipe.schema import Config

pytestmark = pytest.mark.hostile

register_example_source()
SHIPPED = sorted([*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")])
SHIPPED.remove(ROOT / "examples" / "custom_parts.yaml")  # imports a module
TEXTS = [
    *(path.read_bytes() for path in SHIPPED),
    yaml.safe_dump(small_tree(Path("images"), Path("output"))).encode(),
]
TREES = [yaml.safe_load(text) for text in TEXTS]


def check(load: Callable[[], Config]) -> None:
    """Loads a config, and what is loaded once more from its dump."""
    config = load()
    assert validate(yaml.safe_load(dump_config(config)), "dump").model_dump() == config.model_dump()


MANY = [pytest.param(150, id="few"), pytest.param(5_100, id="many", marks=pytest.mark.reliability)]


@pytest.mark.parametrize("count", MANY)
def test_config_with_changed_bytes_is_read_or_rejected(tmp_path: Path, figure: Figure, count: int) -> None:
    tally, path = Tally(), tmp_path / "config.yaml"

    @settings(max_examples=count)
    @given(st.sampled_from(TEXTS), st.lists(BYTE_CHANGE, min_size=1, max_size=4))
    def attack(text: bytes, changes: list[tuple[str, float, Any]]) -> None:
        path.write_bytes(functools.reduce(mutate, changes, text))
        tally.note(lambda: check(lambda: load_config(path)))

    attack()
    figure(f"configs with changed bytes: {tally.describe()}")
    assert sum(tally.counts.values()) >= 0.98 * count


@pytest.mark.parametrize("count", MANY)
def test_config_with_changed_values_and_keys_is_read_or_rejected(figure: Figure, count: int) -> None:
    tally = Tally()

    @settings(max_examples=count)
    @given(st.sampled_from(TREES), st.lists(TREE_CHANGE, min_size=1, max_size=4))
    def attack(tree: Any, changes: list[tuple[str, float, Any]]) -> None:
        changed = copy.deepcopy(tree)
        for change in changes:
            change_tree(changed, change)
        tally.note(lambda: check(lambda: validate(changed, "changed")))

    attack()
    figure(f"configs with changed values, keys and structure: {tally.describe()}")
    assert sum(tally.counts.values()) >= 0.98 * count
