"""A file of weights that does not fit into memory is an error that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

from ppcls.weights.files import read_arrays


def test_weights_that_do_not_fit_into_memory(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    size = 3 << 30
    header = json.dumps({"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)  # sparse
    code = (
        "import resource\n"
        "from pathlib import Path\n"
        "from ppcls.errors import UserError\n"
        "from ppcls.weights.files import read_arrays\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))\n"
        "try:\n"
        f"    read_arrays(Path({str(file)!r}))\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "weights.safetensors: there is not enough memory to read 3.22 GB" in result.stdout, result.stderr


@pytest.mark.parametrize("spaces", range(9))
def test_arrays_at_any_address_are_read_and_may_be_changed(tmp_path: Path, spaces: int) -> None:
    """Other programs do not pad the header, so that numbers may be at odd addresses."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = json.dumps({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}) + " " * spaces
    file = tmp_path / "weights.safetensors"
    content = len(header).to_bytes(8, "little") + header.encode() + values.tobytes()
    file.write_bytes(content)
    (array,) = read_arrays(file).values()
    assert array.flags.aligned
    assert paddle.to_tensor(array).numpy().tolist() == values.tolist()
    array[:] = 0
    assert file.read_bytes() == content
