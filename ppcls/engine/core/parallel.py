"""Prepares a model for training on several ranks: exchange of gradients, SyncBatchNorm, random seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import paddle
from paddle import nn
from paddle.distributed.parallel import sync_params_buffers

from ppcls.arch.kernels.paddle_layers import uses_running_statistics
from ppcls.errors import UserError, counted

if TYPE_CHECKING:
    from ppcls.engine.core.settings import ExecutionSettings
    from ppcls.runtime.start import Runtime


def connect_ranks(
    model: nn.Layer, settings: ExecutionSettings, runtime: Runtime, *, overlapping: bool = True
) -> nn.Layer:
    """Copies the weights of rank 0 to all ranks, and returns the network that training calls.

    Args:
        model: Network that a single process would call.
        settings: Settings of the gradient exchange.
        overlapping: Whether ranks average the gradients during the backward pass. Otherwise the network is
            not wrapped, and the training step averages the gradients after the backward pass.
    """
    if runtime.world_size == 1:
        return model
    if not overlapping:
        # Sends the parameters one by one, as DataParallel does: the fused version crashes in Paddle 2.6.
        sync_params_buffers(model, fuse_params=False)
        return model
    return paddle.DataParallel(
        model,
        comm_buffer_size=settings.fuse_grad_size_in_MB,
        find_unused_parameters=settings.find_unused_parameters,
    )


def synchronize_batch_norm(model: nn.Layer, runtime: Runtime) -> nn.Layer:
    """Replaces BatchNorm by SyncBatchNorm with the same parameters, names and layout; returns the model.

    A frozen BatchNorm stays unchanged, because it normalizes by its running statistics. With a single
    process the whole model stays unchanged.

    Raises:
        UserError: Several processes train on CPUs, for which Paddle has no SyncBatchNorm.
    """
    if runtime.world_size == 1:
        return model
    if runtime.device == "cpu":
        raise UserError(
            f"Global.sync_bn: Paddle {paddle.__version__} synchronizes BatchNorm on GPUs only, but these "
            f"{counted(runtime.world_size, 'process trains', 'processes train')} on the CPU; set "
            "Global.sync_bn=False, or train on GPUs"
        )
    frozen = [(name, layer) for name, layer in model.named_sublayers() if uses_running_statistics(layer)]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, layer in frozen:
        parent, _, child = name.rpartition(".")
        (dict(converted.named_sublayers())[parent] if parent else converted).add_sublayer(child, layer)
    return converted


def seed_batch(seed: int, rank: int, epoch: int, step: int) -> None:
    """Seeds Paddle's random generator, which layers such as dropout use, for one batch.

    Each rank draws different numbers. The seed depends only on ``seed``, the rank and the position in the
    run. A resumed run therefore draws the same numbers, and checkpoints need no generator state.
    """
    mixed = np.random.SeedSequence((seed, rank, epoch, step)).generate_state(1)
    paddle.seed(int(mixed[0]))
