"""Starts a server in a separate process, as a user would start it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from paths import ROOT
from runs import GUARD

TOOL = ROOT / "tools" / "serve.py"


def free_port() -> int:
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@dataclass
class Running:
    process: subprocess.Popen[str]
    address: str

    def client(self) -> httpx.Client:
        # The certificates of servers in tests are unknown. Reading the known ones takes a tenth of a second.
        return httpx.Client(base_url=self.address, timeout=GUARD, verify=False)


@contextmanager
def running(folder: Path, *options: str | Path, before: str = "") -> Iterator[Running]:
    """Starts ``tools/serve.py`` in a folder after the code ``before``, and ends it with the block."""
    program = ["-c", f"{before}\nimport runpy\nrunpy.run_path({str(TOOL)!r}, run_name='__main__')"]
    command = [sys.executable, *(program if before else [str(TOOL)]), *map(str, options), "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = next(
                (line for line in process.stdout if " served on http" in line), None
            )  # --verify prints more
            assert line is not None, process.stderr.read()
            yield Running(process, line.split(" served on ")[1].split()[0])
        finally:
            process.kill()
