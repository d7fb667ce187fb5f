"""``python benchmarks/run.py audit``: how many planted faults `ppcls dataset audit` finds, and how fast."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from benchmarks.audit.plant import FAULTS, PICTURES, Amounts, plant, read_digits, read_fashion_mnist
from ppcls.audit.files import TABLE, read_table
from ppcls.cli.arguments.options import option
from ppcls.cli.command import command, write_output
from ppcls.errors import UserError
from ppcls.runtime.hardware import usable_cores
from ppcls.runtime.launch import ppcls_command

_FIRST = 50  # suspicious labels that a person looks at


@dataclass(frozen=True, kw_only=True)
class AuditBenchmarkOptions:
    """Plant faults into a data set, audit it, and count the faults that are found.

    5 % of the images get a wrong label, 10 are copied across the splits byte for byte and 10 with a change,
    and 10 images are of something else.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py audit",
        "python benchmarks/run.py audit --data fashion-mnist --source dataset/fashion-mnist",
    )

    data: Literal["digits", "fashion-mnist"] = option("digits", "data set")
    source: Path = option(Path("dataset/fashion-mnist"), "folder of Fashion-MNIST")
    images: int | None = option(None, "number of images (default: all)", gt=0)
    seed: int = option(0, "seed of the faults", ge=0)
    out: Path = option(Path("audit-benchmark"), "folder for the pictures, the faults and the audit")


@command("audit", AuditBenchmarkOptions)
def measure_audit(options: AuditBenchmarkOptions) -> None:
    """Plants faults, unless the folder has them, and prints the figures of an audit."""
    folder = options.out / options.data
    if not (folder / FAULTS).is_file():
        data = read_digits() if options.data == "digits" else read_fashion_mnist(options.source)
        if options.images is not None and options.images < len(data.labels):
            kept = np.random.default_rng(0).choice(len(data.labels), options.images, replace=False)
            kept.sort()
            data = replace(
                data, pixels=data.pixels[kept], labels=data.labels[kept], validates=data.validates[kept]
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        plant(data, folder, Amounts(), options.seed)
    faults = json.loads((folder / FAULTS).read_text(encoding="utf-8"))
    load = os.getloadavg()[0]
    start = time.monotonic()
    line = ppcls_command("dataset", "audit", str(folder / PICTURES), "--out", str(folder / "audit"))
    done = subprocess.run(line, check=False)  # noqa: S603 - our own command
    seconds = time.monotonic() - start
    if done.returncode:
        raise UserError(f"the audit ended with exit code {done.returncode}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = read_table((folder / "audit" / TABLE).read_bytes())[1:]
    write_output(describe(count_found(rows, faults)))
    write_output(
        f"time: {seconds:.0f} s, {usage.ru_utime + usage.ru_stime:.0f} s of CPU time; memory: "
        f"{usage.ru_maxrss / 2**20:.1f} GB; {usable_cores()} cores, load {load:.0f} at the start, "
        f"{date.today()}\n"
    )


def count_found(rows: Sequence[Sequence[str]], faults: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Returns the number of faults that were found, and how many there are, by kind.

    Args:
        rows: Rows of ``audit.csv`` without its header: kind, rank, file, and other cells.
        faults: Result of `plant`.
    """
    groups: dict[tuple[str, str], set[str]] = {}
    for kind, rank, file, *_ in rows:
        groups.setdefault((kind, rank), set()).add(file)
    duplicates = [
        files for (kind, _), files in groups.items() if kind in ("leak", "contradiction", "exact", "near")
    ]
    suspicious = [file for kind, _, file, *_ in rows if kind == "label"]
    outliers = {file for kind, _, file, *_ in rows if kind == "outlier"}
    planted = {*faults["wrong"], *faults["foreign"]}
    counts = {
        "planted among the first suspicious labels": (
            sum(file in planted for file in suspicious[:_FIRST]),
            min(_FIRST, len(suspicious)),
        ),
        "wrong labels among all suspicious labels": (
            sum(file in faults["wrong"] for file in suspicious),
            len(faults["wrong"]),
        ),
        "foreign images among the outliers": (
            sum(file in outliers for file in faults["foreign"]),
            len(faults["foreign"]),
        ),
    }
    for kind in ("exact", "near"):
        pairs = [set(pair) for pair in faults[kind]]
        counts[f"{kind} duplicates across the splits"] = (
            sum(any(pair <= files for files in duplicates) for pair in pairs),
            len(pairs),
        )
    return counts


def describe(counts: Mapping[str, tuple[int, int]]) -> str:
    """Returns one line per kind of fault."""
    return "".join(f"{kind}: {count} of {total}\n" for kind, (count, total) in counts.items())
