"""What several ranks need to train one model: exchange of gradients, shared BatchNorm, seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import paddle
from paddle import nn
from paddle.distributed.parallel import sync_params_buffers

from ppcls.errors import UserError

if TYPE_CHECKING:
    from ppcls.config.sections.run import Global
    from ppcls.runtime.start import Runtime


def connect_ranks(
    model: nn.Layer, settings: Global, runtime: Runtime, *, overlapping: bool = True
) -> nn.Layer:
    """Returns the model as training calls it, with the weights of rank 0 on every rank.

    Args:
        model: Model as a single process calls it.
        settings: Settings of the gradient exchange.
        overlapping: Whether gradients are averaged during the backward pass. Otherwise the model stays
            unwrapped, and the training step averages them afterwards.
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
    """Replaces BatchNorm by SyncBatchNorm with the same parameters, names and layout; returns the model.

    A frozen BatchNorm normalizes by its running statistics and stays unchanged. So does the model of a single
    process.

    Raises:
        UserError: Several processes train on CPUs, for which Paddle has no such kernel.
    """
    if runtime.world_size == 1:
        return model
    if runtime.device == "cpu":
        raise UserError(
            f"Global.sync_bn: Paddle {paddle.__version__} synchronizes BatchNorm on GPUs only, but these "
            f"{runtime.world_size} processes train on the CPU; set Global.sync_bn=False, or train on GPUs"
        )
    frozen = [
        (name, layer) for name, layer in model.named_sublayers() if getattr(layer, "_use_global_stats", None)
    ]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, layer in frozen:
        parent, _, child = name.rpartition(".")
        (dict(converted.named_sublayers())[parent] if parent else converted).add_sublayer(child, layer)
    return converted


def seed_batch(seed: int, rank: int, epoch: int, step: int) -> None:
    """Seeds Paddle's generator for one batch, from which layers such as dropout draw.

    Each rank draws different numbers. The seed is a function of the position in the run, so a resumed run
    draws the same numbers, and no generator state has to be saved.
    """
    mixed = np.random.SeedSequence((seed, rank, epoch, step)).generate_state(1)
    paddle.seed(int(mixed[0]))
