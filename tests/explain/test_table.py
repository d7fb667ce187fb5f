"""The table: whole lines in a pipe, folded on a terminal, the same words in both."""

from __future__ import annotations

import io
import re

import pytest

from ppcls.explain.description import PipelineDescription, PipelineStage, StageOperator
from ppcls.explain.table import print_descriptions

DESCRIBED = PipelineDescription(
    "DataLoader.Train",
    "DALI on GPU 0",
    {"data": "somewhere", "batch": "[4]"},
    (
        PipelineStage(("read",), (StageOperator("io.file.read", "cpu", "[?] uint8"),)),
        PipelineStage(
            ("[0] DecodeImage", "[1] RandCropImage size=(8, 8)", "[2] Third"),
            (
                StageOperator("decoders.image_slice", "mixed", "[?, ?, 3] HWC uint8"),
                StageOperator("resize", "gpu", "x"),
            ),
            decisions="where",
            fused="DecodeRandCrop",
        ),
    ),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO) -> str:
    print_descriptions([DESCRIBED], stream)
    return stream.getvalue()


def test_in_a_pipe() -> None:
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
        [
            "fused",
            "DecodeImage",
            "+",
            "RandCropImage",
            "+",
            "Third",
            "→",
            "DecodeRandCrop:",
            "decoders.image_slice,",
            "resize",
        ],
        [],
    ]
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "70")
    text = printed(Terminal())
    assert "\x1b[1m" in text
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, shown.splitlines())) <= 70
    assert "mixed" in shown
