"""Overrides: what `Override.apply` changes, and the forms that are accepted. See also test_load.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.overrides import Override, read_overrides


@pytest.mark.parametrize(
    ("tree", "path", "expected"),
    [
        ({}, "a.b", {"a": {"b": 7}}),
        ({"a": None}, "a.b", {"a": {"b": 7}}),
        ({"a": {"c": 1}}, "a.b", {"a": {"c": 1, "b": 7}}),
        ({"a": [1, {"b": 2}]}, "a.1.b", {"a": [1, {"b": 7}]}),
        ({"a": [1, 2]}, "a[0]", {"a": [7, 2]}),
        ({"a": 1}, "a", {"a": 7}),
    ],
)
def test_apply_sets_one_value(tree: Any, path: str, expected: Any) -> None:
    Override.of_value(path, 7).apply(tree)
    assert tree == expected


@pytest.mark.parametrize(
    ("tree", "path", "message"),
    [
        ({"a": 1}, "a.b", "a is 1, so it has no 'b'"),
        ({"a": []}, "a.0", "a is an empty list, so it has no '0'"),
        ({"a": [1]}, "a.x.b", "a is a list: expected a number from 0 to 0, got 'x'"),
        ({}, "a..b", "expected path=value"),
        ({}, ".".join("a" * 51), "nested more than 50 levels deep"),
    ],
)
def test_apply_without_a_place_names_the_override(tree: Any, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Override.of_value(path, 7, "--option 7").apply(tree)
    assert str(caught.value).startswith(f"--option 7\n  {message}")


def test_apply_copies_the_value() -> None:
    override = Override.parse("a={b: [1]}")
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    override.apply(first)
    first["a"]["b"].append(2)
    override.apply(second)
    assert second == {"a": {"b": [1]}}


def test_read_overrides_accepts_all_forms() -> None:
    expected = Override("a.b", 1, "-o a.b=1")
    assert read_overrides("a.b=1") == read_overrides(["a.b=1"]) == read_overrides([expected]) == [expected]
    folder = Path("1e5")
    assert read_overrides({"a": (folder, "1e5"), "b": "010"}) == [
        Override("a", ["1e5", "1e5"], "override a"),
        Override("b", "010", "override b"),
    ]


def test_override_rejects_values_larger_than_a_config() -> None:
    with pytest.raises(ConfigError, match="expected a value of at most 1048576 bytes"):
        Override.parse(f"a={'x' * (1 << 20)}x")
