"""Merges parallel branches into one convolution (Ding et al. 2021, https://arxiv.org/abs/2101.03697).

In training, networks such as RepVGG add up the outputs of several branches, which are convolutions with batch
norm, or batch norm alone. In evaluation, batch norm multiplies by a constant and adds a constant. Therefore
the sum equals a single convolution with bias (section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.kernels.paddle_layers import epsilon_of, groups_of, layout_of, running_statistics, stride_of
from ppcls.arch.layers.conv_norm import ConvNorm

Array = NDArray[np.float64]


class FoldableBranch(nn.Layer):  # type: ignore[misc]
    """Base class of branches other than `ConvNorm` that equal one convolution in evaluation."""

    def folded(self) -> tuple[Array, Array]:
        """Returns the kernel [C', C / groups, side, side] and the bias [C'] of the equivalent convolution."""
        raise NotImplementedError


class BranchedLayer(nn.Layer):  # type: ignore[misc]
    """Base class of layers that add up the outputs of their branches.

    Attributes:
        branches: Batch norms, instances of `FoldableBranch`, and convolutions without activation. All have
            the same channels, groups and stride, odd kernels, and padding that keeps the size. The first
            branch has the largest kernel.
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
        """Merges the branches into one convolution. After that, the layer is for evaluation only."""
        if len(self.branches) > 1:
            convolution = _merged(self.branches)
            self.replace_branches(convolution)
            self.branches = [convolution]

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        """Registers ``convolution`` under its name in checkpoints and removes the branches."""
        raise NotImplementedError


def reparameterize(model: nn.Layer) -> None:
    """Merges all branches of ``model``. Its outputs in evaluation change only by rounding errors.

    Load weights before you call this function, because it removes and renames parameters.
    """
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, BranchedLayer):
            layer.merge()


def fold(kernel: Array, norm: nn.BatchNorm2D) -> tuple[Array, Array]:
    """Returns the kernel and bias [C'] that combine a convolution with ``kernel`` [C', ...] and ``norm``."""
    mean, variance = map(numbers, running_statistics(norm))
    scale = numbers(norm.weight) / np.sqrt(variance + epsilon_of(norm))
    return kernel * scale[:, None, None, None], numbers(norm.bias) - mean * scale


def numbers(tensor: Any) -> Array:
    """Returns the values of a tensor as a float64 array."""
    return np.asarray(tensor.numpy(), np.float64)


def _merged(branches: Sequence[nn.Layer]) -> nn.Conv2D:
    largest = _convolution(branches[0])
    side = largest.weight.shape[-1]
    groups = groups_of(largest)
    out_channels = largest.weight.shape[0]
    in_channels = largest.weight.shape[1] * groups
    kernel = np.zeros(largest.weight.shape)
    bias = np.zeros(out_channels)
    for branch in branches:
        own_kernel, own_bias = _folded(branch, in_channels, groups)
        edge = (side - own_kernel.shape[-1]) // 2
        kernel += np.pad(own_kernel, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
        bias += own_bias
    convolution = nn.Conv2D(
        in_channels,
        out_channels,
        side,
        stride_of(largest),
        padding=side // 2,
        groups=groups,
        data_format=layout_of(largest),
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
    """Returns the kernel [channels, channels / groups, 1, 1] of a convolution that returns its input."""
    share = channels // groups
    return np.eye(share)[np.arange(channels) % share][:, :, None, None]
