"""What a file of weights may hold, and what a user reads when it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.build import read_weights
from ppcls.errors import UserError

INDEX = FileIndex(Path("images"), np.array([b"a", b"b", b"c"]), np.array([0, 1, 1]), Path("list.txt"))


def write(folder: Path, text: str) -> Path:
    file = folder / "weights.txt"
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize("text", ["0.5\n2\n0\n", "\ufeff0.5\r\n 2e0 \r\n\r\n0", "5e-1\n\n2.\n+0"])
def test_read_weights_reads_one_weight_per_line(tmp_path: Path, text: str) -> None:
    found = read_weights(write(tmp_path, text), INDEX)
    assert found.dtype == np.float64
    assert found.tolist() == [0.5, 2.0, 0.0]


def test_read_weights_names_wrong_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "1\n\n-2\nmany\nnan\ninf\n1 2\n3")
    with pytest.raises(UserError) as caught:
        read_weights(file, INDEX)
    assert str(caught.value).splitlines() == [
        f"{file}, line 3: expected a number >= 0, got '-2'",
        f"{file}, line 4: expected a number >= 0, got 'many'",
        f"{file}, line 5: expected a number >= 0, got 'nan'",
        f"{file}, line 6: expected a number >= 0, got 'inf'",
        f"{file}, line 7: expected a number >= 0, got '1 2'",
    ]


def test_read_weights_shows_ten_wrong_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_weights(write(tmp_path, "x\n" * 12), INDEX)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 2 more lines"


@pytest.mark.parametrize("lines", [0, 2, 4])
def test_read_weights_rejects_another_number_of_weights(tmp_path: Path, lines: int) -> None:
    file = write(tmp_path, "1\n" * lines)
    with pytest.raises(UserError) as caught:
        read_weights(file, INDEX)
    assert str(caught.value) == (
        f"{file}: {lines} weights, but list.txt has 3 samples; expected one for each, in the same order"
    )


def test_read_weights_rejects_all_zero(tmp_path: Path) -> None:
    file = write(tmp_path, "0\n0\n0.0\n")
    with pytest.raises(UserError) as caught:
        read_weights(file, INDEX)
    assert str(caught.value) == f"{file}: all weights are 0; expected at least one > 0"


def test_read_weights_reports_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "none.txt"
    with pytest.raises(UserError) as caught:
        read_weights(file, INDEX)
    assert str(caught.value) == (
        f"{file}: can't read these weights: No such file or directory; expected one number per line"
    )
