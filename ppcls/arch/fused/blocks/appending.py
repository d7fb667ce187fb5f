"""Blocks whose layers append channels to their input, as in DenseNet, without gradients.

Paddle's concatenation copies all channels in each layer. In an evaluation of DenseNet121, these copies are
half of the memory traffic between the convolutions. Here, a block allocates all its channels at once. Each
layer reads the first of them and writes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Protocol

import paddle
from paddle import Tensor, nn

from ppcls.arch.fused.amp import cast
from ppcls.arch.fused.batch_norm import append_channels, normalize_first
from ppcls.arch.fused.cuda import fills_vectors


class AppendingLayer(Protocol):
    """A layer that appends channels to its input.

    Attributes:
        growth: Number of the channels that it appends.
    """

    growth: int

    @property
    def norm(self) -> nn.BatchNorm2D:
        """The batch norm of its input, with ReLU after it."""
        ...

    def new_channels(self, normalized: Tensor) -> Tensor:
        """Maps ReLU of the batch norm, [B, H, W, C], to the channels to append."""
        ...


def fuse_appending(model: nn.Layer) -> None:
    """Makes the blocks of a model that have a method ``appending_layers`` append channels in place.

    Args:
        model: Model whose batch norms use the fused kernels.
    """
    for block in model.sublayers(include_self=True):
        if layers := _layers(block):
            kernels_used = all("norm_relu" in vars(layer.norm) for layer in layers)
            if kernels_used:
                block.forward = MethodType(_forward, block)


def _layers(block: nn.Layer) -> Sequence[AppendingLayer]:
    layers = getattr(block, "appending_layers", None)
    return () if layers is None else layers()


def _forward(block: nn.Layer, x: Tensor) -> Tensor:
    layers = _layers(block)
    if not _supports(layers, x):
        return type(block).forward(block, x)
    filled = x.shape[-1]
    features = paddle.empty([*x.shape[:-1], filled + sum(layer.growth for layer in layers)], x.dtype)
    append_channels(features, 0, x)
    for layer in layers:
        added = layer.new_channels(normalize_first(layer.norm, features))
        append_channels(features, filled, cast(added, features.dtype))
        filled += layer.growth
    return features


def _supports(layers: Sequence[AppendingLayer], x: Tensor) -> bool:
    """Returns whether channels can be appended in place: in evaluations, and with whole vectors."""
    if paddle.is_grad_enabled() or any(layer.norm.training for layer in layers):
        return False
    if any(layer.norm.weight.dtype != paddle.float32 for layer in layers):
        return False
    counts = (x.shape[-1], *(layer.growth for layer in layers))
    return all(fills_vectors(count, x.dtype) for count in counts)
