"""Evaluates a model. Loss and metrics are exact for any number of ranks and any batch size.

Decisions:
- Each sample counts once. The rows with which a loader fills the last batch, and the last step of a rank, are
  never counted.
- Ranks exchange sums and counts, and each mean is computed once, from the sums of all ranks. Sums are
  float64, in which counts are exact up to 2^53.
- A metric that compares samples gets the rows of all ranks in the order of their positions in the data set,
  so that ties are resolved in the same way for any number of ranks.
- Nothing is read from the device until all batches are evaluated, except overflows; see `EvalForward`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.data.build import build_loader
from ppcls.data.index.protocol import Index, cameras_of, positive_rates
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.engine.core.precision import Precision
from ppcls.engine.core.settings import RetrievalSettings
from ppcls.engine.evaluation.forward import EvalForward, Forward, run_model
from ppcls.engine.evaluation.label_outcomes import LabelOutcomeCollector
from ppcls.engine.evaluation.outcomes import OutcomeCollector, append_rows
from ppcls.errors import UserError
from ppcls.loss.base import Criterion, Loss
from ppcls.loss.build import build_criterion
from ppcls.metric.build import Metrics, Rows, build_metrics
from ppcls.metric.functional.retrieval import Search
from ppcls.outputs import Outputs, get_logits, zero_loss
from ppcls.report.record import LabelOutcomes, Outcomes
from ppcls.runtime.collectives import all_reduce, gather_rows
from ppcls.runtime.progress import Progress
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:
    from ppcls.recipe.schema import Config


@dataclass(frozen=True)
class EvalResult:
    """Result of one evaluation.

    Attributes:
        loss: Mean loss over ``images``.
        metrics: Values of the metrics, keyed by name. The first metric selects the best model.
        images: Number of images over all ranks. Each image is counted once.
        seconds: Elapsed time in seconds.
        outcomes: Results per sample; None if they were not collected.
        lower_is_better: Whether a lower first metric is better.
        recomputed: Number of batches over all ranks that overflowed in float16 and were evaluated again in
            float32.
        index: The evaluated samples; the queries in retrieval.
    """

    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float
    outcomes: Outcomes | LabelOutcomes | None = None
    lower_is_better: bool = False
    recomputed: int = 0
    index: Index | None = field(default=None, compare=False, repr=False)

    @property
    def score(self) -> float:
        """The first metric, or its negative value if a lower metric is better."""
        first = next(iter(self.metrics.values()))
        return -first if self.lower_is_better else first


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on one data set, or on a query and a gallery set.

    Attributes:
        loaders: Loaders of the data sets, keyed by name. If there are two, the first has the query images and
            the second the gallery images.
        criterion: Function of outputs and labels that returns the mean loss.
        metrics: Metrics to compute.
        precision: Precision of the forward pass.
        world: Number of ranks.
        progress: Object to which the progress of the evaluation is reported.
        classes: Number of classes, to collect results per sample; None to collect no results.
        several_labels: Whether each sample has several labels.
        forward: Function that computes the outputs of a model.
    """

    loaders: dict[str, Loader]
    criterion: Criterion
    metrics: Metrics
    precision: Precision
    world: int = 1
    progress: Progress = field(default_factory=Progress)
    classes: int | None = None
    forward: Forward = run_model
    several_labels: bool = False

    @property
    def batches(self) -> int:
        """Number of batches of this rank."""
        return sum(map(len, self.loaders.values()))

    def __call__(self, model: nn.Layer, after_batch: Callable[[], None] | None = None) -> EvalResult:
        """Evaluates a model on all data.

        Args:
            model: Bare model. Its training mode is restored afterwards.
            after_batch: Function to call after each batch, equally often on every rank. It may raise an
                exception to end the evaluation.
        """
        query, *gallery = self.loaders.values()
        batches: Iterable[Batch] = query if not gallery else _query_then_gallery(query, gallery[0])
        if after_batch is not None:
            batches = _call_after_each(batches, after_batch)
        queries = len(query.index) if gallery else None
        result: EvalResult = self.evaluate(model, batches, queries, self._cameras())
        return result

    def _cameras(self) -> NDArray[np.int64] | None:
        """Returns the cameras of all images; None if a data set does not have them."""
        cameras = [cameras_of(loader.index) for loader in self.loaders.values()]
        known = [each for each in cameras if each is not None]
        return np.concatenate(known) if len(known) == len(cameras) else None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def evaluate(
        self,
        model: nn.Layer,
        batches: Iterable[Batch],
        queries: int | None = None,
        cameras: NDArray[np.int64] | None = None,
    ) -> EvalResult:
        """Evaluates a model on the batches of this rank.

        Sums and collected results stay on the device until all batches are evaluated.

        Args:
            model: Bare model. Its training mode is restored afterwards.
            batches: Batches of this rank.
            queries: Number of query images. The images at positions below this number are the queries, and
                all other images are the gallery. If None, each image is a query, and all other images are its
                gallery.
            cameras: Camera of each image, in order of position, [N] int64; None if unknown.
        """
        progress = self.progress
        start = time.perf_counter()
        training = model.training
        model.eval()
        totals = _EvalTotals(self.metrics, queries, cameras)
        collector: OutcomeCollector | LabelOutcomeCollector | None = None
        if self.classes is not None:
            collects = LabelOutcomeCollector if self.several_labels else OutcomeCollector
            collector = collects(self.classes)
        forward = EvalForward(model, self.precision, self.forward)
        for batch, outputs in forward.outputs(self._reported(batches)):
            totals.add(self.criterion(outputs, batch.label[: batch.valid]), outputs, batch)
            if collector is not None:
                collector.add(get_logits(outputs), batch)
        progress.report("evaluation: waiting for all processes", slow=True)
        loss, images, recomputed, values = totals.compute(self.world, forward.recomputed)
        if training:
            model.train()
        return EvalResult(
            loss=loss,
            metrics=values,
            images=images,
            seconds=time.perf_counter() - start,
            outcomes=collector.outcomes(self.world) if collector is not None else None,
            lower_is_better=self.metrics.lower_is_better,
            recomputed=recomputed,
            index=next((loader.index for loader in self.loaders.values()), None),
        )

    def _reported(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the batches, and reports which batch the rank waits for or evaluates."""
        progress = self.progress
        progress.report("evaluation: waiting for batch 1", slow=not progress.evaluated)
        for number, batch in enumerate(batches, start=1):
            progress.report(f"evaluation: batch {number}", slow=not progress.evaluated)
            yield batch
            progress.evaluated = True
            progress.report(f"evaluation: waiting for batch {number + 1}")


def build_evaluator(
    config: Config, runtime: Runtime, precision: Precision, sample_by_sample: bool = False
) -> Evaluator:
    """Returns the evaluator for ``DataLoader.Eval``.

    Args:
        precision: Precision of the forward pass.
        sample_by_sample: Whether to collect results per sample. Has no effect in retrieval.

    Raises:
        UserError: The config has no ``DataLoader.Eval``, or its data can't be used.
    """
    if not config.DataLoader.evaluated:
        raise UserError(
            "evaluation needs DataLoader.Eval in the config; "
            "to train without evaluation, set Global.eval_during_train=False"
        )
    loaders = {
        name: build_loader(
            split, name, runtime, config.Global, config.Arch, config.class_count(training=False)
        )
        for name, split in config.DataLoader.evaluated.items()
    }
    index = next(iter(loaders.values())).index
    losses = config.Loss.Eval
    if config.Global.eval_mode == "classification":
        criterion = build_criterion(losses, positive_rates(index), config.Arch.margins)
        has_classes = True
    else:  # the labels are identities, not classes of the model, so only losses of embeddings can be computed
        criterion = _criterion_on_embeddings(losses)
        has_classes = False
    return Evaluator(
        loaders=loaders,
        criterion=criterion,
        metrics=build_metrics(config.Metric.Eval, config.Arch.class_num, _search(config.Global)),
        precision=precision,
        world=runtime.world_size,
        progress=runtime.progress,
        classes=config.Arch.class_num if sample_by_sample and has_classes else None,
        several_labels=index.labels.ndim == 2,
    )


def _search(settings: RetrievalSettings) -> Search:
    return Search(
        settings.retrieval_feature_from,
        settings.feature_normalize,
        settings.feature_binarize,
        settings.re_ranking,
    )


def _criterion_on_embeddings(losses: Sequence[Loss]) -> Criterion:
    """Returns a criterion of the losses that use only embeddings. Without such losses, it returns 0."""
    losses = tuple(loss for loss in losses if loss.on_embeddings)
    return build_criterion(losses) if losses else lambda outputs, _label: zero_loss(outputs)


class _EvalTotals:
    """Sums and rows of the valid samples of this rank. They stay on the device until `compute`.

    Args:
        metrics: Metrics to compute.
        queries: See `Evaluator.evaluate`.
        cameras: See `Evaluator.evaluate`.
    """

    def __init__(
        self, metrics: Metrics, queries: int | None, cameras: NDArray[np.int64] | None = None
    ) -> None:
        self._metrics = metrics
        self._queries = queries
        self._cameras = cameras
        self._sums = paddle.zeros([2 + metrics.width], "float64")  # loss, images, counts
        self._rows: dict[str, list[Tensor]] = {name: [] for name in metrics.gathered}
        self._labels: list[Tensor] = []
        self._positions: list[NDArray[np.int64]] = []

    def add(self, loss: Tensor, outputs: Outputs, batch: Batch) -> None:
        """Adds a batch with at least one valid sample.

        Args:
            loss: Mean loss of the valid samples, a scalar.
            outputs: Outputs of the valid samples, [valid, ...] each.
        """
        label = batch.label[: batch.valid]
        loss = loss.astype("float64").reshape([1]) * batch.valid
        images = paddle.full([1], batch.valid, "float64")
        counts = self._metrics.counts(outputs, label).astype("float64")
        self._sums = self._sums + paddle.concat([loss, images, counts])
        if not self._rows:
            return
        for name, rows in self._rows.items():
            append_rows(rows, (outputs[name] if isinstance(outputs, dict) else outputs).astype("float32"))
        append_rows(self._labels, label.astype("float64").reshape([batch.valid, -1]))  # exact up to 2^53
        positions = batch.positions if batch.positions is not None else np.zeros(len(batch.label), np.int64)
        self._positions.append(positions[: batch.valid])

    def compute(self, world: int, recomputed: int) -> tuple[float, int, int, dict[str, float]]:
        """Computes the results over all ranks. All ranks must call it.

        Args:
            recomputed: Number of batches that this rank evaluated again in float32.

        Returns:
            The mean loss, the number of images, the number of recomputed batches, and the metrics, keyed
            by name. They are equal on all ranks.
        """
        sums = paddle.concat([self._sums, paddle.full([1], recomputed, "float64")])
        loss, images, *counts, again = all_reduce(sums, world).tolist()
        rows = self._gather_rows(world) if self._rows else None
        return (
            loss / images,
            round(images),
            round(again),
            self._metrics.values(np.array(counts), images, rows),
        )

    def _gather_rows(self, world: int) -> dict[str, Rows]:
        """Returns outputs and labels of all ranks, sorted by the position of the sample in the data set."""
        positions = np.concatenate([np.zeros(0, np.int64), *self._positions])
        positions = np.concatenate(gather_rows(positions[:, None], world))[:, 0]
        order = np.argsort(positions, kind="stable")
        queries = None if self._queries is None else int((positions < self._queries).sum())
        labels = _gather(self._labels, "float64", world)[order]
        cameras = None if self._cameras is None else self._cameras[positions[order]]
        return {
            name: Rows(_gather(rows, "float32", world)[order], labels, queries, cameras)
            for name, rows in self._rows.items()
        }


def _gather(rows: list[Tensor], dtype: str, world: int) -> NDArray[Any]:
    joined = np.asarray(paddle.concat(rows).numpy()) if rows else np.zeros((0, 0), dtype)
    parts = gather_rows(joined, world)
    return parts[0] if world == 1 else np.concatenate(parts)  # one rank needs no copy of large embeddings


def _query_then_gallery(query: Loader, gallery: Loader) -> Iterator[Batch]:
    """Yields the batches of both loaders. Positions in the gallery start after the last query."""
    yield from query
    for batch in gallery:
        assert batch.positions is not None
        yield replace(batch, positions=batch.positions + len(query.index))


def _call_after_each(batches: Iterable[Batch], function: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        function()
