"""A run's report: one HTML file that needs nothing else, written while the run trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from numpy.typing import NDArray

from ppcls.files import write_text
from ppcls.report.budget import Budget
from ppcls.report.confusion import cells, class_name, confused_pairs, describe_mistake
from ppcls.report.events import read_events
from ppcls.report.record import EvalRecord, Histogram, Outcomes, StepRecord
from ppcls.report.series import COLOURS, charts, describe_gaps
from ppcls.report.text import clock
from ppcls.report.thumbnail import NoPictures, Picture, Pictures, data_uri

_EVENTS = 1000
_BAD_IMAGES = 200
_EVERY = 60.0  # seconds, within an epoch


@dataclass(frozen=True)
class About:
    """What a run's report says of the run as a whole.

    Attributes:
        name: Its title.
        config: YAML.
        versions: Package to version.
        hardware: What to what.
        bad_images: File that lists them, where the run goes on without; it need not exist.
        classes: Names by label; may be empty.
        pictures: Training images and the evaluation's samples.
        weights: Gives histograms of the weights, by name.
    """

    name: str = "run"
    config: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    bad_images: Path | None = None
    classes: Sequence[str] = ()
    pictures: Pictures = field(default_factory=NoPictures)
    weights: Callable[[], Mapping[str, Histogram]] = dict


@dataclass
class _Evaluated:
    """The latest evaluation, sample by sample; ``worst`` are its mistakes as pictures, once they are read."""

    epoch: int
    outcomes: Outcomes
    worst: list[dict[str, str]] | None = None


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("ppcls.report", "page"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html.j2")


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name("page").joinpath(name).read_text(encoding="utf-8")


class HtmlReport:
    """Writes ``report.html`` at each epoch's end, each minute within one, and at the end of the run.

    Writing waits where its `Budget` is spent, but the end is always written. A curve has a bounded number
    of points, so a long run's page is no larger.

    Args:
        path: The file.
        events: File of the run's events; see `ppcls.report.events`.
        about: The run.
        earlier: Records of the run before it was resumed.
    """

    def __init__(
        self, path: Path, events: Path, about: About, earlier: Iterable[StepRecord | EvalRecord] = ()
    ) -> None:
        self._path, self._events, self._about = path, events, about
        self._records = list(earlier)
        self._evaluated: _Evaluated | None = None
        self._budget, self._written = Budget(), float("-inf")
        self._closed = self._news = False

    def message(self, text: str) -> None:
        """Does nothing: the file of events has it."""

    def train(self, record: StepRecord) -> None:
        """Writes at the end of an epoch, and where the file is a minute old."""
        self._news = True
        self._records.append(record)
        if record.step == record.steps_per_epoch or time.monotonic() >= self._written + _EVERY:
            self._write_in_time()

    def evaluation(self, record: EvalRecord) -> None:
        """Writes."""
        self._news = True
        if record.outcomes is not None:
            self._evaluated = _Evaluated(record.epoch, record.outcomes)
        self._records.append(replace(record, outcomes=None))
        self._write_in_time()

    def close(self) -> None:
        """Writes how it ended; a page to which nothing came stays as it was."""
        if not self._closed:
            self._closed = True
            if not self._news and self._path.exists():
                return
            self._write()

    def _write_in_time(self) -> None:
        if self._budget.left:
            self._written = time.monotonic()
            with self._budget.spending():
                self._write()

    def _worst(self) -> list[dict[str, str]]:
        """Returns the worst errors that can be read, each evaluation's read once: that may take seconds."""
        evaluated, about = self._evaluated, self._about
        if evaluated is None:
            return []
        if evaluated.worst is None:
            evaluated.worst = []
            for each in evaluated.outcomes.worst:
                picture = about.pictures.evaluated(each.position)
                if picture is not None:
                    caption = describe_mistake(each, about.classes)
                    evaluated.worst.append(_shown(replace(picture, caption=caption)))
        return evaluated.worst

    def _write(self) -> None:
        # A file's name may be no text; that must not cost the page.
        write_text(self._path, self.render().encode("utf-8", "replace").decode("utf-8"))

    def render(self) -> str:
        """Returns the page."""
        about, evaluated = self._about, self._evaluated
        confusion = evaluated.outcomes.confusion if evaluated is not None else None
        return _template().render(
            name=about.name,
            written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            ended=self._closed,
            summary=summary(self._records, ended=self._closed),
            data={
                "charts": [asdict(each) for each in charts(self._records)],
                "colours": COLOURS,
                "confusion": None if confusion is None else _matrix(confusion, about.classes),
            },
            gaps=describe_gaps(self._records),
            evaluated=evaluated,
            worst=self._worst(),
            pairs=[] if confusion is None else confused_pairs(confusion, about.classes),
            augmented=[_shown(each) for each in about.pictures.augmented()],
            events=read_events(self._events, _EVENTS),
            bad_images=_last_lines(about.bad_images),
            versions=about.versions,
            hardware=about.hardware,
            config=about.config,
            style=_asset("uPlot.min.css") + _asset("report.css"),
            library=_asset("uPlot.iife.min.js"),
            script=_asset("report.js"),
        )


def _matrix(confusion: NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    size = len(confusion)
    return {"names": [class_name(classes, each) for each in range(size)], "cells": cells(confusion)}


def _shown(picture: Picture) -> dict[str, str]:
    return {"address": data_uri(picture.pixels), "caption": picture.caption, "title": picture.title}


def summary(records: Iterable[StepRecord | EvalRecord], *, ended: bool = False) -> dict[str, Any]:
    """Returns label to text: how far the run is, and its latest and best results.

    Args:
        records: Of the run.
        ended: Whether it has, done or not; then there is no time left to tell.
    """
    step = evaluation = best = None
    for each in records:
        if isinstance(each, StepRecord):
            step = each
        else:
            evaluation, best = each, each if each.best else best
    shown = {}
    if step is not None:
        done = step.epoch - (step.step < step.steps_per_epoch)
        shown["Epochs"] = f"{done} of {step.epochs}"
        shown["Updates"] = f"{step.update:,}"
        if not ended:
            shown["Time left"] = clock(step.eta_seconds)
        shown["Train loss"] = f"{step.loss:.4g}"
    if evaluation is not None:
        shown["Eval loss"] = f"{evaluation.loss:.4g}"
        shown |= {f"Eval {name}": f"{value:.4f}" for name, value in evaluation.metrics.items()}
    if best is not None and best.metrics:
        name, value = next(iter(best.metrics.items()))
        shown[f"Best {name}"] = f"{value:.4f} (epoch {best.epoch})"
    return shown


def _last_lines(path: Path | None) -> list[str]:
    if path is None or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-_BAD_IMAGES:]
