"""Writes the HTML report of a run: one self-contained file, which is updated during training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from functools import cache
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ppcls.errors import UserError
from ppcls.files import escape_controls, read_regular, write_text
from ppcls.files.tables import BYTE_ORDER_MARK
from ppcls.report.charts import COLOURS, MAX_METRICS, build_charts, describe_gaps, merge_short_records
from ppcls.report.confusion import (
    CONFUSION_FILE,
    MISTAKES_FILE,
    class_name,
    class_recalls,
    confused_pairs,
    confusion_csv,
    describe_label_mistake,
    describe_mistake,
    expected_calibration_error,
    label_scores,
    mistakes_csv,
    nonzero_cells,
    reliability_bins,
)
from ppcls.report.console import clock
from ppcls.report.history import History
from ppcls.report.jsonlines import read_events
from ppcls.report.record import (
    EvalRecord,
    Histogram,
    LabelOutcomes,
    Mistake,
    Outcomes,
    Record,
    Reporter,
    StepRecord,
    TimeBudget,
)
from ppcls.report.stored_evaluation import EVALUATION_FILE, StoredEvaluation, store_evaluation
from ppcls.report.summary.certainty import advise, measure_certainty
from ppcls.report.summary.curve import CURVE_FILE, describe_curve, read_curve
from ppcls.report.summary.facts import describe_device, read_batch_size
from ppcls.report.thumbnail import AuditPart, Picture, PictureSource, data_uri

_MAX_EVENTS = 1000
_MAX_BAD_IMAGES = 200
_INTERVAL = 60.0  # seconds between two updates of the file within an epoch
# Time for heat maps: minimum and maximum in seconds, and the share of the duration of the run.
_HEAT_MAP_SECONDS = (1.0, 20.0)
_HEAT_MAP_SHARE = 0.02
# The same for the audit of the images.
_AUDIT_SECONDS = (20.0, 60.0)
_AUDIT_SHARE = 0.05
_LEAST_HEAT_MAPS = 1.0  # seconds; with less, there are no heat maps


@dataclass(frozen=True)
class RunInfo:
    """Properties of a run that its report shows.

    Attributes:
        name: Title of the report.
        config: The config as YAML text.
        versions: Package versions, keyed by package name.
        hardware: Properties of the hardware, keyed by label.
        bad_images: File that lists the skipped images. It may not exist.
        classes: Class names in order of label; may be empty.
        auditable_root: Folder whose labels ``ppcls dataset audit`` can check; None for data in another form.
        from_scratch: Whether the run started with random weights.
        pictures: Source of training images and evaluated samples.
        weights: Function that returns histograms of the weights, keyed by name.
    """

    name: str = "run"
    config: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    bad_images: Path | None = None
    classes: Sequence[str] = ()
    auditable_root: str | None = None
    from_scratch: bool = False
    pictures: PictureSource = field(default_factory=PictureSource)
    weights: Callable[[], Mapping[str, Histogram]] = dict

    @property
    def title(self) -> str:
        """Title of pictures: the name of the run, its device and batch size, and today's date."""
        device = describe_device(self.hardware) if self.hardware else ""
        batch_size = read_batch_size(self.config) if self.config else ""
        facts = [self.name, device, batch_size and f"batch size: {batch_size}", f"{date.today()}"]
        return ", ".join(filter(None, facts))


@dataclass
class _ShownEvaluation:
    """The evaluation whose results per sample the report shows.

    Attributes:
        epoch: Number of finished epochs at the evaluation.
        update: Number of optimizer updates at the evaluation.
        best: Whether it is the best evaluation so far.
        outcomes: Results per sample.
        worst: Pictures of the worst mistakes, keyed by position in the data set; None until they are read.
        note: Sentence about the heat maps; may be empty.
        listed: Whether the table of all mistakes is written.
    """

    epoch: int
    update: int
    best: bool
    outcomes: Outcomes | LabelOutcomes
    worst: dict[int, dict[str, str]] | None = None
    note: str = ""
    listed: bool = False


