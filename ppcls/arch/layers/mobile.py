"""Blocks of the MobileNets, which their descendants use, too."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat

_FEATURES = 1280


class DepthwiseSeparable(nn.Layer):  # type: ignore[misc]
    """The depthwise separable convolution (Howard et al. 2017, https://arxiv.org/abs/1704.04861, figure 3).

    Args:
        kernel: Kernel of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        conv: Constructor of both convolutions.
        se: Layer between them that weights the channels, such as squeeze-and-excitation.
    """

    names: ClassVar[tuple[str, str, str]] = ("dw_conv", "se", "pw_conv")  # names of the layers in checkpoints

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int | tuple[int, int],
        conv: partial[ConvNorm],
        se: nn.Layer | None = None,
    ) -> None:
        super().__init__()
        depthwise, weighting, pointwise = self.names
        self.add_sublayer(depthwise, conv(in_channels, in_channels, kernel, stride, in_channels))
        self.add_sublayer(weighting, nn.Identity() if se is None else se)
        self.add_sublayer(pointwise, conv(in_channels, out_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride]; or NHWC."""
        for name in self.names:
            x = getattr(self, name)(x)
        return x


class InvertedResidual(nn.Layer):  # type: ignore[misc]
    """The inverted residual (Sandler et al. 2018, https://arxiv.org/abs/1801.04381, figure 3b).

    A 1x1 convolution expands the channels, a depthwise one follows, and a 1x1 convolution reduces the
    channels. There is a shortcut if the shapes agree.

    Args:
        width: Channels of the depthwise convolution.
        kernel: Kernel of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        act: Activation of the first two convolutions.
        se: Layer that weights the depthwise convolution's channels, such as squeeze-and-excitation.
        decay: Whether weight decay applies to batch norm.
    """

    conv: ClassVar[type[ConvNorm]] = ConvNorm
    # Names of the layers in checkpoints.
    names: ClassVar[tuple[str, str, str, str]] = ("expand_conv", "bottleneck_conv", "mid_se", "linear_conv")

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        kernel: int,
        stride: int,
        act: Activation,
        se: nn.Layer | None = None,
        data_format: DataFormat = "NCHW",
        *,
        decay: bool = True,
    ) -> None:
        super().__init__()
        expand, depthwise, weighting, reduce = self.names
        conv = partial(self.conv, data_format=data_format, decay=decay)
        self.add_sublayer(expand, conv(in_channels, width, 1, act=act))
        self.add_sublayer(depthwise, conv(width, width, kernel, stride, width, act))
        self.add_sublayer(weighting, nn.Identity() if se is None else se)
        self.add_sublayer(reduce, conv(width, out_channels, 1))
        self._shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride]; or NHWC."""
        y = x
        for name in self.names:
            y = getattr(self, name)(y)
        return x + y if self._shortcut else y


class LateFeatures(nn.Layer):  # type: ignore[misc]
    """A network that computes its last features after pooling, for one pixel only.

    Figure 5 of MobileNetV3 (Howard et al. 2019, https://arxiv.org/abs/1905.02244).
    """

    def add_classifier(
        self,
        channels: int,
        class_num: int,
        act: Activation,
        dropout_prob: float,
        data_format: DataFormat,
        *,
        bias: bool = False,
        last_conv: bool = True,
    ) -> None:
        """Adds the layers of `classify`.

        Args:
            channels: Channels of its input.
            class_num: Number of classes.
            act: Activation of the features.
            dropout_prob: Dropout of the features.
            data_format: Layout of its input.
            bias: Whether the convolution of the features has a bias.
            last_conv: Whether there are such features. Otherwise the input is classified.
        """
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._late = last_conv
        if not last_conv:
            self.fc = nn.Linear(channels, class_num)
            return
        bias_attr = None if bias else False
        self.last_conv = nn.Conv2D(channels, _FEATURES, 1, bias_attr=bias_attr, data_format=data_format)
        self._last_act = act
        self.dropout = nn.Dropout(dropout_prob, mode="downscale_in_infer")
        self.fc = nn.Linear(_FEATURES, class_num)

    def classify(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.avg_pool(x)
        if self._late:
            x = self.dropout(self._last_act(self.last_conv(x)))
        return self.fc(x.flatten(1))
