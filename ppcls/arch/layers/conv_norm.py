"""The unit of convolution, batch norm and activation that most networks consist of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    groups_of,
    layout_of,
    padding_argument,
    stride_of,
)
from ppcls.arch.layers.norm_act import convolve_norm, norm_activate

DataFormat = Literal["NCHW", "NHWC"]
Activation = Callable[[Tensor], Tensor]


class ImageConv2D(nn.Conv2D):  # type: ignore[misc]
    """A convolution of NHWC images with 3 channels, which adds a fourth channel of zeros in training.

    In half precision, cuDNN is slow with an odd number of channels. With four channels, training reached
    6,412 instead of 5,343 images/s (docs/measurements/training.md). The fourth channel does not change the
    output or the parameters.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        settings = list(stride_of(self)), padding_argument(self), list(dilation_of(self))
        self.geometry = (*settings, groups_of(self), layout_of(self))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, 3] to [B, H/stride, W/stride, C']."""
        if not self.training:
            return nn.Conv2D.forward(self, x)  # Paddle 2.6 cannot compile super()
        zeros = paddle.zeros_like
        return F.conv2d(
            paddle.concat([x, zeros(x[:, :, :, :1])], axis=3),
            paddle.concat([self.weight, zeros(self.weight[:, :1])], axis=1),
            None,
            *self.geometry,
        )


class ConvNorm(nn.Layer):  # type: ignore[misc]
    """A convolution without bias, batch norm and an optional activation.

    Args:
        act: Activation; None for no activation. ``F.relu`` is fused with batch norm where possible.
        padding: Padding as in `nn.Conv2D`; ``kernel // 2`` by default.
        epsilon: Epsilon of batch norm.
        momentum: Weight of the old value in updates of batch norm's running statistics.
        initializer: Initializer of the convolution; Paddle's default if None.
        decay: Whether weight decay applies to batch norm.
    """

    names: ClassVar[tuple[str, str]] = ("conv", "bn")  # names of the layers in checkpoints

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
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
        convolution = (
            ImageConv2D if data_format == "NHWC" and in_channels == 3 and groups == 1 else nn.Conv2D
        )(
            in_channels,
            out_channels,
            kernel,
            stride,
            padding=_half(kernel) if padding is None else padding,
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
        """Returns the layer to register for ``convolution``: the convolution, or a layer that contains it."""
        return convolution

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return convolve_norm(*self._layers(), x, self._act)

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the result of `forward`, and ``x`` for a second consumer such as a shortcut.

        In the backward pass, a fused convolution (`ppcls.arch.fused`) adds its gradient in place to the
        gradient of the second consumer.
        """
        convolution, norm = self._layers()
        if x.stop_gradient or not hasattr(convolution, "fork"):
            return self(x), x
        output, x = convolution.fork(x)
        return norm_activate(norm, output, self._act), x

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """Returns ``relu(norm(conv(x)) + shortcut)``."""
        return convolve_norm(*self._layers(), x, F.relu, shortcut)

    def add(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """Returns ``self(x) + shortcut``.

        While the weights do not change, `ppcls.arch.fused.folded` can compute both by one kernel. Otherwise,
        hooks of this layer are called, which keep its output for distillation.
        """
        folded = getattr(self._layers()[1], "folded", None)
        plain = self._act is None and type(self).forward is ConvNorm.forward
        output: Tensor  # declared here, because Paddle 2.6 cannot compile annotated names in branches
        if plain and folded is not None and folded.supports(x, None, shortcut):
            output = folded.run(x, None, shortcut)
            return output
        return self(x) + shortcut

    def convolutions_and_norms(self) -> list[tuple[nn.Layer, nn.Layer]]:
        """Returns the convolution and its batch norm, which `ppcls.arch.fused` folds into it."""
        placed, norm = self._layers()
        convolution = next(layer for layer in placed.sublayers(include_self=True) if not layer.sublayers())
        return [(convolution, norm)]

    def _layers(self) -> tuple[nn.Layer, nn.Layer]:
        """Returns the layer with the convolution, and the batch norm."""
        convolution, norm = self.names
        return getattr(self, convolution), getattr(self, norm)


def conv_norm_layers(*shape: Any, **options: Any) -> list[nn.Layer]:
    """Returns the convolution and the batch norm of a `ConvNorm`, for a `paddle.nn.Sequential`."""
    return ConvNorm(*shape, **options).children()  # type: ignore[no-any-return]


class UnderscoredConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of PaddleClas's older networks."""

    names = ("_conv", "_batch_norm")


class FanOutNormal(nn.initializer.Initializer):  # type: ignore[misc]
    """An initializer that preserves the variance of gradients (He et al. 2015, equation 14).

    Weights are drawn from a normal distribution with variance 2 / (output channels * area of the kernel).

    Args:
        depthwise: Whether a depthwise convolution counts as one output channel.
    """

    def __init__(self, *, depthwise: bool = False) -> None:
        super().__init__()
        self._depthwise = depthwise

    def forward(self, var: Tensor, block: object = None) -> Tensor:
        """Initializes a parameter, [C', C / groups, height, width]."""
        out_channels, in_channels, height, width = var.shape
        fan_out = height * width * (1 if self._depthwise and in_channels == 1 else out_channels)
        return nn.initializer.Normal(std=(2.0 / fan_out) ** 0.5).forward(var, block)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """Returns ``x`` for positive elements and ``slope * x`` for negative elements.

    This function replaces `F.leaky_relu`, which paddle2onnx converts with a wrong slope.
    """
    return paddle.maximum(x, slope * x)


def kaiming_conv(
    data_format: DataFormat, kind: type[ConvNorm] = ConvNorm, *, decay: bool = False
) -> partial[ConvNorm]:
    """Returns a constructor of `ConvNorm` layers with Kaiming-normal weights."""
    normal = nn.initializer.KaimingNormal()
    return partial(kind, data_format=data_format, initializer=normal, decay=decay)


def round_channels(channels: float, divisor: int = 8) -> int:
    """Rounds ``channels`` to the nearest multiple of ``divisor`` that is at most 10 % smaller.

    The authors of MobileNet scale the number of channels by this rule, as do networks derived from MobileNet.
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def batch_norm(
    channels: int, data_format: DataFormat, epsilon: float = 1e-5, momentum: float = 0.9, decay: bool = True
) -> nn.BatchNorm2D:
    """Returns a batch norm layer. Weight decay applies to it only if ``decay`` is True."""
    no_decay = None if decay else paddle.regularizer.L2Decay(0.0)
    return nn.BatchNorm2D(
        channels,
        momentum,
        epsilon,
        weight_attr=paddle.ParamAttr(regularizer=no_decay),
        bias_attr=paddle.ParamAttr(regularizer=no_decay),
        data_format=data_format,
    )


def uniform_linear(in_features: int, out_features: int) -> nn.Linear:
    """Returns a linear layer whose initial weights are uniformly distributed in ``±in_features ** -0.5``."""
    bound = in_features**-0.5
    uniform = nn.initializer.Uniform(-bound, bound)
    return nn.Linear(in_features, out_features, weight_attr=paddle.ParamAttr(initializer=uniform))


def _half(kernel: int | tuple[int, int]) -> int | list[int]:
    return kernel // 2 if isinstance(kernel, int) else [side // 2 for side in kernel]
