"""Pools of threads in a process that has no memory for another thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runs import GUARD

# Limits the memory of the process to what it has, which is less than the stack of a thread needs.
PROGRAM = """
import resource, threading
from pathlib import Path
from ppcls.serve.pools import TimedPool

def limit():
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))

before = threading.active_count()
pool = TimedPool(3, "prepare")
limit()
both = threading.Barrier(3)
futures = [pool.submit(both.wait, 60) for _ in range(3)]
print(sorted(future.result() for future in futures))
try:
    TimedPool(3, "more")
except MemoryError as error:
    print("no memory:", error)
pool.shutdown()
print(threading.active_count() - before)
"""


def test_pool_needs_no_memory_for_threads_after_its_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert done.stdout.splitlines() == ["[0, 1, 2]", "no memory: more: can't start new thread", "0"], done
