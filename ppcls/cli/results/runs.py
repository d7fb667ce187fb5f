"""The command ``ppcls runs``: one table of all runs below a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ppcls.cli.arguments.options import argument, option
from ppcls.cli.command import command, write_output
from ppcls.errors import UserError

HEADER = ("run", "model", "data", "best", "epochs", "duration", "date")


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List the runs below a folder: model, data, best result, epochs, duration and date.

    The duration is the time from the first to the last message of a run, including pauses before a resume.
    """

    examples: ClassVar[Sequence[str]] = ("ppcls runs runs", "ppcls runs runs --html runs.html")

    folder: Path = argument("folder that contains the output folders of runs")
    html: Path | None = option(None, "write the table to FILE, as a page for a browser", metavar="FILE")


@command("runs", RunsOptions)
def runs(options: RunsOptions) -> None:
    """Lists the runs below a folder."""
    from ppcls.files import write_text
    from ppcls.search.page import render_page

    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: no such folder; expected the folder of runs, such as runs")
    rows = sorted(read_runs(options.folder), key=lambda row: row[-1])
    if not rows:
        raise UserError(f"{options.folder}: no runs in this folder; expected subfolders with metrics.jsonl")
    if options.html is not None:
        write_text(options.html, render_page(f"Runs in {options.folder}", [], HEADER, rows))
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    for row in (HEADER, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write_output(f"{line.rstrip()}\n")


def read_runs(folder: Path) -> Iterator[list[str]]:
    """Yields the cells of the table for each run in a folder and its subfolders, in the order of `HEADER`."""
    for path in sorted(folder.rglob("metrics.jsonl")):
        if path.is_file() and (path.parent / "config.yaml").is_file():
            yield _read_run(path.parent, folder)


def _read_run(run: Path, folder: Path) -> list[str]:
    from ppcls.config.base.tree import node_at
    from ppcls.config.base.yaml import read_yaml
    from ppcls.report.jsonlines import read_history

    name = str(run.relative_to(folder)) if run != folder else run.name
    try:
        tree = read_yaml(run / "config.yaml")
        history = read_history(run / "metrics.jsonl")
    except UserError as error:  # a damaged run must not hide the others
        return [name, "?", str(error), "", "", "", ""]
    dataset = node_at(tree, "DataLoader.Train.dataset") or {}
    data = dataset.get("image_root") or ", ".join(dataset.get("paths") or []) or dataset.get("name")
    best = "no evaluation"
    if history.best is not None and history.best.metrics:
        metric, value = next(iter(history.best.metrics.items()))
        best = f"{metric} {value:.4f}"
    step = history.last_step
    finished = 0 if step is None else step.epoch - (step.step < step.steps_per_epoch)
    epochs = "" if step is None else f"{finished} of {step.epochs}"
    return [name, str(node_at(tree, "Arch.name")), str(data), best, epochs, *_read_times(run)]


def _read_times(run: Path) -> tuple[str, str]:
    """Returns the duration of a run and the time of its last message; empty texts if they are unknown."""
    from datetime import datetime

    from ppcls.report.console import clock
    from ppcls.report.jsonlines import read_events

    events = read_events(run / "events.jsonl", 10_000)
    if not events:
        return "", ""
    try:
        first, last = (datetime.fromisoformat(events[position].time) for position in (0, -1))
    except ValueError:
        return "", ""
    return clock((last - first).total_seconds()), f"{last:%Y-%m-%d %H:%M}"
