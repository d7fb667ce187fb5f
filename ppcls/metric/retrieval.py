"""Metrics of embeddings for the retrieval of images with the same identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from ppcls.config.base.fields import Count
from ppcls.metric.base import Metric

if TYPE_CHECKING:
    from ppcls.metric.build import GatheredMetric, Rows
    from ppcls.metric.functional.retrieval import Search


class RetrievalMetric(Metric, abstract=True):
    """Base class of retrieval metrics, which search the identity of each query image in a gallery.

    Without Query and Gallery in the config, each image is a query, and all other images are its gallery. By
    default, the gallery is ranked by the cosine of the embeddings. Queries without another image of their
    identity are ignored.
    """

    maximum: ClassVar[float | None] = 1.0
    whole_dataset: ClassVar[bool] = True
    on_embeddings: ClassVar[bool] = True

    def rank(self, rows: Rows, search: Search) -> list[float]:
        """Returns one value for each of ``names``.

        Args:
            rows: Embeddings, identities and cameras of all images.
            search: Settings for comparing embeddings.
        """
        raise NotImplementedError(f"{self.kind} does not define rank")

    def build(self, classes: int, search: Search) -> GatheredMetric:  # noqa: ARG002
        """Returns the object that gathers the embeddings, and calls `rank`."""
        from ppcls.metric.build import GatheredMetric

        return GatheredMetric(self.names, lambda rows: self.rank(rows, search), search.output)


class Recallk(RetrievalMetric):
    """Share of queries with an image of the same identity among the ``k`` nearest images.

    Among equally near images, those of other identities come first.
    """

    topk: tuple[Count, ...] = (1, 5)
    """One value of k, or a list of values."""

    @field_validator("topk", mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("recall1", "recall5")``."""
        return tuple(f"recall{k}" for k in self.topk)

    def rank(self, rows: Rows, search: Search) -> list[float]:
        """Returns one recall per value of k; see `RetrievalMetric.rank`."""
        from ppcls.metric.functional.retrieval import recalls_at

        return recalls_at(rows.outputs, rows.labels[:, 0], self.topk, rows.queries, rows.cameras, search)


class Precisionk(Recallk):
    """Mean over queries of the share of images of the same identity among the ``k`` nearest images.

    Among equally near images, those of other identities come first.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("precision1", "precision5")``."""
        return tuple(f"precision{k}" for k in self.topk)

    def rank(self, rows: Rows, search: Search) -> list[float]:
        """Returns one precision per value of k; see `RetrievalMetric.rank`."""
        from ppcls.metric.functional.retrieval import precisions_at

        return precisions_at(rows.outputs, rows.labels[:, 0], self.topk, rows.queries, rows.cameras, search)


class mAP(RetrievalMetric):  # noqa: N801 - PaddleClas's name
    """Mean over queries of the average precision of the ranked images."""

    def rank(self, rows: Rows, search: Search) -> list[float]:
        """Returns a list with the mean average precision; see `RetrievalMetric.rank`."""
        from ppcls.metric.functional.retrieval import mean_average_precision

        labels = rows.labels[:, 0]
        return [mean_average_precision(rows.outputs, labels, rows.queries, rows.cameras, search)]
