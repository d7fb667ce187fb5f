"""Files of parameters of exported programs."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from programs import parameters

from ppcls.deploy.models.programs.parameters import check_parameters
from ppcls.deploy.models.programs.parts import ProgramError, StoredTensor

pytestmark = pytest.mark.hostile
FIRST = np.arange(6, dtype=np.float32).reshape(2, 3)
SECOND = np.ones(4, np.float32)
EXPECTED = [StoredTensor("b", "float32", (4,)), StoredTensor("a", "float32", (2, 3))]  # stored by name: a, b
CONTENT = parameters(FIRST, SECOND)


def check(content: bytes, folder: Path, expected: list[StoredTensor] = EXPECTED) -> None:
    file = folder / "inference.pdiparams"
    file.write_bytes(content)
    with file.open("rb") as stream:
        check_parameters(stream, expected)


def test_parameters_of_the_program_are_accepted(tmp_path: Path) -> None:
    check(CONTENT, tmp_path)
    check(b"", tmp_path, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "parameter 'a': the file ends before it"),
        (CONTENT[:-1], "parameter 'b': expected values up to byte"),
        (CONTENT + b"abc", "expected 2 parameters, found 3 more bytes"),
        (
            parameters(SECOND, FIRST),
            r"parameter 'a': expected float32 of the shape \[2, 3\] as in the program",
        ),
        (bytes(200), "parameter 'a': expected a tensor, found other bytes"),
        (struct.pack("<IQIi", 0, 1, 0, 4) + CONTENT, "expected a tensor, found other bytes"),
        (struct.pack("<IQIi", 0, 0, 0, -1), "expected a tensor, found other bytes"),
        (struct.pack("<IQIi", 0, 0, 0, 1 << 30), "expected a tensor, found other bytes"),
        (struct.pack("<IQIi", 0, 0, 0, 3) + b"\x08\xff\xff", "damaged description of a tensor"),
        (struct.pack("<IQIi", 0, 0, 0, 2) + b"\x08\x63", "expected a tensor, found the data type 99"),
    ],
)
def test_other_content_is_rejected(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=message):
        check(content, tmp_path)


def test_huge_shape_is_rejected_without_reading_values(tmp_path: Path) -> None:
    content = (
        struct.pack("<IQIi", 0, 0, 0, 22) + b"\x08\x05" + b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f" * 2
    )
    with pytest.raises(ProgramError, match="expected values up to byte"):
        check(content, tmp_path, [StoredTensor("a", "float32", ((1 << 63) - 1,) * 2)])
    assert io.DEFAULT_BUFFER_SIZE
