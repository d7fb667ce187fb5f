"""The running statistics of BatchNorm, which evaluation uses instead of the statistics of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.kernels.paddle_layers import (
    momentum_of,
    running_statistics,
    set_momentum_of,
    uses_running_statistics,
)
from ppcls.errors import UserError
from ppcls.runtime.collectives import all_reduce

Batch = TypeVar("Batch")

_KINDS = (nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)


def batch_norms(model: nn.Layer) -> Iterator[nn.Layer]:
    """Yields the BatchNorm layers of a model."""
    yield from (layer for layer in model.sublayers(include_self=True) if isinstance(layer, _KINDS))


def set_momentum(model: nn.Layer, momentum: float, name: str) -> None:
    """Sets the weight of the previous value when BatchNorm updates its running statistics.

    Args:
        model: Model whose BatchNorm layers are changed.
        momentum: Weight of the previous value, from 0 to less than 1.
        name: Name of the architecture, for the error message.

    Raises:
        UserError: The model has no BatchNorm layer.
    """
    norms = list(batch_norms(model))
    if not norms:
        raise UserError(f"Arch.batch_norm_momentum: {name} has no BatchNorm layer; remove this key")
    for norm in norms:
        # Not an argument of the constructors: architectures build their layers themselves, and those of
        # paddle.vision.models have no such parameter.
        set_momentum_of(norm, momentum)


def largest_momentum(model: nn.Layer) -> float | None:
    """Returns the largest momentum of the layers that update their statistics; None without such layers."""
    return max((momentum_of(norm) for norm in _updating_norms(model)), default=None)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def estimate_statistics(
    model: nn.Layer, forward: Callable[[Batch], object], batches: Iterable[Batch], world: int
) -> None:
    """Replaces the running statistics of BatchNorm by those of given batches (Wu & Johnson 2021).

    The mean is the mean over the batches. The variance is the mean variance within the batches plus the
    variance of their means. Other layers, such as dropout, stay in evaluation mode. If an error occurs, the
    previous statistics are restored. Frozen and unused layers do not change. All ranks must call this
    function.

    Args:
        model: Bare model, whose training mode is restored afterwards.
        forward: Function that runs the model on a batch.
        batches: Batches of this rank, without padding.
        world: Number of ranks.
    """
    norms = list(_updating_norms(model))
    buffers = [buffer for norm in norms for buffer in running_statistics(norm)]
    if not buffers:
        return
    sizes = [buffer.size for buffer in buffers]
    previous = [buffer.clone() for buffer in buffers]
    moments = np.zeros(sum(sizes))  # sums of means and of squares over the batches
    count = 0
    training = model.training
    model.eval()
    for norm in norms:
        norm.training = True
    try:
        for batch in batches:
            for buffer in buffers:
                buffer.zero_()  # so that the update of a layer reveals the statistics of its batch
            forward(batch)
            # The running value was 0, so it now is (1 - momentum) times the value of the batch.
            values = [
                buffer.numpy().astype(np.float64) / (1.0 - momentum_of(norm))
                for norm in norms
                for buffer in running_statistics(norm)
            ]
            means = values[0::2]
            squares = [variance + mean**2 for mean, variance in zip(means, values[1::2], strict=True)]
            moments += np.concatenate([*means, *squares])
            count += 1
    except BaseException:  # a signal or Ctrl-C, too, must not leave a model with the statistics of one batch
        _fill(buffers, [value.numpy() for value in previous])
        raise
    finally:
        if training:
            model.train()
        else:
            model.eval()
    sums = all_reduce(np.append(moments, count), world)
    mean_moments = np.split(sums[:-1] / sums[-1], 2)
    per_layer = np.cumsum(sizes[0::2])[:-1]
    layers = zip(*(np.split(moment, per_layer) for moment in mean_moments), strict=True)
    results = [value.numpy() for value in previous]
    for number, (mean, square) in enumerate(layers):
        if square.any():  # else, evaluations do not use this layer, such as in auxiliary classifiers
            results[2 * number] = mean
            results[2 * number + 1] = np.maximum(square - mean**2, 0.0)
    _fill(buffers, results)


def _updating_norms(model: nn.Layer) -> Iterator[nn.Layer]:
    """Yields the BatchNorm layers that training updates, which excludes frozen layers."""
    yield from (norm for norm in batch_norms(model) if not uses_running_statistics(norm))


def _fill(buffers: Sequence[Tensor], values: Sequence[NDArray[Any]]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(paddle.to_tensor(value.astype(np.float32)).astype(buffer.dtype), True)
