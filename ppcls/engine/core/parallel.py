"""What several processes need to train one model: exchanged gradients, shared BatchNorm, own dropout."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn
from paddle.distributed.parallel import sync_params_buffers

from ppcls.config.sections.run import Global
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime


def exchange_gradients(
    model: nn.Layer, settings: Global, runtime: Runtime, *, overlapping: bool = True
) -> nn.Layer:
    """Returns the model as training calls it, with the weights of rank 0 on every rank.

    Args:
        model: As one process alone calls it.
        settings: Of the exchange.
        runtime: The ranks.
        overlapping: Whether gradients are averaged while backward still runs; else the model stays as it is,
            and who trains it averages them afterwards.
    """
    if runtime.world_size == 1:
        return model
    if not overlapping:
        sync_params_buffers(model, fuse_params=False)  # one by one, as DataParallel: fused it crashes in 2.6
        return model
    return paddle.DataParallel(
        model,
        comm_buffer_size=settings.fuse_grad_size_in_MB,
        find_unused_parameters=settings.find_unused_parameters,
    )


def synchronize_batch_norm(model: nn.Layer, runtime: Runtime) -> nn.Layer:
    """Returns the model with SyncBatchNorm in the place of BatchNorm: same parameters, names, layout.

    A frozen BatchNorm, which normalizes by its running statistics, has nothing to synchronize and stays. One
    process has nothing to synchronize either: its model stays as it is.

    Raises:
        UserError: Several processes train on CPUs, for which Paddle has no such kernel.
    """
    if runtime.world_size == 1:
        return model
    if runtime.device == "cpu":
        raise UserError(
            f"Global.sync_bn: Paddle {paddle.__version__} synchronizes BatchNorm on GPUs only, and these "
            f"{runtime.world_size} processes train on the CPU; set Global.sync_bn=False, or train on GPUs"
        )
    frozen = [
        (name, layer) for name, layer in model.named_sublayers() if getattr(layer, "_use_global_stats", None)
    ]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, layer in frozen:
        parent, _, own = name.rpartition(".")
        (dict(converted.named_sublayers())[parent] if parent else converted).add_sublayer(own, layer)
    return converted


def seed_batch(seed: int, rank: int, epoch: int, step: int) -> None:
    """Seeds what draws from Paddle's generator within the model, such as dropout, for one batch.

    Ranks draw other numbers than each other. As the numbers are a function of the place in the run, a
    resumed one draws what the undisturbed one would, and no generator's state has to be kept.
    """
    mixed = np.random.SeedSequence((seed, rank, epoch, step)).generate_state(1)
    paddle.seed(int(mixed[0]))
