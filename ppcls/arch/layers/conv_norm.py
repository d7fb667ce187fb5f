"""A convolution, batch norm and activation: what most networks are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.norm_act import norm_relu

DataFormat = Literal["NCHW", "NHWC"]
Activation = Callable[[Tensor], Tensor]


class ConvNorm(nn.Layer):  # type: ignore[misc]
    """A convolution without bias, batch norm, and an activation where there is one.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel: Side of the kernel.
        stride: Of the convolution.
        groups: Of the convolution.
        act: What follows batch norm; ``F.relu`` may become one operator with it.
        data_format: Layout of input and output; the parameters have the same shapes in both.
        padding: Of the convolution, as `nn.Conv2D` takes it; by default ``kernel // 2``, which keeps the
            size but for ``stride``.
        epsilon: Of batch norm.
        momentum: The share of the old value as batch norm's running statistics move.
        initializer: Of the convolution; Paddle's own by default.
        decay: Whether weight decay takes hold of batch norm's scale and shift.
    """

    names: ClassVar[tuple[str, str]] = ("conv", "bn")  # of the parameters, in checkpoints

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        act: Activation | None = None,
        data_format: DataFormat = "NCHW",
        *,
        padding: int | list[int] | None = None,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        initializer: nn.initializer.Initializer | None = None,
        decay: bool = True,
    ) -> None:
        super().__init__()
        conv, norm = self.names
        convolution = nn.Conv2D(
            in_channels,
            out_channels,
            kernel,
            stride,
            padding=kernel // 2 if padding is None else padding,
            groups=groups,
            weight_attr=paddle.ParamAttr(initializer=initializer),
            bias_attr=False,
            data_format=data_format,
        )
        self.add_sublayer(conv, self.place(convolution))
        self.add_sublayer(norm, batch_norm(out_channels, data_format, epsilon, momentum, decay))
        self._act = act

    @staticmethod
    def place(convolution: nn.Conv2D) -> nn.Layer:
        """Returns what has the convolution's name in checkpoints: itself, or a layer around it."""
        return convolution

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride], or the same in NHWC."""
        conv, norm = self.names
        x = getattr(self, conv)(x)
        if self._act is F.relu:
            return norm_relu(getattr(self, norm), x)
        x = getattr(self, norm)(x)
        return x if self._act is None else self._act(x)

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """Returns ``relu(norm(conv(x)) + shortcut)``."""
        conv, norm = self.names
        return norm_relu(getattr(self, norm), getattr(self, conv)(x), shortcut)


class UnderscoredConvNorm(ConvNorm):
    """The same under the names that PaddleClas's older networks have in their checkpoints."""

    names = ("_conv", "_batch_norm")


def round_channels(channels: float, divisor: int = 8) -> int:
    """Returns the multiple of ``divisor`` nearest to ``channels`` that is no more than 10 % below it.

    The rule of MobileNet's authors, by which its descendants are scaled too.
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def batch_norm(
    channels: int,
    data_format: DataFormat,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    decay: bool = True,
) -> nn.BatchNorm2D:
    """Returns batch norm; without ``decay``, weight decay leaves its parameters alone."""
    kept = None if decay else paddle.regularizer.L2Decay(0.0)
    return nn.BatchNorm2D(
        channels,
        momentum,
        epsilon,
        weight_attr=paddle.ParamAttr(regularizer=kept),
        bias_attr=paddle.ParamAttr(regularizer=kept),
        data_format=data_format,
    )


def uniform_linear(in_features: int, out_features: int) -> nn.Linear:
    """Returns a linear layer whose weights begin uniform within ``in_features ** -0.5`` of 0."""
    bound = in_features**-0.5
    uniform = nn.initializer.Uniform(-bound, bound)
    return nn.Linear(in_features, out_features, weight_attr=paddle.ParamAttr(initializer=uniform))
