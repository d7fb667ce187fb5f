"""YAML: what is written is read as the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.overrides import Override
from ppcls.config.base.yaml import MAX_BYTES, dump_yaml, parse_yaml, read_yaml

# Text that some reader of YAML takes for another type.
TEXTS = [
    "1e5",
    "1E-3",
    "010",
    "0x1f",
    "1:30",
    "1:30.5",
    "-0_7",
    "1_000",
    "on",
    "no",
    "null",
    "~",
    "",
    " a",
    "a: b",
    "- a",
    "2024-01-01",
    "...",
    "a\nb",
    "\x85",
    "a\u2028b",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()), max_size=12)
    | st.sampled_from(TEXTS),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc1e", min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("in_one_line", [False, True])
def test_text_stays_text(text: str, in_one_line: bool) -> None:
    assert parse_yaml(dump_yaml(text, in_one_line=in_one_line), "text") == text
    assert parse_yaml(dump_yaml({"a": [text]}, in_one_line=in_one_line), "text") == {"a": [text]}


@given(VALUES)
def test_values_are_read_as_written(value: Any) -> None:
    for text in (dump_yaml(value), dump_yaml(value, in_one_line=True)):
        again = parse_yaml(text, "text")
        assert again == value
        assert type(again) is type(value)


@given(VALUES)
def test_one_line_has_no_line_break(value: Any) -> None:
    assert "\n" not in dump_yaml(value, in_one_line=True)


@given(
    st.from_regex(r"[-+]?(0[0-7_]{1,6}|[1-9][0-9]{0,3}(:[0-5]?[0-9]){1,3}(\.[0-9]{0,2})?)", fullmatch=True)
)
def test_octal_and_sexagesimal_numbers_are_errors(text: str) -> None:
    for yaml_text in (text, f"[1, {text}]", f"{{key: {text}}}"):
        with pytest.raises(ConfigError, match="expected a decimal number, or text in quotes"):
            parse_yaml(yaml_text, "test")
        with pytest.raises(ConfigError, match="expected a decimal number, or text in quotes"):
            Override.parse(f"Global.seed={yaml_text}")
    assert parse_yaml(f"'{text}'", "test") == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("10", 10),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0.5", 0.5),
        ("00.5", 0.5),
        ("08", "08"),
    ],
)
def test_other_numbers_are_read(text: str, value: object) -> None:
    assert parse_yaml(text, "test") == value


@pytest.mark.parametrize("more", [0, 1])
def test_file_may_have_the_largest_size(tmp_path: Path, more: int) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"a: 1 #" + b"x" * (MAX_BYTES - 6 + more))
    if more:
        with pytest.raises(ConfigError, match=f"larger than {MAX_BYTES} bytes"):
            read_yaml(path)
    else:
        assert read_yaml(path) == {"a": 1}
