"""Blocks of MobileNets, which are also part of networks derived from MobileNets."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat, batch_norm
from ppcls.arch.layers.drop_path import DropPath
from ppcls.arch.layers.sequence import LayerScale
from ppcls.arch.layers.transformer import MatrixProduct, Softmax
from ppcls.arch.public.names import PublicNames

_FEATURES = 1280


class DepthwiseSeparable(nn.Layer):  # type: ignore[misc]
    """A depthwise separable convolution (Howard et al. 2017, https://arxiv.org/abs/1704.04861, figure 3).

    Args:
        kernel: Kernel of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        conv: Constructor of both convolutions.
        se: Layer between the convolutions that weights the channels, such as squeeze-and-excitation.
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
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        for name in self.names:
            x = getattr(self, name)(x)
        return x


class InvertedResidual(nn.Layer):  # type: ignore[misc]
    """An inverted residual block (Sandler et al. 2018, https://arxiv.org/abs/1801.04381, figure 3b).

    A 1x1 convolution increases the number of channels, a depthwise convolution follows, and another 1x1
    convolution reduces the number of channels. The block has a shortcut if input and output have the same
    shape.

    Args:
        width: Number of channels of the depthwise convolution.
        kernel: Kernel of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        act: Activation of the first two convolutions.
        se: Layer that weights the channels of the depthwise convolution, such as squeeze-and-excitation.
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
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        *first, last = self.names
        y = x
        for name in first:
            y = getattr(self, name)(y)
        reduce = getattr(self, last)
        if not self._shortcut:
            return reduce(y)
        return reduce.add(y, x) if isinstance(reduce, ConvNorm) else reduce(y) + x


class MultiQueryAttention(nn.Layer):  # type: ignore[misc]
    """Attention whose heads share keys and values (section 4 of the MobileNetV4 paper), with a shortcut.

    Args:
        width: Width of a head.
        heads: Number of heads.
        stride: Stride of the depthwise convolutions that reduce keys and values.
        factor: Factor by which the products of queries and keys are multiplied.
        scale: Initial value of the learned factor per channel of `LayerScale`.
        drop: Probability of skipping the layer for an image in training.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        heads: int,
        stride: int,
        factor: float,
        scale: float,
        drop: float,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        conv = partial(nn.Conv2D, kernel_size=1, bias_attr=False, data_format=data_format)
        self.norm = batch_norm(channels, data_format, decay=False)
        self.query_proj = conv(channels, width * heads)
        self.proj = conv(width * heads, channels)
        self.key_proj = conv(channels, width)
        self.value_proj = conv(channels, width)
        down = partial(ConvNorm, channels, channels, 3, stride, channels, None, data_format, decay=False)
        self.key_down_proj, self.value_down_proj = (down() if stride > 1 else nn.Identity() for _ in range(2))
        self.scores = MatrixProduct(transposed=True)
        self.mixed = MatrixProduct()
        self.softmax = Softmax()
        self.layer_scale = LayerScale(channels, scale, data_format)
        self.drop_path = DropPath(drop)
        self._width = width
        self._factor = factor
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        y = self.norm(x)
        query = self._tokens(self.query_proj(y)) * self._factor
        key = self._tokens(self.key_proj(self.key_down_proj(y)))
        value = self._tokens(self.value_proj(self.value_down_proj(y)))
        count, width = query.shape[1:]
        scores = self.scores(query.reshape([-1, count * width // self._width, self._width]), key)
        y = self.mixed(self.softmax(scores), value).reshape([-1, count, width])
        if self._channels_last:
            y = y.reshape([-1, *x.shape[1:3], width])
        else:
            y = y.transpose([0, 2, 1]).reshape([-1, width, *x.shape[2:]])
        return x + self.drop_path(self.layer_scale(self.proj(y)))

    def _tokens(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2) if self._channels_last else x.flatten(2).transpose([0, 2, 1])


def _dropout_factors(model: nn.Layer) -> dict[str, float]:
    # PyTorch's weights expect its dropout, which scales in training; see `mode` below.
    return {"fc.weight": 1 / (1 - model.dropout.p)}


class LateFeatures(nn.Layer):  # type: ignore[misc]
    """A network whose last convolution follows the global pooling, so that it processes only one pixel.

    See figure 5 of MobileNetV3 (Howard et al. 2019, https://arxiv.org/abs/1905.02244).
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        factors=_dropout_factors,
    )

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
        """Adds the layers that `classify` calls.

        Args:
            channels: Number of channels of the feature map to classify.
            class_num: Number of classes.
            act: Activation after the last convolution.
            dropout_prob: Dropout rate after the last convolution.
            data_format: Layout of the feature map.
            bias: Whether the last convolution has a bias.
            last_conv: Whether there is a last convolution. If False, the pooled feature map is classified.
        """
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._late = last_conv
        if not last_conv:
            self.fc = nn.Linear(channels, class_num)
            return
        bias_attr = None if bias else False
        self.last_conv = nn.Conv2D(channels, _FEATURES, 1, bias_attr=bias_attr, data_format=data_format)
        self._last_act = act
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self.dropout = nn.Dropout(dropout_prob, mode="downscale_in_infer")
        self.fc = nn.Linear(_FEATURES, class_num)

    def classify(self, x: Tensor) -> Tensor:
        """Maps a feature map [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.avg_pool(x)
        if self._late:
            x = self.dropout(self._last_act(self.last_conv(x)))
        return self.fc(x.flatten(1))
