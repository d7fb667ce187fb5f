"""The table: whole lines in a pipe, wrapped lines on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from small_description import DESCRIBED

from ppcls.explain.description import print_descriptions


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO) -> str:
    print_descriptions([DESCRIBED], stream)
    return stream.getvalue()


def test_pipe_gets_plain_unwrapped_lines() -> None:
    lines = printed(io.StringIO()).splitlines()
    assert [line.split() for line in lines] == [
        ["DataLoader.Train:", "DALI", "on", "GPU", "0"],
        ["data", "somewhere"],
        ["batch", "[4]"],
        [],
        ["transform_ops", "operator", "device", "output", "decided", "per", "image"],
        [lines[5]],
        ["read", "io.file.read", "cpu", "[?]", "uint8"],
        [
            "╭",
            "[0]",
            "DecodeImage",
            "decoders.image_slice",
            "mixed",
            "[?,",
            "?,",
            "3]",
            "HWC",
            "uint8",
            "where",
        ],
        ["│", "[1]", "RandCropImage", "size=(8,", "8)", "resize", "gpu", "x"],
        ["╰", "[2]", "Third"],
        [],
    ]
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_terminal_gets_styled_wrapped_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "70")
    text = printed(Terminal())
    assert "\x1b[1m" in text
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, shown.splitlines())) <= 70
    assert "mixed" in shown
