"""What losses, metrics and prediction ask of the data and of the model."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_core import InitErrorDetails

from ppcls.config.base.fields import problem
from ppcls.config.sections.dataset import MultiLabelDataset
from ppcls.config.sections.infer import Infer, MultiLabelThreshOutput, Topk
from ppcls.config.sections.loader import DataLoader, Split
from ppcls.config.sections.objective import (
    MAX_CONFUSION_CLASSES,
    ConfusionMatrix,
    Loss,
    LossSpec,
    Metric,
    MetricSpec,
    TopkAcc,
    TprAtFpr,
)
from ppcls.config.sections.sampler import ClassBalancedSampler, PKSampler, WeightedSampler
from ppcls.registry import LOSSES, METRICS, Registry


def objective_problems(
    class_num: int,
    loss: Loss,
    metric: Metric,
    data: DataLoader,
    use_multilabel: bool,
) -> Iterator[InitErrorDetails]:
    """Yields what losses and metrics can't do with the labels and classes that there are."""
    for name in ("Train", "Eval"):
        yield from _metric_problems(name, getattr(metric, name), class_num)
    for place, split in data.splits.items():
        name = place.partition(".")[0]
        losses, metrics = getattr(loss, name), getattr(metric, name)
        several = isinstance(split.dataset, MultiLabelDataset)
        for section, registry, specs in (("Loss", LOSSES, losses), ("Metric", METRICS, metrics)):
            for position, spec in enumerate(specs):
                if spec.labels == ("one" if several else "several"):
                    yield problem(
                        f"is for images of {spec.labels} class{'es' if not several else ''}, and "
                        f"DataLoader.{place}.dataset is {split.dataset.kind}; "
                        f"expected {_suited(registry, several, name)}",
                        *(section, name, position, spec.kind),
                    )
        if several:
            yield from _sampler_problems(split)
        elif use_multilabel:
            yield problem(
                f"{split.dataset.kind} has one class an image; expected MultiLabelDataset, "
                "or Global.use_multilabel: False",
                *("DataLoader", *place.split("."), "dataset", "name"),
            )
        yield from _ratio_problems(name, losses, split)


def _suited(registry: Registry, several: bool, split: str) -> str:
    fitting = ("several", "any") if several else ("one", "any")
    specs = ((name, registry[name]) for name in registry)
    names = [
        name
        for name, spec in specs
        if spec.labels in fitting and not spec.multi_model and not (spec.whole and split == "Train")
    ]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _metric_problems(
    split: str, metrics: tuple[MetricSpec, ...], class_num: int
) -> Iterator[InitErrorDetails]:
    seen: set[str] = set()
    for position, metric in enumerate(metrics):
        where = ("Metric", split, position, metric.kind)
        if again := seen.intersection(metric.names):
            yield problem(f"{', '.join(sorted(again))} is asked for twice", *where)
        seen.update(metric.names)
        if metric.whole and split == "Train":
            yield problem("is of all samples at once, not of batches; expected it in Metric.Eval", *where)
        if isinstance(metric, ConfusionMatrix) and class_num > MAX_CONFUSION_CLASSES:
            yield problem(
                f"expected at most {MAX_CONFUSION_CLASSES} classes, and Arch.class_num is {class_num}", *where
            )
        if isinstance(metric, TprAtFpr) and class_num != 2:
            yield problem(f"is of two classes, and Arch.class_num is {class_num}", *where)
        if isinstance(metric, TopkAcc):
            for k in metric.topk:
                if k > class_num:
                    yield problem(
                        f"top-{k} of {class_num} classes; expected at most Arch.class_num, set topk",
                        *(*where, "topk"),
                    )


def _sampler_problems(split: Split) -> Iterator[InitErrorDetails]:
    sampler = split.sampler
    by_class = isinstance(sampler, (ClassBalancedSampler, PKSampler)) or (
        isinstance(sampler, WeightedSampler) and sampler.class_weights is not None
    )
    if by_class:
        yield problem(
            f"{sampler.kind} goes by the class of an image, and MultiLabelDataset's have several; "
            "expected DistributedBatchSampler, or WeightedSampler with a weights_file",
            *("DataLoader", "Train", "sampler", "name"),
        )


def _ratio_problems(name: str, losses: tuple[LossSpec, ...], split: Split) -> Iterator[InitErrorDetails]:
    for position, spec in enumerate(losses):
        if not getattr(spec, "weight_ratio", False):
            continue
        if not isinstance(split.dataset, MultiLabelDataset) or not split.dataset.label_ratio:
            yield problem(
                f"needs each class's share of positives; set DataLoader.{name}.dataset.label_ratio: True "
                "of a MultiLabelDataset",
                *("Loss", name, position, spec.kind, "weight_ratio"),
            )


def infer_problems(infer: Infer | None, data: DataLoader, class_num: int) -> Iterator[InitErrorDetails]:
    """Yields what prediction can't tell of the classes that there are."""
    if infer is None:
        return
    chosen, where = infer.PostProcess, ("Infer", "PostProcess")
    if isinstance(chosen, Topk) and chosen.topk > class_num:
        yield problem(f"expected at most Arch.class_num ({class_num}), got {chosen.topk}", *where, "topk")
    split = next(iter(data.splits.values()), None)
    if split is None:
        return
    several = isinstance(split.dataset, MultiLabelDataset)
    if several != isinstance(chosen, MultiLabelThreshOutput):
        fitting = "MultiLabelThreshOutput" if several else "Topk"
        yield problem(
            f"expected {fitting}, got {chosen.kind}: the model learns from {split.dataset.kind}",
            *(*where, "name"),
        )
