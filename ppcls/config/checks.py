"""Checks that involve several sections of the config. Each function yields the conflicts that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from pydantic_core import InitErrorDetails

from ppcls.arch.distillation_model import DistillationModel
from ppcls.arch.rec_model import RecModel
from ppcls.arch.section import Arch
from ppcls.config.base.fields import problem
from ppcls.config.sections.infer import Infer, MultiLabelThreshOutput, ScoreOutput, ThreshOutput, Topk
from ppcls.data.sampling.samplers import (
    ClassBalancedSampler,
    DistributedBatchSampler,
    MultiScaleSampler,
    PKSampler,
    WeightedSampler,
)
from ppcls.data.sampling.sizes import Progressive
from ppcls.data.transforms.base import Transform, check_chain
from ppcls.engine.core.settings import AMP
from ppcls.loss.semi_supervised import SSL
from ppcls.recipe.settings import Global
from ppcls.zoo import architecture

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.section import DataLoader, Split

Problems: TypeAlias = Iterator[InitErrorDetails]
Model: TypeAlias = Arch | DistillationModel | RecModel


def _split_loc(place: str) -> tuple[str, ...]:
    return ("DataLoader", *place.split("."))


def early_stopping_problems(settings: Global) -> Problems:
    """Checks that the run has evaluations if early stopping needs them."""
    if settings.early_stopping is not None and not settings.eval_during_train:
        yield problem("needs evaluations; set Global.eval_during_train: True", "Global", "early_stopping")


def precision_problems(amp: AMP | None, device: str) -> Problems:
    """Checks that mixed precision fits the device and the loss scale."""
    if amp is None or not amp.use_amp:
        return
    if amp.dtype == "float16" and device == "cpu":
        text = "float16 needs a GPU, but Global.device is cpu; use bfloat16, or train on a GPU"
        yield problem(text, "AMP", "dtype")
    if amp.dtype == "float16" and amp.use_dynamic_loss_scaling and amp.scale_loss < amp.min_loss_scaling:
        text = f"expected at least AMP.min_loss_scaling ({amp.min_loss_scaling:g}), got {amp.scale_loss:g}"
        yield problem(text, "AMP", "scale_loss")


def multi_label_problems(data: DataLoader, use_multilabel: bool) -> Problems:
    """Checks that the sampler and ``Global.use_multilabel`` fit the number of labels per image."""
    for place, split in data.splits.items():
        sampler = split.sampler
        by_class = isinstance(sampler, (ClassBalancedSampler, PKSampler)) or (
            isinstance(sampler, WeightedSampler) and sampler.class_weights is not None
        )
        if split.dataset.labels == "several":
            if by_class:
                yield problem(
                    f"{sampler.kind} needs images with one label, but MultiLabelDataset has several; "
                    "expected DistributedBatchSampler, or WeightedSampler with a weights_file",
                    *(*_split_loc(place), "sampler", "name"),
                )
        elif use_multilabel:
            yield problem(
                f"{split.dataset.kind} has one label per image; expected MultiLabelDataset, "
                "or Global.use_multilabel: False",
                *(*_split_loc(place), "dataset", "name"),
            )


def post_process_problems(infer: Infer | None, data: DataLoader, arch: Model) -> Problems:
    """Checks that post-processing fits labels and classes. Ignores a RecModel, which returns embeddings."""
    if infer is None or arch.embeds:
        return
    post = infer.PostProcess
    where = ("Infer", "PostProcess")
    if isinstance(post, Topk) and post.topk > arch.class_num:
        yield problem(f"expected at most Arch.class_num ({arch.class_num}), got {post.topk}", *where, "topk")
    if isinstance(post, ThreshOutput) and arch.class_num != 2:
        yield problem(f"expected two classes, but Arch.class_num is {arch.class_num}", *where, "name")
    thresholds = getattr(post, "threshold", None)
    if isinstance(thresholds, tuple) and len(thresholds) != arch.class_num:
        text = f"expected Arch.class_num ({arch.class_num}) thresholds, got {len(thresholds)}"
        yield problem(text, *where, "threshold")
    split = next(iter(data.splits.values()), None)
    if split is None:
        return
    multi_label = split.dataset.labels == "several"
    if multi_label != isinstance(post, MultiLabelThreshOutput) and not isinstance(post, ScoreOutput):
        suitable = "MultiLabelThreshOutput" if multi_label else "Topk"
        text = f"expected {suitable}, got {post.kind}, because the data set is a {split.dataset.kind}"
        yield problem(text, *where, "name")


def image_problems(settings: Global, arch: Model, data: DataLoader, infer: Infer | None) -> Problems:
    """Checks that the transforms produce images that the model accepts."""
    channels = arch.input_image_channel
    if settings.image_channel not in (None, channels):
        text = f"expected Arch.input_image_channel ({channels}), got {settings.image_channel}; remove it"
        yield problem(text, "Global", "image_channel")
    chains: list[tuple[tuple[str, ...], tuple[Transform, ...]]] = [
        ((*_split_loc(place), "dataset", "transform_ops"), split.dataset.transform_ops)
        for place, split in data.splits.items()
    ]
    if infer is not None:
        chains.append((("Infer", "transforms"), infer.transforms))
    for loc, chain in chains:
        state = check_chain(chain)
        if state.channels != channels:
            text = (
                f"produces images with {state.channels} channel{'s' * (state.channels != 1)}, but "
                f"Arch.input_image_channel is {channels}; change one of them"
            )
            yield problem(text, *loc)
        for model in arch.architectures:
            if state.size and (text := architecture(model.name).size_problem(state.size, model.img_size)):
                yield problem(f"produces images of {text}", *loc)
    if data.Train is None or data.Train.sizes is None:
        return
    where = ("input_size", "sizes") if data.Train.input_size is not None else ("sampler", "scales")
    for model in arch.architectures:
        for side in data.Train.sizes.sizes:
            if text := architecture(model.name).size_problem((side, side), model.img_size):
                yield problem(text, "DataLoader", "Train", *where)


def semi_supervised_problems(spec: SSL | None, data: DataLoader) -> Problems:
    """Checks the settings of semi-supervised training."""
    if (spec is None) != (data.UnLabelTrain is None):
        missing = "SSL" if spec is None else "DataLoader.UnLabelTrain"
        yield problem(
            "missing; semi-supervised training needs SSL and DataLoader.UnLabelTrain", *missing.split(".")
        )
    if data.UnLabelTrain is None or data.Train is None:
        return
    if not data.Train.sampler.drop_last:
        text = "expected True with DataLoader.UnLabelTrain: all batches have the same size"
        yield problem(text, "DataLoader", "Train", "sampler", "drop_last")
    if data.Train.sizes is not None:
        yield problem(
            "not supported with DataLoader.UnLabelTrain; remove it", "DataLoader", "Train", "input_size"
        )
    elif check_chain(data.Train.dataset.transform_ops) != check_chain(
        data.UnLabelTrain.dataset.transform_ops
    ):
        text = "expected transforms that produce images of the same size and type as in DataLoader.Train"
        yield problem(text, "DataLoader", "UnLabelTrain", "dataset", "transform_ops")


def drawn_label_problems(data: DataLoader, arch: Model) -> Problems:
    """Checks that the classes and the sampler fit labels that a random transform determines."""
    for place, split in data.splits.items():
        if split.dataset.drawn_label is None:
            continue
        transform = split.dataset.transform_ops[split.dataset.drawn_label]
        where = (*_split_loc(place), "dataset", "label_key")
        if arch.class_num != transform.label_count:
            text = (
                f"{transform.kind} has {transform.label_count} labels, so Arch.class_num must be "
                f"{transform.label_count}, got {arch.class_num}"
            )
            yield problem(text, *where)
        if split.sampler.kind not in ("DistributedBatchSampler", "BatchSampler"):
            text = f"{split.sampler.kind} needs a list file with labels; use DistributedBatchSampler"
            yield problem(text, *_split_loc(place), "sampler", "name")


def folder_problems(data: DataLoader) -> Problems:
    """Checks that training and evaluation have no images in common."""
    if data.Train is None:
        return
    for place, split in data.evaluated.items():
        for error in split.dataset.overlap_problems(data.Train.dataset):
            yield {**error, "loc": (*_split_loc(place), "dataset", *error.get("loc", ()))}


def sampler_problems(data: DataLoader, settings: Global, class_num: int) -> Problems:
    """Checks that the training sampler and its image sizes fit the run and the classes."""
    if data.Train is None:
        return
    sampler = data.Train.sampler
    sizes = data.Train.input_size
    if isinstance(sampler, MultiScaleSampler) and settings.auto_scale_lr:
        text = "expected False: batches of MultiScaleSampler have different sizes"
        yield problem(text, "Global", "auto_scale_lr")
    weights = sampler.class_weights if isinstance(sampler, WeightedSampler) else None
    if weights is not None and len(weights) != class_num:
        text = f"expected one weight for each of Arch.class_num ({class_num}) classes, got {len(weights)}"
        yield problem(text, "DataLoader", "Train", "sampler", "class_weights")
    if isinstance(sizes, Progressive) and sizes.epochs[-1] >= settings.epochs:
        text = (
            f"the last size starts at epoch {sizes.epochs[-1]}, but Global.epochs is {settings.epochs}; "
            "use earlier epochs"
        )
        yield problem(text, "DataLoader", "Train", "input_size", "epochs")


def evaluation_problems(data: DataLoader) -> Problems:
    """Checks that evaluation uses each sample once, in one size, and does not mix images."""
    for place, split in data.evaluated.items():
        loc = _split_loc(place)
        if not isinstance(split.sampler, DistributedBatchSampler):
            yield problem(
                "evaluation uses each sample once, in order; expected DistributedBatchSampler, "
                f"got {split.sampler.kind}",
                *(*loc, "sampler", "name"),
            )
        if split.input_size is not None:
            yield problem("evaluation uses one size; remove this key", *loc, "input_size")
        if split.dataset.batch_transform_ops:
            text = "evaluation does not mix images; remove this key"
            yield problem(text, *loc, "dataset", "batch_transform_ops")


def mixing_problems(train: Split | None) -> Problems:
    """Checks that mixed training batches are shuffled, and have an even size, so that images form pairs."""
    if train is None:
        return
    sampler = train.sampler
    for spec in train.dataset.batch_transform_ops:
        if isinstance(sampler, DistributedBatchSampler) and not sampler.shuffle:
            text = (
                f"expected True: {spec.kind} mixes neighbouring images, which often have the same class if "
                "they are not shuffled"
            )
            yield problem(text, "DataLoader", "Train", "sampler", "shuffle")
        name, size = sampler.batch_setting
        if isinstance(sampler, PKSampler):
            name = "sample_per_id"
            size = sampler.sample_per_id
        if size % 2:
            text = f"expected an even number, because {spec.kind} mixes pairs of neighbours, got {size}"
            yield problem(text, "DataLoader", "Train", "sampler", name)


def retrieval_problems(arch: Model, data: DataLoader, retrieval: bool) -> Problems:
    """Checks that retrieval has embeddings, and that the data of an embedding model have identities."""
    if retrieval and not arch.embeds:
        yield problem("retrieval needs embeddings; expected Arch.name: RecModel", "Global", "eval_mode")
    if data.has_gallery and not retrieval:
        text = "Query and Gallery are only for retrieval; set Global.eval_mode: retrieval"
        yield problem(text, "DataLoader", "Eval")
    for place, split in data.splits.items() if arch.embeds else ():
        where = (*_split_loc(place), "dataset")
        if split.dataset.labels == "several":
            text = "a RecModel needs one identity per image; use a data set with one label per image"
            yield problem(text, *where, "name")
        if split.dataset.batch_transform_ops:
            yield problem("mixed images have no identity; remove this key", *where, "batch_transform_ops")
