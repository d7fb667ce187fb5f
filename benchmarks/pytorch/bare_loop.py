"""The training loop of Paddle's documentation, on one synthetic batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import paddle
from paddle.nn import functional as F

from ppcls.data.loaders.batch import Batch
from ppcls.engine.autotune.workload import SyntheticLoader, Workload
from ppcls.engine.core.networks import build_network
from ppcls.errors import UserError
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import factors, freeze
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime


def bare_workload(config: Config, runtime: Runtime) -> Workload:
    """Returns the loop of Paddle's documentation on one synthetic batch.

    Raises:
        UserError: The loop does not support a setting of the config.
    """
    split = config.DataLoader.need_train()
    amp = config.AMP
    if split.dataset.labels == "several":
        raise UserError("the bare loop supports only images with one label")
    if config.Global.update_freq > 1:
        raise UserError("the bare loop does not support gradient accumulation (Global.update_freq)")
    if runtime.device == "cpu" and amp is not None and amp.use_amp:
        raise UserError("the bare loop does not support AMP on a CPU, where Paddle computes in float32")
    loader = SyntheticLoader(split, config.Arch, runtime)
    step = _bare_step(config, next(iter(loader)), runtime.world_size)
    execution = "steps: operator by operator, Paddle's own loop"
    return Workload(lambda _: step(), loader.order.batch_size, lambda: 0.0, execution, False, loader.release)


def _bare_step(config: Config, batch: Batch, world: int) -> Callable[[], None]:
    """Returns a function that runs one training step in the config's precision."""
    model = build_network(config.Arch)
    amp = config.AMP
    half = amp is not None and amp.use_amp
    level, dtype = (amp.level, amp.dtype) if amp is not None else ("O1", "float16")
    freeze(config.Optimizer, model)
    optimizer = build_optimizer(
        config.Optimizer, model, half and level == "O2", factors(config.Optimizer, model)
    )
    if half and level == "O2":
        model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype=dtype)
    if world > 1:
        model = paddle.DataParallel(model)
    scaler = paddle.amp.GradScaler(enable=half and dtype == "float16", init_loss_scaling=2.0**15)
    if half:
        scaler._scale = scaler._scale.reshape([])  # numpy 2.4 fails to print a scale of shape [1]
    model.train()
    optimizer.set_lr(0.0)  # so that the model does not memorize the batch
    image = batch.image if half else batch.image.astype("float32")

    def step() -> None:
        with paddle.amp.auto_cast(level=level, dtype=dtype) if half else nullcontext():
            loss = F.cross_entropy(model(image).astype("float32"), batch.label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad(set_to_zero=False)

    return step
