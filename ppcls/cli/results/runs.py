"""The command ``ppcls runs``: one table of all runs below a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from ppcls.cli.arguments.options import argument, option
from ppcls.cli.command import command, write_output
from ppcls.errors import UserError
from ppcls.files import open_regular

# A line of train.log. A start of a run first writes where its settings come from, and describes its runtime.
_LOG_LINE = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?P<start>resume: |Paddle \S+ on .+, \d+ process)?"
)
HEADER = ("run", "model", "data", "best", "epochs", "duration", "date")


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List the runs below a folder: model, data, best result, epochs, duration and date.

    The duration is the time in which a run was active, without pauses before a resume.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls runs runs",
        "ppcls runs runs --html runs.html",
        "ppcls runs runs --json",
    )

    folder: Path = argument("folder that contains the output folders of runs")
    html: Path | None = option(None, "write the table to FILE, as a page for a browser", metavar="FILE")
    json: bool = option(False, "print the result as a JSON list")


@dataclass(frozen=True)
class RunSummary:
    """What the table shows of a run. Values that are unknown are None.

    Attributes:
        run: Path of the output folder, relative to the listed folder.
        model: Name of the architecture.
        data: Folder or files of the training images.
        metric: Name of the metric that selects the best model.
        best: Best value of this metric.
        finished_epochs: Number of complete epochs.
        epochs: Number of epochs of the whole run.
        seconds: Time in which the run was active, from the first to the last message of each start.
        date: Time of the last message, in ISO format.
        error: Why the run can't be read.
    """

    run: str
    model: str | None = None
    data: str | None = None
    metric: str | None = None
    best: float | None = None
    finished_epochs: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    date: str | None = None
    error: str | None = None

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of the table, in the order of `HEADER`."""
        from ppcls.report.console import clock

        if self.error is not None:
            return self.run, "?", self.error, "", "", "", ""
        return (
            self.run,
            self.model or "?",
            self.data or "?",
            "no evaluation" if self.best is None else f"{self.metric} {self.best:.4f}",
            "" if self.epochs is None else f"{self.finished_epochs} of {self.epochs}",
            "" if self.seconds is None else clock(self.seconds),
            (self.date or "")[:16].replace("T", " "),
        )


@command("runs", RunsOptions)
def runs(options: RunsOptions) -> None:
    """Lists the runs below a folder."""
    import json

    from ppcls.files import one_line, write_text
    from ppcls.files.outputs import check_suffix
    from ppcls.search.page import render_page

    if options.html is not None:
        check_suffix("--html", options.html, ".html", ".htm")
    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: no such folder; expected the folder of runs, such as runs")
    summaries = sorted(read_runs(options.folder), key=lambda run: run.date or "")
    if not summaries:
        raise UserError(f"{options.folder}: no runs in this folder; expected subfolders with metrics.jsonl")
    rows = [[one_line(cell) for cell in run.cells()] for run in summaries]
    if options.html is not None:
        write_text(options.html, render_page(f"Runs in {options.folder}", [], HEADER, rows))
    if options.json:
        write_output(json.dumps([asdict(run) for run in summaries], indent=2) + "\n")
        return
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    for row in (HEADER, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write_output(f"{line.rstrip()}\n")


def read_runs(folder: Path) -> Iterator[RunSummary]:
    """Yields a summary of each run in a folder and its subfolders."""
    for path in sorted(folder.rglob("metrics.jsonl")):
        if path.is_file() and (path.parent / "config.yaml").is_file():
            yield _read_run(path.parent, folder)


def _read_run(run: Path, folder: Path) -> RunSummary:
    from ppcls.config.base.tree import node_at
    from ppcls.config.base.yaml import read_yaml
    from ppcls.report.jsonlines import read_history

    name = str(run.relative_to(folder)) if run != folder else run.name
    try:
        tree = read_yaml(run / "config.yaml")
        history = read_history(run / "metrics.jsonl")
    except UserError as error:  # a damaged run must not hide the others
        return RunSummary(name, error=str(error))
    dataset = node_at(tree, "DataLoader.Train.dataset")
    if not isinstance(dataset, dict):  # the config may be damaged
        dataset = {}
    paths = dataset.get("paths")
    listed = ", ".join(map(str, paths)) if isinstance(paths, list) else ""
    data = dataset.get("image_root") or listed or dataset.get("name")
    metrics = {} if history.best is None else history.best.metrics
    metric, best = next(iter(metrics.items()), (None, None))
    step = history.last_step
    seconds, date = _read_times(run)
    return RunSummary(
        name,
        str(node_at(tree, "Arch.name")),
        None if data is None else str(data),
        metric,
        best,
        None if step is None else step.epoch - (step.step < step.steps_per_epoch),
        None if step is None else step.epochs,
        seconds,
        date,
    )


def _read_times(run: Path) -> tuple[float | None, str | None]:
    """Returns the duration of a run in seconds and the time of its last message; None if they are unknown."""
    from datetime import datetime

    seconds = 0.0
    first = last = None
    try:
        with open_regular(
            run / "train.log"
        ) as file:  # events.jsonl lacks the progress of a run that was killed
            for line in file:
                if (entry := _LOG_LINE.match(line)) is None:  # a line of a message of several lines
                    continue
                time = datetime.fromisoformat(entry["time"].decode())
                if last is not None and entry["start"]:
                    seconds += (last - (first or last)).total_seconds()
                    first = None
                first = first or time
                last = time
    except (OSError, ValueError):
        return None, None
    if first is None or last is None:
        return None, None
    return seconds + (last - first).total_seconds(), last.isoformat()
