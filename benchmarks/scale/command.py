"""``python benchmarks/run.py scale``: costs that grow with the data, before and after a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from benchmarks.scale.rows import ROWS
from ppcls.cli.arguments.options import option
from ppcls.cli.command import command, write_output
from ppcls.errors import UserError

_WORKER = (
    "import json, os, resource, sys, time\n"
    "from pathlib import Path\n"
    "from benchmarks.scale.rows import ROWS\n"
    "results = os.fdopen(os.dup(1), 'w', buffering=1)\n"
    "os.dup2(2, 1)\n"  # what the work prints
    "work = ROWS[sys.argv[1]][0](Path(sys.argv[2]), int(sys.argv[3]))\n"
    "next(work)\n"
    "print('ready', file=results)\n"
    "sys.stdin.readline()\n"
    "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    "start = time.process_time()\n"
    "next(work, None)\n"
    "seconds = time.process_time() - start\n"
    "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base\n"
    "print(json.dumps([seconds, peak / 1024]), file=results)\n"
)


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """Measure CPU seconds and memory of work that grows with the number of images, records or metrics.

    Each row runs twice in new processes: on the first start of a machine, and on the next start, or in the
    next process of a run. The memory is the increase of the largest resident size. With --processes, that
    many processes start together, like the ranks of a run: the table then has the sum of their CPU seconds,
    and the memory of the largest one.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py scale --rows list,history --share 0.1",
        "python benchmarks/run.py scale --rows list --checkout ../ppcls-before",
        "python benchmarks/run.py scale --rows list --share 0.1 --processes 4",
    )

    rows: str = option(",".join(ROWS), f"rows to measure, separated by commas: {', '.join(ROWS)}")
    share: float = option(1.0, "share of the usual number of images or records", gt=0)
    processes: int = option(1, "number of processes that start together", ge=1, le=64)
    folder: Path | None = option(
        None, "folder for the data, which are kept (default: a temporary folder)", metavar="FOLDER"
    )
    checkout: Path | None = option(
        None, "folder of another version of ppcls to measure (default: this one)", metavar="FOLDER"
    )


@command("scale", ScaleOptions)
def measure_scale(options: ScaleOptions) -> None:
    """Prints a table of the rows."""
    names = options.rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        raise UserError(f"--rows: unknown {', '.join(unknown)}; expected some of {', '.join(ROWS)}")
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_output("| work | first: CPU s | MiB | next: CPU s | MiB |\n| --- | --- | --- | --- | --- |\n")
        for name in names:
            _, usual, text = ROWS[name]
            count = max(1, round(options.share * usual))
            cells = [f"{count:,} {text}"]
            home = Path(temporary) / f"home-{name}"
            for _ in range(2):
                commands = _Commands(folder, count, home, options.checkout)
                seconds, peak = commands.measure(name, options.processes)
                cells += [f"{seconds:.2f}", f"{peak:,.0f}"]
            write_output(f"| {' | '.join(cells)} |\n")


@dataclass(frozen=True)
class _Commands:
    """Starts processes that measure a row.

    Attributes:
        folder: Folder of the data.
        count: Number of images or records.
        home: Value of ``PPCLS_HOME``.
        checkout: Folder of another version of ppcls; None for this one.
    """

    folder: Path
    count: int
    home: Path
    checkout: Path | None

    def measure(self, name: str, processes: int) -> tuple[float, float]:
        """Returns the CPU seconds of all processes, and the increase of the memory of the largest in MiB."""
        repository = Path(__file__).resolve().parents[2]
        # The checkout comes first, so that its package is imported instead of this one.
        places = [str(place) for place in (self.checkout, repository) if place is not None]
        environment: dict[str, Any] = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(places),
            "PPCLS_HOME": str(self.home),
        }
        command = [sys.executable, "-P", "-c", _WORKER, name, str(self.folder), str(self.count)]
        started = []
        for _ in range(processes):
            process = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            process.stdout.readline()  # the first process prepares the data
            started.append(process)
        for process in started:
            assert process.stdin is not None
            if process.poll() is None:
                process.stdin.write("start\n")
                process.stdin.flush()
        results = []
        for process in started:
            output, errors = process.communicate()
            if process.returncode:
                raise UserError(f"{name}: the measurement failed: {errors.strip().splitlines()[-1:]}")
            results.append(json.loads(output))
        return sum(seconds for seconds, _ in results), max(peak for _, peak in results)
