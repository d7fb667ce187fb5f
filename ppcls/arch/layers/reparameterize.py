"""Branches that become one convolution for inference (Ding et al. 2021, https://arxiv.org/abs/2101.03697).

Networks such as RepVGG train with several branches side by side, whose outputs are added up: convolutions
with batch norm, batch norm alone, and what gives its own convolution. In evaluation batch norm multiplies and
adds fixed numbers, so the sum is a single convolution with a bias (section 3.3).
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
    """A branch that is no `ConvNorm`, and yet one convolution in evaluation."""

    def folded(self) -> tuple[Array, Array]:
        """Returns the kernel [C', C / groups, side, side] of that convolution, and its bias [C']."""
        raise NotImplementedError


class BranchedLayer(nn.Layer):  # type: ignore[misc]
    """A layer with branches whose outputs are added up.

    Attributes:
        branches: Batch norms, `FoldableBranch`es, and convolutions without activation that have the same
            channels, groups and stride, odd kernels, and "same" padding. The first has the largest kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[nn.Layer] = []

    def add_up(self, x: Tensor) -> Tensor:
        """Returns the sum of what the branches, one at least, make of ``x``."""
        y = self.branches[0](x)
        for branch in self.branches[1:]:
            y = y + branch(x)
        return y

    def merge(self) -> None:
        """Makes one convolution of several branches; the layer is for evaluation from then on."""
        if len(self.branches) > 1:
            convolution = _merged(self.branches)
            self.replace_branches(convolution)
            self.branches = [convolution]

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        """Registers ``convolution`` under its name in checkpoints, and removes the branches."""
        raise NotImplementedError


def reparameterize(model: nn.Layer) -> None:
    """Merges all branches of ``model``, which computes the same in evaluation, up to rounding.

    It has fewer parameters then, under other names: fill it before.
    """
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, BranchedLayer):
            layer.merge()


def fold(kernel: Array, norm: nn.BatchNorm2D) -> tuple[Array, Array]:
    """Returns the kernel and bias [C'] of a convolution by ``kernel`` [C', ...] with ``norm`` behind it."""
    scale = numbers(norm.weight) / np.sqrt(numbers(norm._variance) + norm._epsilon)
    return kernel * scale[:, None, None, None], numbers(norm.bias) - numbers(norm._mean) * scale


def numbers(tensor: Any) -> Array:
    """Returns what is in a tensor, exactly."""
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
    """Returns the kernel [channels, channels / groups, 1, 1] of a convolution that changes nothing."""
    share = channels // groups
    return np.eye(share)[np.arange(channels) % share][:, :, None, None]