class HtmlReport(Reporter):
    """Writes ``report.html`` after each epoch, every minute within an epoch, and at the end of the run.

    Beside it, ``mistakes.csv`` lists all mistakes of the evaluation that the report shows, and
    ``confusion.csv`` contains its confusion matrix. ``evaluation.npz`` stores its results for a resumed run.

    If the `TimeBudget` is used up, updates are skipped, except the last one. The number of points per
    curve is limited, so the file does not grow during a long run.

    Args:
        path: Path of the report.
        events: File of the events of the run; see `ppcls.report.jsonlines`.
        info: Properties of the run.
        earlier: Records of the run before it resumed.
        shown: The evaluation that the report showed before the run resumed; None if it is unknown.
    """

    def __init__(
        self,
        path: Path,
        events: Path,
        info: RunInfo,
        earlier: Iterable[Record] = (),
        shown: StoredEvaluation | None = None,
    ) -> None:
        self._path = path
        self._events = events
        self._info = info
        self._records = earlier.copy() if isinstance(earlier, History) else History(earlier)
        self._resumed = bool(self._records)
        self._start = time.monotonic()
        self._evaluation = None if shown is None else self._restore(shown)
        self._audit: AuditPart | None = None
        self._budget = TimeBudget()
        self._written = float("-inf")
        self._closed = self._stale = False
        self._update = 0  # number of updates at the latest message

    def _restore(self, shown: StoredEvaluation) -> _ShownEvaluation | None:
        """Returns the evaluation before the run resumed.

        Returns None if its record is after the checkpoint, or if the evaluated data set has changed.
        """
        if not shown.has_samples(self._info.pictures.name):
            return None
        best = self._records.best
        if best is not None and shown.is_of(best):
            return _ShownEvaluation(shown.epoch, shown.update, True, shown.outcomes)
        if any(shown.is_of(record) for record in self._records.evaluations):
            return _ShownEvaluation(shown.epoch, shown.update, False, shown.outcomes)
        return None

    def message(self, text: str, update: int | None = None) -> None:  # noqa: ARG002
        """Stores the number of updates, because a run can stop between two records.

        The report reads the text from the file of events.
        """
        self._update = max(self._update, update or 0)

    def record(self, record: Record) -> None:
        """Stores a record. Writes the report after an evaluation or an epoch, or if it is one minute old."""
        self._stale = True
        if isinstance(record, EvalRecord):
            shown = self._evaluation
            outcomes = record.outcomes
            if outcomes is not None and (record.best or shown is None or not shown.best):
                self._evaluation = _ShownEvaluation(record.epoch, record.update, record.best, outcomes)
            due = True
        else:
            due = record.step == record.steps_per_epoch or time.monotonic() >= self._written + _INTERVAL
        self._records.add(record)
        if due and self._budget.left:
            self._written = time.monotonic()
            with self._budget.spending():
                self._write()

    def finish(self) -> None:
        """Computes heat maps of the worst mistakes of the best model, and audits the images in a thread.

        Heat maps take up to 2 % of the duration of the run, but at least 1 second and at most 20 seconds. The
        audit takes up to 5 %, but at least 20 seconds and at most 60 seconds. With a time limit,
        both end in time, and a part without enough time is left out.
        """
        duration = time.monotonic() - self._start
        left = self._info.pictures.seconds_left
        with ThreadPoolExecutor(1) as pool:
            seconds = min(left, float(np.clip(_AUDIT_SHARE * duration, *_AUDIT_SECONDS)))
            audit = pool.submit(self._info.pictures.audit, seconds)
            if left >= _LEAST_HEAT_MAPS:
                self._add_heat_maps(min(left, float(np.clip(_HEAT_MAP_SHARE * duration, *_HEAT_MAP_SECONDS))))
            try:
                self._audit = audit.result()
            except (OSError, MemoryError) as error:
                self._audit = AuditPart(f"The images could not be compared: {error}.", ())
        self._stale = self._stale or self._audit is not None

    def _add_heat_maps(self, seconds: float) -> None:
        evaluation = self._evaluation
        if evaluation is None or not evaluation.best or not self._worst():
            return
        if isinstance(evaluation.outcomes, LabelOutcomes):  # a missed label has no pixels that support it
            return
        self._stale = True
        end = time.monotonic() + seconds
        assert evaluation.worst is not None
        try:
            for mistake in evaluation.outcomes.worst:
                figure = evaluation.worst.get(mistake.position)
                if figure is None or time.monotonic() > end:
                    continue
                picture = self._info.pictures.explained(mistake.position, mistake.predicted)
                if picture is not None:
                    figure["heat_map"] = data_uri(picture.pixels)
                    evaluation.note = "Heat maps show the pixels that support the predicted class."
        except (UserError, MemoryError) as error:
            evaluation.note = f"There are no heat maps: {str(error).removeprefix('heat map: ')}."

    def close(self) -> None:
        """Writes the final report. If there were no records, an existing report stays unchanged."""
        if not self._closed:
            self._closed = True
            if self._stale or not self._path.exists():
                self._write()

    def _write(self) -> None:
        evaluation = self._evaluation
        if evaluation is not None and not evaluation.listed:
            table = mistakes_csv(evaluation.outcomes, self._info.classes, self._info.pictures.name)
            write_text(self._path.with_name(MISTAKES_FILE), _as_utf8(table))
            if isinstance(evaluation.outcomes, Outcomes) and evaluation.outcomes.confusion is not None:
                matrix = confusion_csv(evaluation.outcomes.confusion, self._info.classes)
                write_text(self._path.with_name(CONFUSION_FILE), BYTE_ORDER_MARK + _as_utf8(matrix))
            names = tuple(
                map(self._info.pictures.name, (each.position for each in evaluation.outcomes.mistakes))
            )
            stored = StoredEvaluation(evaluation.epoch, evaluation.update, evaluation.outcomes, names)
            store_evaluation(self._path.with_name(EVALUATION_FILE), stored)
            evaluation.listed = True
        # File names can contain invalid UTF-8, which must not prevent writing the report.
        write_text(self._path, escape_controls(_as_utf8(self.render())))

    def render(self) -> str:
        """Returns the HTML text of the report."""
        info = self._info
        evaluation = self._evaluation
        outcomes = evaluation.outcomes if evaluation is not None else None
        confusion = outcomes.confusion if isinstance(outcomes, Outcomes) else None
        majority = outcomes.majority if isinstance(outcomes, Outcomes) else None
        matrix = None
        pairs = []
        recalls = []
        certainty = None
        advice = ""
        if confusion is not None:
            names = [class_name(info.classes, label) for label in range(len(confusion))]
            matrix = {"names": names, "cells": nonzero_cells(confusion)}
            pairs = confused_pairs(confusion, names)
            recalls = class_recalls(confusion, names)
            certainty = measure_certainty(confusion, names)
            accuracy = _train_accuracy(self._records)
            advice = advise(confusion, names, accuracy, info.auditable_root, from_scratch=info.from_scratch)
        reliability = reliability_bins(outcomes.confidences) if isinstance(outcomes, Outcomes) else []
        try:
            curve = read_curve(self._path.with_name(CURVE_FILE), certainty)
            curve_text = describe_curve(curve)
        except UserError as error:  # the report must not end the run
            curve = []
            curve_text = str(error)
        labels = label_scores(outcomes, info.classes) if isinstance(outcomes, LabelOutcomes) else None
        tiles = summarize_run(self._records, ended=self._closed, update=self._update)
        duration = "Duration since the resume" if self._resumed else "Duration"
        data = {
            "charts": [asdict(chart) for chart in build_charts(self._records, majority)],
            "colours": COLOURS,
            "confusion": matrix,
        }
        return _template().render(
            name=info.name,
            written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            ended=self._closed,
            complete=_is_complete(self._records),
            tiles={**tiles, duration: clock(time.monotonic() - self._start)},
            data=data,
            certainty=certainty.describe() if certainty is not None else "",
            advice=advice,
            curve=curve,
            curve_text=curve_text,
            gaps=describe_gaps(self._records),
            evaluation=evaluation,
            worst=self._worst(),
            mistakes=(MISTAKES_FILE, len(outcomes.mistakes) if outcomes is not None else 0),
            pairs=pairs,
            recalls=recalls,
            labels=labels,
            reliability=reliability,
            calibration_error=expected_calibration_error(reliability),
            audit=self._audit,
            audited=[
                (group.about, group.text, [_as_figure(picture) for picture in group.pictures])
                for group in (self._audit.groups if self._audit is not None else ())
            ],
            augmented=[_as_figure(picture) for picture in info.pictures.augmented()],
            events=read_events(self._events, _MAX_EVENTS),
            bad_images=_last_lines(info.bad_images),
            facts=(info.versions, info.hardware),
            config=info.config,
            style=_read_asset("uPlot.min.css") + _read_asset("report.css"),
            library=_read_asset("uPlot.iife.min.js"),
            script=_read_asset("report.js"),
        )

    def _worst(self) -> list[dict[str, str]]:
        """Returns the pictures of the worst mistakes whose images can be read.

        Reading the images takes seconds, so they are read only once per evaluation.
        """
        evaluation = self._evaluation
        info = self._info
        if evaluation is None:
            return []
        if evaluation.worst is None:
            evaluation.worst = {}
            for mistake in evaluation.outcomes.worst:
                picture = info.pictures.evaluated(mistake.position)
                if picture is not None:
                    if isinstance(mistake, Mistake):
                        caption = describe_mistake(mistake, info.classes)
                    else:
                        caption = describe_label_mistake(mistake, info.classes)
                    evaluation.worst[mistake.position] = _as_figure(replace(picture, caption=caption))
        return list(evaluation.worst.values())


