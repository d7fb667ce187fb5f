"""A file of weights that does not fit into memory is an error that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


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
