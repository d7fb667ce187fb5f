"""A long list needs little more memory than its arrays, also in the process that parses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT = 600_000


def test_the_memory_of_a_list_is_that_of_its_arrays(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    with listing.open("wb") as file:
        for start in range(0, COUNT, 100_000):
            lines = (
                b"n%08d/n%08d_%d.JPEG %d\n" % (at // 650, at // 650, at, at // 650)
                for at in range(start, start + 100_000)
            )
            file.write(b"".join(lines))
    code = (
        "import json, resource, sys\n"
        "from pathlib import Path\n"
        "from ppcls.data.index.files import read_list\n"
        "def peak():\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak()\n"
        f"index = read_list(Path({str(tmp_path)!r}), Path({str(listing)!r}), ' ')\n"
        "size = index.paths.nbytes + index.labels.nbytes + index.lines.nbytes\n"
        "print(json.dumps([len(index), size, peak() - before]))\n"
    )
    environment = {**os.environ, "PPCLS_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", code]
    for _ in range(2):  # the first process parses, and the second one maps
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        count, size, peak = json.loads(result.stdout)
        assert count == COUNT
        assert peak < 1.2 * size + (40 << 20)  # a loop over lines needed 6.5 times the size
    assert peak < size / 2 + (16 << 20)
