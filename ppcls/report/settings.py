"""The keys of ``Global`` for reports."""

from __future__ import annotations

from typing import Annotated

from ppcls.config.base.choices import Keyed
from ppcls.config.base.fields import Index
from ppcls.config.base.section import Section
from ppcls.registry import LOGGERS
from ppcls.report.trackers import Logger


class ReportSettings(Section):
    """Reports in addition to the log, the records and the HTML page, which every run has."""

    use_visualdl: bool = False
    """Write scalars, images, weights and precision-recall curves for VisualDL to `output_dir`/visualdl."""
    audit_images: Index = 2_000
    """Maximum number of images that are checked at the end of a run, to list duplicates, suspicious labels,
    and images unlike all others in `report.html`. It takes up to 5 % of the duration of the run, but 20 to 60
    seconds. 0 turns it off."""
    loggers: tuple[Annotated[Logger, Keyed(LOGGERS)], ...] = ()
    """Experiment trackers that receive scalars and the config, such as `[tensorboard, {mlflow: {experiment:
    digits}}]`. Each tracker needs its own package (docs/recipes.md)."""
