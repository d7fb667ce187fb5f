"""Describes the data pipelines of a config. Builds each pipeline as for training and loads one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.build import LoadingSettings, ModelInput, build_loader, dali_settings
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.mixing import MixedLoader
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.order import Order
from ppcls.data.section import Split
from ppcls.errors import counted
from ppcls.explain.description import PipelineDescription, PipelineStage, StageOperator, describe_spec
from ppcls.explain.trace import trace_dali, trace_numpy
from ppcls.runtime.start import Runtime


def describe(
    splits: Mapping[str, Split],
    classes: Mapping[str, int | None],
    settings: LoadingSettings,
    arch: ModelInput,
    runtime: Runtime,
) -> list[PipelineDescription]:
    """Describes the pipelines of data sets.

    Args:
        splits: Data sets by their keys in ``DataLoader``, such as those that a training run uses.
        classes: Number of classes of each data set; None if its labels are identities.
        settings: See `build_loader`.
        arch: See `build_loader`.
        runtime: Device and cores.

    Raises:
        UserError: `build_loader` fails, or an image of the first batch can't be read.
    """
    descriptions = []
    with suggest_skipping(splits):
        for name, split in splits.items():
            split = split.model_copy(update={"cache": None})
            loader = build_loader(split, name, runtime, settings, arch, classes[name])
            descriptions.append(_describe(loader, split, name, runtime, arch.data_format))
    return descriptions


def _describe(loader: Loader, split: Split, name: str, runtime: Runtime, layout: str) -> PipelineDescription:
    batch = next(iter(loader))  # a bad image raises the loader's error
    device = "the CPU" if runtime.device_id is None else f"GPU {runtime.device_id}"
    shape = list(batch.image.shape)
    dataset = split.dataset
    reader: Any = loader.loader if isinstance(loader, MixedLoader) else loader
    by_paddle = isinstance(reader, PaddleLoader)
    stages = trace_numpy(reader) if by_paddle else trace_dali(reader)
    settings = dali_settings(split, runtime, training=name == "Train")
    facts = {
        "data": f"{dataset.kind} {dataset.place}",
        "sampler": _describe_sampler(split, loader.order),
        **({"workers": _describe_workers(split)} if by_paddle else {"DALI": _describe_dali(settings)}),
        "batch": f"{shape} {layout} {_dtype(batch.image)} on {device}, "
        f"labels {list(batch.label.shape)} {_dtype(batch.label)}",
    }
    if split.sizes is not None:
        source = describe_spec(split.input_size or split.sampler)
        facts["size"] = f"changes during training: {source}; the table shows the first batch"
    if dataset.batch_transform_ops:
        mixed = StageOperator("mix_images", runtime.device, f"{shape} {layout}")
        spec = describe_spec(dataset.batch_transform_ops[0])
        decisions = "How each image and its label are mixed with the neighbour in the batch"
        stages.append(PipelineStage((f"[batch] {spec}",), (mixed,), decisions))
    shown = {text.split(" ")[0] for stage in stages for text in stage.transforms}
    dropped = [
        f"[{position}] {spec.kind}"
        for position, spec in enumerate(dataset.transform_ops)
        if f"[{position}]" not in shown
    ]
    if dropped:
        facts["dropped"] = f"{', '.join(dropped)}: the model expects {layout} images"
    backend = "paddle.io with NumPy on the CPU" if by_paddle else f"DALI on {device}"
    return PipelineDescription(f"DataLoader.{name}", backend, facts, tuple(stages))


def _describe_sampler(split: Split, order: Order) -> str:
    ranks = f" in each of {counted(order.world, 'process')}" if order.world > 1 else ""
    divided = order.global_batch_size is not None and order.world > 1
    limit = "at most " if divided or split.sampler.input_size is not None else ""
    total = f", {order.global_batch} in total" if divided else ""
    last = "; a smaller last batch is dropped" if order.drop_last else ""
    updates = f"; {counted(order.accumulate, 'batch')} per update" if order.accumulate > 1 else ""
    return (
        f"{split.sampler.kind}, {counted(order.size, 'sample')} per epoch: {counted(len(order), 'step')} of "
        f"{limit}{order.batch_size}{ranks}{total}{last}{updates}"
    )


def _describe_workers(split: Split) -> str:
    shared = ", shared memory" if split.loader.use_shared_memory and split.loader.num_workers else ""
    return f"{counted(split.loader.num_workers, 'process')} of paddle.io{shared}"


def _describe_dali(settings: DaliSettings) -> str:
    executor = "dynamic" if settings.exec_dynamic else "pipelined"
    shared = f" in {settings.pipelines} pipelines" if settings.pipelines > 1 else ""
    if any(settings.turns):
        shared += f", {settings.turns.count(True)} of which decode on the GPU"
    decoder = ", ".join(f"{name}={value}" for name, value in settings.decoder.items()) or "DALI's defaults"
    return (
        f"{counted(settings.threads, 'thread')}{shared}, {counted(settings.prefetch, 'batch')} ahead, "
        f"{executor} executor; decoder: {decoder}"
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("paddle.")
