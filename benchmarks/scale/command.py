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
    "import json, resource, sys, time\n"
    "from pathlib import Path\n"
    "from benchmarks.scale.rows import ROWS\n"
    "work = ROWS[sys.argv[1]][0](Path(sys.argv[2]), int(sys.argv[3]))\n"
    "next(work)\n"
    "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    "start = time.process_time()\n"
    "next(work, None)\n"
    "seconds = time.process_time() - start\n"
    "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base\n"
    "print(json.dumps([seconds, peak / 1024]))\n"
)


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """Measure CPU seconds and memory of work that grows with the number of images, records or metrics.

    Each row runs twice in new processes: on the first start of a machine, and on the next start, or in the
    next process of a run. The memory is the increase of the largest resident size.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py scale --rows list,history --share 0.1",
        "python benchmarks/run.py scale --rows list --checkout ../ppcls-before",
    )

    rows: str = option(",".join(ROWS), f"rows to measure, separated by commas: {', '.join(ROWS)}")
    share: float = option(1.0, "share of the usual number of images or records", gt=0)
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
                seconds, peak = _measure(name, folder, count, home, options.checkout)
                cells += [f"{seconds:.2f}", f"{peak:,.0f}"]
            write_output(f"| {' | '.join(cells)} |\n")


def _measure(name: str, folder: Path, count: int, home: Path, checkout: Path | None) -> tuple[float, float]:
    """Runs a row in a new process. Returns its CPU seconds, and the increase of its memory in MiB."""
    repository = Path(__file__).resolve().parents[2]
    # The checkout comes first, so that its package is imported instead of this one.
    places = [str(place) for place in (checkout, repository) if place is not None]
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "PPCLS_HOME": str(home),
    }
    result = subprocess.run(  # noqa: S603 - the command is ours
        [sys.executable, "-P", "-c", _WORKER, name, str(folder), str(count)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise UserError(f"{name}: the measurement failed: {result.stderr.strip().splitlines()[-1:]}")
    seconds, peak = json.loads(result.stdout)
    return seconds, peak
