"""How fast loaders are on this machine, in short: ours against a bare DALI pipeline and against paddle.io."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ppcls.bench.loader.bare import bare, bare_pipeline, read_files
from ppcls.bench.loader.subject import layout_of
from ppcls.bench.loader.timing import NOT_COUNTED, Compared, Epoch, Speed, compare, finisher, through
from ppcls.config.schema import Config
from ppcls.config.sections.loader import Split
from ppcls.config.sections.transform import MixupOperator
from ppcls.data.build import build_loader
from ppcls.data.index.read import Index, read_index
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime


def _with(
    config: Config, split: Split, *, use_dali: bool, workers: int | None = None, mixup: bool = False
) -> tuple[Config, Split]:
    changed = config.model_copy(update={"Global": config.Global.model_copy(update={"use_dali": use_dali})})
    if workers is not None:
        loader = split.loader.model_copy(update={"num_workers": workers})
        split = split.model_copy(update={"loader": loader})
    if mixup:
        dataset = split.dataset.model_copy(update={"batch_transform_ops": (MixupOperator(alpha=0.2),)})
        split = split.model_copy(update={"dataset": dataset})
    return changed, split


def train_split(config: Config, runtime: Runtime) -> tuple[Split, Index, int]:
    """Returns ``DataLoader.Train``, its samples, and how many whole batches they make.

    Raises:
        UserError: There is none, its data can't be used, or the batches are too few to time.
    """
    split = config.DataLoader.Train
    if split is None:
        raise UserError("the benchmark needs DataLoader.Train in the config")
    index = read_index(split.dataset, config.Arch.class_num)
    batch_size = split.sampler.rows(runtime.world_size)
    steps = len(index) // batch_size
    if steps <= 2 * NOT_COUNTED:
        raise UserError(
            f"{index.source}: {steps} batches of {batch_size} are too few to time; "
            f"expected more than {2 * NOT_COUNTED}"
        )
    return split, index, steps


def benchmark_loaders(
    config: Config,
    runtime: Runtime,
    workers: Sequence[int],
    rounds: int,
    *,
    mixup: bool = False,
    keep: Callable[[Sequence[Speed]], None] = lambda _: None,
) -> Compared:
    """Times DataLoader.Train under a bare DALI pipeline, our DALI loader and our paddle.io loader.

    Args:
        config: Its chain is to be decode, random crop, flip, normalize.
        runtime: Device and cores.
        workers: Worker processes of paddle.io to try.
        rounds: Counted epochs of each.
        mixup: Time our DALI loader with Mixup too; ``batch_size`` must be even.
        keep: Takes all that is known, after each counted round.

    Raises:
        UserError: The data can't be used, or the chain is another.
        KeyboardInterrupt: Ctrl-C came before a round was done.
    """
    split, index, steps = train_split(config, runtime)
    layout, batch_size = layout_of(config), split.sampler.rows(runtime.world_size)
    by_hand = bare_pipeline(read_files(index, shuffled=True), split, runtime, layout)
    contenders: dict[str, Epoch] = {"bare DALI pipeline": bare(by_hand, steps, batch_size)}

    def add(name: str, **how: Any) -> None:
        changed, train = _with(config, split, **how)
        classes = changed.class_count(training=True)
        loader = build_loader(train, "Train", runtime, changed.Global, changed.Arch, classes)
        contenders[name] = through(loader)

    add("ppcls, DALI", use_dali=True)
    if mixup:
        add("ppcls, DALI + Mixup", use_dali=True, mixup=True)
    for count in workers:
        add(f"ppcls, paddle.io, {count} workers", use_dali=False, workers=count)
    return compare(contenders, rounds, time.perf_counter, finisher(runtime), keep)
