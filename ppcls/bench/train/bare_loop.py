"""The training loop as Paddle's documentation shows it: what ours is compared with.

No loader, no metrics, no log, no schedule; forward, backward and the optimizer on one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import paddle
from paddle.nn import functional as F

from ppcls.config.schema import Config
from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.networks import build_network
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import factors, freeze


def bare_step(config: Config, batch: Batch, world: int) -> Callable[[], None]:
    """Returns what takes one step, in the config's precision.

    Args:
        config: Says model, optimizer and precision.
        batch: Trained on over and over; labels [B] int64.
        world: Number of processes.
    """
    model, amp = build_network(config.Arch), config.AMP
    half = amp is not None and amp.use_amp
    level, dtype = (amp.level, amp.dtype) if amp is not None else ("O1", "float16")
    freeze(config.Optimizer, model)
    own = factors(config.Optimizer, model)
    optimizer = build_optimizer(config.Optimizer, model, half and level == "O2", own)
    if half and level == "O2":
        model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype=dtype)
    if world > 1:
        model = paddle.DataParallel(model)
    scaler = paddle.amp.GradScaler(enable=half and dtype == "float16", init_loss_scaling=2.0**15)
    if half:
        scaler._scale = scaler._scale.reshape([])  # numpy 2.4 fails to print one of shape [1]
    model.train()
    optimizer.set_lr(0.0)  # so that the weights don't learn one batch by heart
    image = batch.image if half else batch.image.astype("float32")

    def step() -> None:
        with paddle.amp.auto_cast(level=level, dtype=dtype) if half else nullcontext():
            loss = F.cross_entropy(model(image).astype("float32"), batch.label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad(set_to_zero=False)

    return step
