"""From a config to the descriptions of its pipelines: each is built as for training, and makes a batch."""

from __future__ import annotations

from typing import Any

from ppcls.config.schema import Config
from ppcls.config.sections.loader import Split
from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.build import build_loader
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.settings import resolve
from ppcls.data.loaders.mixed import MixedLoader
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.order import Order
from ppcls.explain.description import Description, Operator, Stage, named
from ppcls.runtime.start import Runtime


def describe(config: Config, runtime: Runtime) -> list[Description]:
    """Describes the pipelines that this run feeds by: training, and evaluation where there is one.

    Raises:
        UserError: As `build_loader`; or an image of the first batch can't be read.
    """
    with suggest_skipping(config.used_splits):
        return [_describe(config, runtime, name, split) for name, split in config.used_splits.items()]


def _describe(config: Config, runtime: Runtime, name: str, split: Split) -> Description:
    classes = config.class_count(training=name == "Train")
    loader = build_loader(split, name, runtime, config.Global, config.Arch, classes)
    batch = next(iter(loader))  # what is wrong with an image, the loader says best
    where = "the CPU" if runtime.device_id is None else f"GPU {runtime.device_id}"
    layout = config.Arch.data_format
    reads = loader.loader if isinstance(loader, MixedLoader) else loader
    by_dali = not isinstance(reads, PaddleLoader)
    facts = {
        "data": f"{split.dataset.kind} {split.dataset.place}",
        "sampler": _sampler(split, loader.order),
        "DALI" if by_dali else "workers": _dali(split, runtime) if by_dali else _workers(split),
        "batch": f"{list(batch.image.shape)} {layout} {_dtype(batch.image)} on {where}, "
        f"labels {list(batch.label.shape)} {_dtype(batch.label)}",
    }
    feeder = f"DALI on {where}" if by_dali else "paddle.io, by numpy on the CPU"
    if split.sizes is not None:
        by = named(split.input_size or split.sampler)
        facts["size"] = f"changes by {by}; below, that of the first batch"
    stages = _stages(reads)
    if split.dataset.batch_transform_ops:
        mixed = Operator("mix_images", runtime.device, f"{list(batch.image.shape)} {layout}")
        spec = named(split.dataset.batch_transform_ops[0])
        decided = "Whether and how much, of a batch: each image with its neighbour, and their labels"
        stages.append(Stage((f"[batch] {spec}",), (mixed,), decided))
    shown = {each.split(" ")[0] for stage in stages for each in stage.transforms}
    dropped = [
        f"[{position}] {spec.kind}"
        for position, spec in enumerate(split.dataset.transform_ops)
        if f"[{position}]" not in shown
    ]
    if dropped:
        facts["dropped"] = f"{', '.join(dropped)}: the model takes {layout}"
    return Description(f"DataLoader.{name}", feeder, facts, tuple(stages))


def _stages(loader: Loader) -> list[Stage]:
    if isinstance(loader, PaddleLoader):
        from ppcls.explain.numpy_trace import trace_numpy

        return trace_numpy(loader)
    from ppcls.data.loaders.dali.loader import DaliLoader
    from ppcls.explain.dali_trace import trace_dali

    assert isinstance(loader, DaliLoader)
    return trace_dali(loader)


def _sampler(split: Split, order: Order) -> str:
    ranks = f" in each of {order.world} processes" if order.world > 1 else ""
    if split.sampler.input_size is not None:
        ranks += " at most"
    if order.global_batch_size is not None:
        ranks += f" at most, {order.global_batch} together" if order.world > 1 else ""
    last = "; a smaller last batch is dropped" if order.drop_last else ""
    updates = f"; {order.accumulate} batches an update" if order.accumulate > 1 else ""
    return (
        f"{split.sampler.kind}, {order.size:,} samples an epoch: {len(order)} steps of "
        f"{order.batch_size}{ranks}{last}{updates}"
    )


def _workers(split: Split) -> str:
    shared = ", shared memory" if split.loader.use_shared_memory and split.loader.num_workers else ""
    return f"{split.loader.num_workers} processes of paddle.io{shared}"


def _dali(split: Split, runtime: Runtime) -> str:
    settings = resolve(split.loader.dali, runtime)
    executor = "dynamic" if settings.exec_dynamic else "pipelined"
    shared = f" in {settings.pipelines} pipelines" if settings.pipelines > 1 else ""
    decoder = ", ".join(f"{name}={value}" for name, value in settings.decoder.items()) or "DALI's defaults"
    return (
        f"{settings.threads} threads{shared}, {settings.prefetch} batches ahead, {executor} executor; "
        f"decoder: {decoder}"
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("paddle.")
