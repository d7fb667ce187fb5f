"""The section ``Metric``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.choices import Keyed
from ppcls.config.base.problems import problem
from ppcls.config.base.section import Section
from ppcls.metric.base import Metric
from ppcls.metric.single_label import TopkAcc
from ppcls.registry import METRICS


class MetricSection(Section):
    """Metrics of training and evaluation."""

    Train: tuple[Annotated[Metric, Keyed(METRICS)], ...] = ()
    """Metrics to compute on the batches of training; default: none."""
    Eval: tuple[Annotated[Metric, Keyed(METRICS)], ...] = Field((TopkAcc(),), min_length=1)
    """Metrics to compute in evaluation; default: TopkAcc. The first metric selects the best model."""

    @field_validator("Train", mode="before")
    @classmethod
    def _accept_none(cls, value: object) -> object:
        return () if value is None else value

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        problems = []
        for part in ("Train", "Eval"):
            seen: set[str] = set()
            for position, metric in enumerate(getattr(self, part)):
                if repeated := seen.intersection(metric.names):
                    text = f"{', '.join(sorted(repeated))} is reported twice; remove one of the metrics"
                    problems.append(problem(text, part, position, metric.kind))
                seen.update(metric.names)
        if problems:
            raise ValidationError.from_exception_data("Metric", problems)
        return self
