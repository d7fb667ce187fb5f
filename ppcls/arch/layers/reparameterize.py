"""Merges parallel branches into one convolution (Ding et al. 2021, https://arxiv.org/abs/2101.03697).

Networks such as RepVGG train with the sum of several branches: convolutions with batch norm, and batch norm
alone. In evaluation batch norm is a multiplication and an addition of constants, so that the sum equals a
single convolution with bias (section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import ConvNorm

Array = NDArray[np.float64]


class FoldableBranch(nn.Layer):  # type: ignore[misc]
    """A branch other than `ConvNorm` that equals one convolution in evaluation."""

    def folded(self) -> tuple[Array, Array]:
        """Returns the kernel [C', C / groups, side, side] of that convolution, and its bias [C']."""
        raise NotImplementedError


class BranchedLayer(nn.Layer):  # type: ignore[misc]
    """A layer that adds up the outputs of its branches.

    Attributes:
        branches: Batch norms, `FoldableBranch`es, and convolutions without activation that have the same
            channels, groups and stride, odd kernels, and "same" padding. The first has the largest kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[nn.Layer] = []

    def add_up(self, x: Tensor) -> Tensor:
        """Returns the sum of the branches' outputs for ``x``."""
        y = self.branches[0](x)
        for branch in self.branches[1:]:
            y = y + branch(x)
        return y

    def merge(self) -> None:
        """Merges the branches into one convolution; afterwards the layer is for evaluation only."""
        if len(self.branches) > 1:
            convolution = _merged(self.branches)
            self.replace_branches(convolution)
            self.branches = [convolution]

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        """Registers ``convolution`` under its name in checkpoints and removes the branches."""
        raise NotImplementedError


def reparameterize(model: nn.Layer) -> None:
    """Merges all branches of ``model``, whose outputs in evaluation stay the same up to rounding.

    Load weights before: parameters get fewer and have other names.
    """
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, BranchedLayer):
            layer.merge()


def fold(kernel: Array, norm: nn.BatchNorm2D) -> tuple[Array, Array]:
    """Returns kernel and bias [C'] of a convolution with ``kernel`` [C', ...] followed by ``norm``."""
    scale = numbers(norm.weight) / np.sqrt(numbers(norm._variance) + norm._epsilon)
    return kernel * scale[:, None, None, None], numbers(norm.bias) - numbers(norm._mean) * scale


def numbers(tensor: Any) -> Array:
    """Returns the values of a tensor in float64."""
    return np.asarray(tensor.numpy(), np.float64)


def _merged(branches: Sequence[nn.Layer]) -> nn.Conv2D:
    largest = _convolution(branches[0])
    side, groups = largest.weight.shape[-1], largest._groups
    out_channels, in_channels = largest.weight.shape[0], largest.weight.shape[1] * groups
    kernel, bias = np.zeros(largest.weight.shape), np.zeros(out_channels)
    for branch in branches:
        own_kernel, own_bias = _folded(branch, in_channels, groups)
        edge = (side - own_kernel.shape[-1]) // 2
        kernel += np.pad(own_kernel, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
        bias += own_bias
    convolution = nn.Conv2D(
        in_channels,
        out_channels,
        side,
        largest._stride,
        padding=side // 2,
        groups=groups,
        data_format=largest._data_format,
    )
    convolution.weight.set_value(kernel.astype(np.float32))
    convolution.bias.set_value(bias.astype(np.float32))
    return convolution


def _folded(branch: nn.Layer, channels: int, groups: int) -> tuple[Array, Array]:
    if isinstance(branch, FoldableBranch):
        return branch.folded()
    if isinstance(branch, ConvNorm):
        return fold(numbers(_convolution(branch).weight), getattr(branch, branch.names[1]))
    return fold(_identity(channels, groups), branch)


def _convolution(branch: ConvNorm) -> nn.Conv2D:
    return getattr(branch, branch.names[0])


def _identity(channels: int, groups: int) -> Array:
    """Returns the kernel [channels, channels / groups, 1, 1] of the identity."""
    share = channels // groups
    return np.eye(share)[np.arange(channels) % share][:, :, None, None]
