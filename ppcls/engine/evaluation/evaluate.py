"""Evaluation: exact counts over all ranks, whatever the batch size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import paddle
from paddle import nn

from ppcls.config.schema import Config
from ppcls.data.build import build_loader
from ppcls.data.index.read import positive_rates
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.engine.core.networks import evaluation_criterion
from ppcls.engine.core.precision import Precision
from ppcls.engine.evaluation.outcomes import Collector
from ppcls.engine.evaluation.tally import Tally
from ppcls.errors import UserError
from ppcls.loss.build import Criterion
from ppcls.metric.build import Metrics, build_metrics
from ppcls.outputs import first_rows, get_logits
from ppcls.report.record import Outcomes
from ppcls.runtime.progress import Progress
from ppcls.runtime.start import Runtime


@dataclass(frozen=True)
class Result:
    """One evaluation.

    Attributes:
        loss: Mean over ``images``.
        metrics: Name to value, such as a share, 0..1; the first decides which model is best.
        images: Evaluated over all ranks, each once.
        seconds: Time taken.
        outcomes: Sample by sample, where that was asked for.
        lower_is_better: Whether that is so of the first metric.
    """

    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float
    outcomes: Outcomes | None = None
    lower_is_better: bool = False

    @property
    def score(self) -> float:
        """The first metric, turned such that higher is better."""
        first = next(iter(self.metrics.values()))
        return -first if self.lower_is_better else first


@paddle.no_grad()  # type: ignore[untyped-decorator]
def evaluate(
    model: nn.Layer,
    loader: Iterable[Batch],
    criterion: Criterion,
    metrics: Metrics,
    precision: Precision,
    world: int,
    progress: Progress | None = None,
    collector: Collector | None = None,
    queries: int | None = None,
) -> Result:
    """Evaluates ``model`` on all that ``loader`` gives, once.

    Sums stay on the device; the host reads them once, after one reduction over the ranks. So does what
    ``collector`` collects.

    Args:
        model: The bare model; left in training mode if it was.
        loader: This rank's share.
        criterion: What the model gives and labels to mean loss.
        metrics: Counted over real samples.
        precision: Of the forward pass.
        world: Number of ranks.
        progress: Is told of each batch.
        collector: Collects what became of each sample, where that is wanted; on all ranks or none.
        queries: Where images look for their identity among others: those whose positions are below this do,
            among those from it on. None: each among all others.
    """
    progress = progress or Progress()
    progress.report("evaluation: waiting for batch 1", slow=not progress.evaluated)
    began, training = time.perf_counter(), model.training
    model.eval()
    tally = Tally(metrics, queries)
    for number, batch in enumerate(loader, start=1):
        progress.report(f"evaluation: batch {number}", slow=not progress.evaluated)
        if batch.valid == 0:
            continue
        with precision.evaluation():
            outputs = model(precision.images(batch.image, training=False))
        outputs = first_rows(outputs, batch.valid)
        tally.add(criterion(outputs, batch.label[: batch.valid]), outputs, batch)
        if collector is not None:
            collector.add(get_logits(outputs), batch)
        progress.evaluated = True
        progress.report(f"evaluation: waiting for batch {number + 1}")
    progress.report("evaluation: waiting for all processes", slow=True)
    loss, images, values = tally.result(world)
    if training:
        model.train()
    return Result(
        loss=loss,
        metrics=values,
        images=images,
        seconds=time.perf_counter() - began,
        outcomes=collector.outcomes(world) if collector is not None else None,
        lower_is_better=metrics.lower_is_better,
    )


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on one data set or two, as often as wanted; the arguments are those of `evaluate`.

    Attributes:
        loaders: Of what is evaluated on, by place; of two, the images of the first look in the other.
        classes: Of what is collected sample by sample; None to collect nothing.
    """

    loaders: dict[str, Loader]
    criterion: Criterion
    metrics: Metrics
    precision: Precision
    world: int
    progress: Progress
    classes: int | None = None

    def __call__(self, model: nn.Layer, between: Callable[[], None] | None = None) -> Result:
        """Evaluates a bare model.

        Args:
            model: In training mode afterwards if it was.
            between: Called after each batch, as often on every rank; may raise to end the evaluation.
        """
        batches, queries = _one_after_the_other(list(self.loaders.values()))
        batches = batches if between is None else _pausing(batches, between)
        collector = Collector(self.classes) if self.classes is not None else None
        result: Result = evaluate(
            model,
            batches,
            self.criterion,
            self.metrics,
            self.precision,
            self.world,
            self.progress,
            collector,
            queries,
        )
        return result

    def release(self) -> None:
        """Lets go of the loaders' threads and memory until the next evaluation, for training to have them."""
        for loader in self.loaders.values():
            loader.release()


def _one_after_the_other(loaders: list[Loader]) -> tuple[Iterable[Batch], int | None]:
    """Returns the batches of one data set or two; positions of the second go on behind the first's."""
    first, *others = loaders
    if not others:
        return first, None
    count = len(first.index)

    def batches() -> Iterator[Batch]:
        yield from first
        for batch in others[0]:
            assert batch.positions is not None
            yield replace(batch, positions=batch.positions + count)

    return batches(), count


def _pausing(batches: Iterable[Batch], between: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        between()


def build_evaluator(
    config: Config, runtime: Runtime, precision: Precision, sample_by_sample: bool = False
) -> Evaluator:
    """Returns what evaluates a bare model on ``DataLoader.Eval``, as often as wanted.

    Args:
        config: The whole config.
        runtime: Rank and device.
        precision: Of the forward pass.
        sample_by_sample: Whether to collect what became of each sample, where they have one label.

    Raises:
        UserError: The config has no ``DataLoader.Eval``, or its data can't be used.
    """
    if not config.DataLoader.evaluated:
        raise UserError(
            "evaluation needs DataLoader.Eval in the config; "
            "to train without, set Global.eval_during_train=False"
        )
    loaders = {
        place: build_loader(
            split, place, runtime, config.Global, config.Arch, config.class_count(training=False)
        )
        for place, split in config.DataLoader.evaluated.items()
    }
    index = next(iter(loaders.values())).index
    # Images of several labels, or of identities to retrieve, are not taken for one class.
    of_classes = index.labels.ndim == 1 and config.Global.eval_mode == "classification"
    return Evaluator(
        loaders=loaders,
        criterion=evaluation_criterion(config, positive_rates(index)),
        metrics=build_metrics(config.Metric.Eval, config.Arch.class_num),
        precision=precision,
        world=runtime.world_size,
        progress=runtime.progress,
        classes=config.Arch.class_num if sample_by_sample and of_classes else None,
    )
