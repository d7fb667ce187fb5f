"""The whole config, and what its sections ask of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import ValidationError, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.fields import Section, Tagged, Variants, problem
from ppcls.config.checks import infer_problems, objective_problems
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.distillation_losses import distillation_problems
from ppcls.config.objectives.embedding import RecModel, embedding_problems
from ppcls.config.sections import infer, loader, model, objective, run
from ppcls.config.sections.dataset import ImageFolderDataset
from ppcls.config.sections.optimizer import OptimizerSpec
from ppcls.config.sections.sampler import (
    DistributedBatchSampler,
    MultiScaleSampler,
    PKSampler,
    Progressive,
    WeightedSampler,
)
from ppcls.config.sections.schedule import ReduceOnPlateau
from ppcls.config.sections.transform import Transform, check_chain
from ppcls.registry import OPTIMIZERS
from ppcls.zoo import architecture


class Config(Section):
    """One training run."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "AMP_BF16": "write AMP with dtype: bfloat16",
        "Slim": "models are neither quantized nor pruned; remove it",
    }
    Global: run.Global = run.Global()
    Arch: Annotated[
        model.Arch | DistillationModel | RecModel,
        Variants(model.Arch, {"DistillationModel": DistillationModel, "RecModel": RecModel}),
    ]
    AMP: run.AMP | None = None
    EMA: run.EMA | None = None
    Loss: objective.Loss = objective.Loss()
    Optimizer: Annotated[OptimizerSpec, Tagged(OPTIMIZERS)]
    DataLoader: loader.DataLoader = loader.DataLoader()
    Infer: infer.Infer | None = None
    Metric: objective.Metric = objective.Metric()

    @model_validator(mode="after")
    def _check_across(self) -> Self:
        problems = [
            *_schedule_problems(self),
            *_evaluation_problems(self),
            *_precision_problems(self),
            *_objective_problems(self),
            *_image_problems(self),
            *_architecture_problems(self),
            *_folder_problems(self),
            *_sampler_problems(self),
            *_input_size_problems(self),
            *_mixing_problems(self),
        ]
        if problems:
            raise ValidationError.from_exception_data("Config", problems)
        return self

    @property
    def used_splits(self) -> dict[str, loader.Split]:
        """The data sets that a training run is fed with, by their places in ``DataLoader``."""
        found, all_of_them = self.DataLoader.splits, self.Global.eval_during_train
        return {place: split for place, split in found.items() if all_of_them or place == "Train"}

    def class_count(self, *, training: bool) -> int | None:
        """Returns how many classes labels are of; None where they are of identities, any numbers.

        Args:
            training: Whether those of ``DataLoader.Train``; else those that are evaluated on.
        """
        retrieved = self.Global.eval_mode == "retrieval" and not training
        headless = isinstance(self.Arch, RecModel) and self.Arch.Head is None
        return None if retrieved or headless else self.Arch.class_num


def _schedule_problems(config: Config) -> Iterator[InitErrorDetails]:
    try:
        config.Optimizer.lr.check_epochs(config.Global.epochs)
    except ValueError as error:
        yield problem(str(error), "Optimizer", "lr")
    if isinstance(config.Optimizer.lr, ReduceOnPlateau) and not config.Global.eval_during_train:
        text = "ReduceOnPlateau goes by evaluations; set Global.eval_during_train"
        yield problem(text, "Optimizer", "lr", "name")


def _evaluation_problems(config: Config) -> Iterator[InitErrorDetails]:
    if config.Global.early_stopping is not None and not config.Global.eval_during_train:
        yield problem("it goes by evaluations; set Global.eval_during_train", "Global", "early_stopping")


def _precision_problems(config: Config) -> Iterator[InitErrorDetails]:
    amp = config.AMP
    if amp is not None and amp.use_amp and amp.dtype == "float16" and config.Global.device == "cpu":
        yield problem(
            "float16 needs a GPU, and Global.device is cpu; use bfloat16, or train on a GPU", "AMP", "dtype"
        )
    if amp is None or not amp.use_amp:
        return
    if amp.dtype == "float16" and amp.use_dynamic_loss_scaling and amp.scale_loss < amp.min_loss_scaling:
        yield problem(
            f"expected at least AMP.min_loss_scaling ({amp.min_loss_scaling:g}), got {amp.scale_loss:g}",
            *("AMP", "scale_loss"),
        )
    if amp.level == "O2" and config.Optimizer.multi_precision is False:
        yield problem(
            "expected True: AMP.level O2 keeps float32 master weights, or small updates would be lost",
            *("Optimizer", "multi_precision"),
        )


def _objective_problems(config: Config) -> Iterator[InitErrorDetails]:
    several, classes = config.Global.use_multilabel, config.Arch.class_num
    yield from objective_problems(classes, config.Loss, config.Metric, config.DataLoader, several)
    yield from distillation_problems(config.Arch, config.Loss, config.Metric)
    eval_mode = config.Global.eval_mode
    yield from embedding_problems(config.Arch, config.Loss, config.Metric, config.DataLoader, eval_mode)
    if not isinstance(config.Arch, RecModel):  # it tells embeddings, whatever PostProcess says
        yield from infer_problems(config.Infer, config.DataLoader, classes)


