"""The running statistics of BatchNorm, which evaluation uses instead of the statistics of a batch."""

from __future__ import annotations

from collections.abc import Iterator

from paddle import nn

from ppcls.errors import UserError

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
        # The constructor is Paddle's only public way to set it. But architectures build their layers
        # themselves, and those of paddle.vision.models have no such parameter.
        norm._momentum = momentum
