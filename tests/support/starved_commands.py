"""Runs each command twice in one process: with usual images, and then without memory for larger ones.

Usage: ``starved_commands.py USUAL LARGE MEBIBYTES COMMAND...``. In each command, ``@`` is replaced by one of
the folders.
"""

from __future__ import annotations

import resource
import shlex
import sys
from pathlib import Path

from ppcls.cli.main import main


def limit_memory(mebibytes: int) -> None:
    """Limits the address space of this process to ``mebibytes`` more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


if __name__ == "__main__":
    usual, large, mebibytes, *commands = sys.argv[1:]
    for number, command in enumerate(commands):
        first = main(shlex.split(command.replace("@", usual).replace("%", f"{number}_usual")))
        limit_memory(int(mebibytes))
        second = main(shlex.split(command.replace("@", large).replace("%", f"{number}_large")))
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        sys.stdout.write(f"CODES {first} {second}\n")