def _image_problems(config: Config) -> Iterator[InitErrorDetails]:
    if config.Global.image_channel not in (None, config.Arch.input_image_channel):
        yield problem(
            f"expected Arch.input_image_channel ({config.Arch.input_image_channel}), "
            f"got {config.Global.image_channel}; remove it",
            *("Global", "image_channel"),
        )
    for loc, chain in _chains(config):
        state = check_chain(chain)
        if state.channels != config.Arch.input_image_channel:
            yield problem(
                f"makes images of {state.channels} channels, but Arch.input_image_channel is "
                f"{config.Arch.input_image_channel}",
                *loc,
            )
        if loc[0] == "Infer" and (state.channels, *(state.size or ())) != config.Global.image_shape:
            yield problem(
                f"makes images of {[state.channels, *(state.size or ())]}, but Global.image_shape is "
                f"{list(config.Global.image_shape)}; make them agree",
                *loc,
            )


def _chains(config: Config) -> Iterator[tuple[tuple[str, ...], tuple[Transform, ...]]]:
    for place, split in config.DataLoader.splits.items():
        yield ("DataLoader", *place.split("."), "dataset", "transform_ops"), split.dataset.transform_ops
    if config.Infer is not None:
        yield ("Infer", "transforms"), config.Infer.transforms


def _architecture_problems(config: Config) -> Iterator[InitErrorDetails]:
    train = config.DataLoader.Train
    for arch in config.Arch.architectures:
        entry = architecture(arch.name)
        for loc, chain in _chains(config):
            size = check_chain(chain).size
            if size is not None and (text := entry.size_problem(size, arch.img_size)):
                yield problem(f"makes images of {text}", *loc)
        if train is not None and train.sizes is not None:
            where = ("input_size", "sizes") if train.input_size is not None else ("sampler", "scales")
            for side in train.sizes.sizes:
                if text := entry.size_problem((side, side), arch.img_size):
                    yield problem(text, "DataLoader", "Train", *where)


def _folder_problems(config: Config) -> Iterator[InitErrorDetails]:
    train = config.DataLoader.Train
    if train is None or not isinstance(train.dataset, ImageFolderDataset):
        return
    for place, split in config.DataLoader.evaluated.items():
        if isinstance(split.dataset, ImageFolderDataset):
            loc = ("DataLoader", *place.split("."), "dataset")
            yield from _part_problems(train.dataset, split.dataset, loc)


def _part_problems(
    train: ImageFolderDataset, evaluation: ImageFolderDataset, loc: tuple[str, ...]
) -> Iterator[InitErrorDetails]:
    if train.image_root != evaluation.image_root:
        return
    if (train.part, evaluation.part) not in ((None, None), ("train", "val")):
        yield problem(
            f"expected train for DataLoader.Train and val here, or they have images in common; "
            f"got {train.part or 'null'} and {evaluation.part or 'null'}",
            *(*loc, "part"),
        )
    for name in ("val_share", "split_seed"):
        if getattr(train, name) != getattr(evaluation, name):
            yield problem(
                f"expected DataLoader.Train's {getattr(train, name)}, or the parts have images in common, "
                f"got {getattr(evaluation, name)}; remove it",
                *(*loc, name),
            )


def _sampler_problems(config: Config) -> Iterator[InitErrorDetails]:
    data = config.DataLoader
    for place, split in data.evaluated.items():
        if not isinstance(split.sampler, DistributedBatchSampler):
            yield problem(
                f"evaluation takes each sample once, in order; expected DistributedBatchSampler, "
                f"got {split.sampler.kind}",
                *("DataLoader", *place.split("."), "sampler", "name"),
            )
    if (
        data.Train is not None
        and isinstance(data.Train.sampler, MultiScaleSampler)
        and config.Global.auto_scale_lr
    ):
        yield problem(
            "expected False: MultiScaleSampler's batches are not of one size", "Global", "auto_scale_lr"
        )
    if data.Train is not None and isinstance(data.Train.sampler, WeightedSampler):
        weights = data.Train.sampler.class_weights
        if weights is not None and len(weights) != config.Arch.class_num:
            yield problem(
                f"expected one weight for each of Arch.class_num ({config.Arch.class_num}) classes, "
                f"got {len(weights)}",
                *("DataLoader", "Train", "sampler", "class_weights"),
            )


def _input_size_problems(config: Config) -> Iterator[InitErrorDetails]:
    data, epochs = config.DataLoader, config.Global.epochs
    for place, split in data.evaluated.items():
        if split.input_size is not None:
            loc = ("DataLoader", *place.split("."), "input_size")
            yield problem("evaluation has one size; remove it", *loc)
    sizes = None if data.Train is None else data.Train.input_size
    if isinstance(sizes, Progressive) and sizes.epochs[-1] >= epochs:
        yield problem(
            f"the last size begins with epoch {sizes.epochs[-1]}, but Global.epochs is {epochs}",
            *("DataLoader", "Train", "input_size", "epochs"),
        )


def _mixing_problems(config: Config) -> Iterator[InitErrorDetails]:
    data = config.DataLoader
    for place, split in data.evaluated.items():
        if split.dataset.batch_transform_ops:
            loc = ("DataLoader", *place.split("."), "dataset", "batch_transform_ops")
            yield problem("evaluation takes the images as they are; remove it", *loc)
    if data.Train is None:
        return
    sampler = data.Train.sampler
    for spec in data.Train.dataset.batch_transform_ops:
        if isinstance(sampler, DistributedBatchSampler) and not sampler.shuffle:
            yield problem(
                f"expected True: {spec.kind} mixes neighbours, and those of a list are often of one class",
                *("DataLoader", "Train", "sampler", "shuffle"),
            )
        name, found = sampler.batch_setting
        if isinstance(sampler, PKSampler):
            name, found = "sample_per_id", sampler.sample_per_id
        if found % 2:
            yield problem(
                f"expected an even number, for {spec.kind} mixes neighbours two by two, got {found}",
                *("DataLoader", "Train", "sampler", name),
            )
