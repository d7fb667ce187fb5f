"""The Diverse Branch Block (Ding et al. 2021, https://arxiv.org/abs/2103.13425), as in PaddleClas's ResNet.

The block replaces a convolution with batch norm by the sum of four branches of different depth. For
inference, `ppcls.arch.layers.reparameterize` merges the branches into one convolution (sections 3.1 and 3.2).
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.kernels.paddle_layers import epsilon_of, running_statistics
from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat, batch_norm
from ppcls.arch.layers.reparameterize import Array, BranchedLayer, FoldableBranch, fold, numbers


class DiverseBranchBlock(BranchedLayer):
    """A layer that adds up four branches (figure 1).

    The branches are a k x k convolution, a 1x1 convolution, a 1x1 convolution followed by average pooling,
    and a 1x1 convolution followed by a k x k convolution.

    Args:
        kernel: Side k of the largest kernel, an odd number.
        act: Activation of the sum.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int | tuple[int, int] = 1,
        act: Activation | None = None,
        data_format: DataFormat = "NCHW",
    ) -> None:
        super().__init__()
        shape = in_channels, out_channels, kernel, stride, data_format
        self.dbb_origin = ConvNorm(in_channels, out_channels, kernel, stride, data_format=data_format)
        self.dbb_avg = AverageBranch(*shape)
        self.dbb_1x1 = ConvNorm(in_channels, out_channels, 1, stride, data_format=data_format)
        self.dbb_1x1_kxk = ChainedConvBranch(*shape)
        self.branches = [self.dbb_origin, self.dbb_1x1, self.dbb_avg, self.dbb_1x1_kxk]
        self._act = act

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        x = self.add_up(x)
        return x if self._act is None else self._act(x)

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """Returns ``relu(sum of the branches + shortcut)``."""
        return F.relu(self.add_up(x) + shortcut)

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        """Registers ``convolution`` under its name in checkpoints and removes the branches."""
        self.dbb_reparam = convolution
        for name in ("dbb_origin", "dbb_avg", "dbb_1x1", "dbb_1x1_kxk"):
            delattr(self, name)


class AverageBranch(FoldableBranch):
    """A 1x1 convolution and an average pooling, each with batch norm."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int | tuple[int, int],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2D(in_channels, out_channels, 1, bias_attr=False, data_format=data_format)
        self.bn = PaddedNorm(out_channels, kernel // 2, data_format)
        self.avg = nn.AvgPool2D(kernel, stride, data_format=data_format)
        self.avgbn = batch_norm(out_channels, data_format)
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return self.avgbn(self.avg(self.bn(self.conv(x))))

    def folded(self) -> tuple[Array, Array]:
        """Returns the kernel and bias of the equivalent convolution; see `FoldableBranch`."""
        side = self._kernel
        average = np.eye(self.conv.weight.shape[0])[:, :, None, None] * np.full([side, side], side**-2.0)
        return _chained(fold(numbers(self.conv.weight), self.bn.bn), fold(average, self.avgbn))


class ChainedConvBranch(FoldableBranch):
    """A 1x1 convolution, which initially returns its input, and a k x k convolution, each with batch norm."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int | tuple[int, int],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.idconv1 = IdentityConv(
            in_channels,
            in_channels,
            1,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)),
            bias_attr=False,
            data_format=data_format,
        )
        self.bn1 = PaddedNorm(in_channels, kernel // 2, data_format)
        self.conv2 = nn.Conv2D(
            in_channels, out_channels, kernel, stride, bias_attr=False, data_format=data_format
        )
        self.bn2 = batch_norm(out_channels, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return self.bn2(self.conv2(self.bn1(self.idconv1(x))))

    def folded(self) -> tuple[Array, Array]:
        """Returns the kernel and bias of the equivalent convolution; see `FoldableBranch`."""
        weight = numbers(self.idconv1.weight)
        first = weight + np.eye(len(weight))[:, :, None, None]
        return _chained(fold(first, self.bn1.bn), fold(numbers(self.conv2.weight), self.bn2))


class IdentityConv(nn.Conv2D):  # type: ignore[misc]
    """A 1x1 convolution whose kernel is identity + ``weight``, so that weight decay favours the identity."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x + nn.Conv2D.forward(self, x)  # Paddle 2.6 cannot compile super()


class PaddedNorm(nn.Layer):  # type: ignore[misc]
    """Batch norm, followed by padding with the values to which batch norm maps 0.

    The result equals the batch norm of a zero-padded input. The next layer then needs no padding of its own,
    and can be merged with the previous layer (section 3.3).

    Args:
        channels: Number of channels of the input.
        width: Width of the padding in pixels.
    """

    def __init__(self, channels: int, width: int, data_format: DataFormat) -> None:
        super().__init__()
        # The padding uses the running statistics. With PaddleClas's momentum, they follow the batch closely.
        self.bn = batch_norm(channels, data_format, momentum=0.1)
        self._width = width
        self._data_format = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C, H + 2 width, W + 2 width]."""
        x = self.bn(x)
        first = self._data_format == "NCHW"
        mean, variance = running_statistics(self.bn)
        deviation = paddle.sqrt(variance + epsilon_of(self.bn))
        zero = (self.bn.bias - self.bn.weight * (mean / deviation)).astype(x.dtype)
        frame = 1 - self._pad(paddle.ones_like(x[:1, :1] if first else x[:1, :, :, :1]))
        return self._pad(x) + frame * zero.reshape([1, -1, 1, 1] if first else [1, 1, 1, -1])

    def _pad(self, x: Tensor) -> Tensor:
        return F.pad(x, [self._width] * 4, data_format=self._data_format)


def _chained(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns the kernel and bias that combine a 1x1 convolution and a convolution that follows it."""
    (kernel, bias), (last_kernel, last_bias) = first, second
    chained = np.einsum("omhw,mi->oihw", last_kernel, kernel[:, :, 0, 0], optimize=True)
    return chained, last_kernel.sum((2, 3)) @ bias + last_bias
