"""Lists are parsed in pieces into arrays, with the results and errors of one line at a time."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.data.index.arrays import parse_list as parser
from ppcls.data.index.arrays.list_line import LineFormat, ListEntry
from ppcls.data.index.arrays.parse_list import ListArrays, parse_list
from ppcls.errors import UserError, counted

LISTING = Path("list.txt")
FORMS = {
    "once": LineFormat(" ", "once"),
    "classes": LineFormat("\t", "once", 30),
    "long delimiter": LineFormat(" | ", "once"),
    "repeated delimiter": LineFormat("  ", "with cameras"),
    "cameras": LineFormat(" ", "with cameras"),
    "flags": LineFormat(" ", "per class"),
    "two flags": LineFormat("\t", "per class", 2),
    "paths": LineFormat(None, "none"),
    "cut paths": LineFormat(",", "none"),
    "roots": LineFormat(" ", "once", roots=("/x/", "/x/b/")),
    "paths in a root": LineFormat(",", "none", roots=("/",)),
}
_PARTS = st.sampled_from(
    [
        *(
            "a.jpg",
            "b/c.png",
            "b/c/d.jpg",
            "/x",
            "/x/",
            "/x//b",
            "../x",
            "a..b",
            "你.jpg",
            "\u3000",
            "\xa0",
            "é",
            "\udcff",
            "\0",
        ),
        *(" ", "  ", "\t", " | ", "|", ",", "\r", "\x1c", "\x85", ".", "x" * 600, "y" * 4100),
        *("0", "7", "29", "30", "-1", "007", "9" * 18, "9" * 19, "1000000000", "1.5", "٣"),
        *("0,1", "1,0", "1,1,1", "0,2", "1, 0", ",", "0,"),
    ]
)
_LINES = st.one_of(
    st.lists(_PARTS, max_size=6).map("".join),
    st.builds("{}{}{}".format, _PARTS, st.sampled_from([" ", "\t", " | ", "  "]), _PARTS),
    st.builds("d/{}.jpg {} {}".format, st.integers(0, 99), st.integers(0, 40), st.integers(0, 9)),
    st.builds("d/{}.jpg {}".format, st.integers(0, 99), st.integers(0, 40)),
    st.builds("/x/{}.jpg {}".format, st.integers(0, 99), st.integers(0, 40)),
    st.builds("{}\t{}".format, st.sampled_from(["m/n.jpg", "o.jpg"]), st.sampled_from(["0,1", "1,1"])),
)


def parse_lines(data: bytes, form: LineFormat) -> ListArrays:
    """Parses a list line by line."""
    text = data.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    parsed = [(number, form.parse(line)) for number, line in enumerate(text.split("\n"), start=1)]
    entries = [(number, entry) for number, entry in parsed if isinstance(entry, ListEntry)]
    problems = {number: entry for number, entry in parsed if isinstance(entry, str)}
    for number, entry in entries:
        if (difference := form.difference(entry, entries[0][1], entries[0][0])) is not None:
            problems[number] = difference
    if problems:
        lines = [f"{LISTING}, line {number}: {problem}" for number, problem in sorted(problems.items())]
        more = [f"… and {counted(len(lines) - 10, 'more line')}"] if len(lines) > 10 else []
        raise UserError("\n".join(lines[:10] + more))
    if not entries:
        raise UserError(f"{LISTING}: the list is empty; expected lines of '{form}'")
    paths = [entry.path for _, entry in entries]
    cameras = [entry.camera for _, entry in entries]
    return ListArrays(
        np.array(paths),
        np.array(
            [entry.label for _, entry in entries], np.float32 if form.labelled == "per class" else np.int64
        ),
        np.array([number for number, _ in entries]),
        None if cameras[0] is None else np.array(cameras),
        np.array(sorted({path.rpartition(b"/")[0] for path in paths})),
    )


def outcome(parse: object) -> object:
    try:
        arrays = parse()  # type: ignore[operator]
    except UserError as error:
        return str(error)
    return {
        name: None if array is None else (array.dtype, array.tolist())
        for name, array in arrays._asdict().items()
    }


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_parse_list_agrees_with_one_line_at_a_time(form: LineFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(_LINES, max_size=25),
        st.sampled_from(["\n", "\r\n", "\r"]),
        st.booleans(),
        st.integers(1, 200),
    )
    def check(lines: list[str], ending: str, ends: bool, piece: int) -> None:
        monkeypatch.setattr(parser, "_PIECE", piece)
        data = os.fsencode(ending.join(lines) + ending * ends)
        expected = outcome(lambda: parse_lines(data, form))
        assert outcome(lambda: parse_list(LISTING, io.BytesIO(data), form)) == expected

    check()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_valid_lists_are_parsed_together(
    form: LineFormat, bom: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ordinary lines must not be parsed one by one, which would take seven times as long."""
    delimiter = form.delimiter or " "
    label = {"per class": "1,0", "none": "5"}.get(form.labelled, "5")
    camera = f"{delimiter}3" if form.labelled == "with cameras" else ""
    line = (
        f"\t 目录/图 片.jpg{delimiter}{label}{camera} \r\n" if form.labelled != "none" else "目录/a.jpg\r\n"
    )
    data = bom + (line * 2000).encode()
    expected = outcome(lambda: parse_lines(data, form))
    parsed = 0
    parse = LineFormat.parse

    def count(form: LineFormat, line: str) -> ListEntry | str | None:
        nonlocal parsed
        parsed += 1
        return parse(form, line)

    monkeypatch.setattr(LineFormat, "parse", count)
    assert outcome(lambda: parse_list(LISTING, io.BytesIO(data), form)) == expected
    assert isinstance(expected, dict)
    assert parsed == 1  # the first line, whose form all others must have


@pytest.mark.parametrize("form", [FORMS["once"], FORMS["cameras"]], ids=["once", "cameras"])
def test_large_class_ids_are_exact(form: LineFormat) -> None:
    """NumPy 1 would compute them with 16 or 32 bits."""
    labels = [7, 65_536, 90_000, 987_654_321, 10**17 + 1]
    camera = " 3" if form.labelled == "with cameras" else ""
    data = "".join(f"{label}.jpg {label}{camera}\n" for label in labels).encode()
    arrays = parse_list(LISTING, io.BytesIO(data), form)
    assert arrays.labels.tolist() == labels
    assert outcome(lambda: parse_list(LISTING, io.BytesIO(data), form)) == outcome(
        lambda: parse_lines(data, form)
    )