def _as_utf8(text: str) -> str:
    """Returns a text with "?" for what UTF-8 can't represent."""
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _template() -> Template:
    loader = PackageLoader("ppcls.report", "page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("report.html.j2")


@cache
def _read_asset(name: str) -> str:
    return Path(__file__).with_name("page").joinpath(name).read_text(encoding="utf-8")


def _as_figure(picture: Picture) -> dict[str, str]:
    shown = {"address": data_uri(picture.pixels), "caption": picture.caption, "title": picture.title}
    return {**shown, "heat_map": ""}


def _train_accuracy(records: History) -> float | None:
    """Returns the latest top1 on training images; None if it is unknown."""
    step = _last_training(records)
    return None if step is None else step.metrics.get("top1")


def _last_training(records: History) -> StepRecord | None:
    """Returns the latest record of training, which is not of a few images; None without records.

    The last record of an epoch may cover one small batch. It is then merged with the one before it, as in the
    charts.
    """
    last = records.last_step
    if last is None:
        return None
    merged = merge_short_records([step for step in records.steps if step.epoch == last.epoch])
    return merged[-1] if merged and merged[-1].update == last.update else last


def _is_complete(records: History) -> bool:
    """Returns whether the records contain the last step of the last epoch."""
    step = records.last_step
    return step is not None and (step.epoch, step.step) == (step.epochs, step.steps_per_epoch)


def summarize_run(records: Iterable[Record], *, ended: bool = False, update: int = 0) -> dict[str, str]:
    """Returns the progress, the latest results and the best result as text, keyed by label.

    Args:
        records: Records of the run.
        ended: Whether the run has ended. The remaining time is then omitted.
        update: Number of finished updates. It may be higher than the number in the latest record.
    """
    history = records if isinstance(records, History) else History(records)
    step = history.last_step
    evaluation = history.last_evaluation
    best = history.best
    tiles = {}
    if step is not None:
        finished = step.epoch - (step.step < step.steps_per_epoch)
        tiles["Epochs"] = f"{finished} of {step.epochs}"
        tiles["Updates"] = f"{max(step.update, update):,}"
        if not ended:
            tiles["Time left"] = clock(step.eta_seconds)
        training = _last_training(history) or step
        tiles["Train loss"] = f"{training.loss:.4g}"
    if evaluation is not None:
        tiles["Eval loss"] = f"{evaluation.loss:.4g}"
        shown = [*evaluation.metrics.items()][:MAX_METRICS]
        tiles |= {f"Eval {name}": f"{value:.4f}" for name, value in shown}
    if best is not None and best.metrics:
        name, value = next(iter(best.metrics.items()))
        tiles[f"Best {name}"] = f"{value:.4f} (epoch {best.epoch})"
    return tiles


def _last_lines(path: Path | None) -> list[str]:
    if path is None or not path.exists():
        return []
    return read_regular(path).decode(errors="replace").splitlines()[-_MAX_BAD_IMAGES:]
