"""VAN (Guo et al. 2022, https://arxiv.org/abs/2202.09741), whose attention consists of large convolutions."""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, FanOutNormal, batch_norm
from ppcls.arch.layers.drop_path import DropPath, drop_paths, image_dropout
from ppcls.arch.layers.transformer import linear

_SCALE = 1e-2  # initial value of a learned factor per channel of a block


def _conv(data_format: DataFormat) -> partial[nn.Conv2D]:
    """Returns a constructor of convolutions with the initial weights of this network."""
    return partial(nn.Conv2D, weight_attr=FanOutNormal(depthwise=True), data_format=data_format)


class LargeKernelAttention(nn.Layer):  # type: ignore[misc]
    """Multiplies the features by the output of a 5x5, a dilated 7x7 and a 1x1 convolution of the features."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        conv = partial(_conv(data_format), channels, channels)
        # Together, these have the reach of a 21 x 21 kernel with few parameters.
        self.conv0 = conv(5, padding=2, groups=channels)
        self.conv_spatial = conv(7, padding=9, groups=channels, dilation=3)
        self.conv1 = conv(1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x * self.conv1(self.conv_spatial(self.conv0(x)))


class GatedAttention(nn.Layer):  # type: ignore[misc]
    """`LargeKernelAttention` between two 1x1 convolutions, with a shortcut."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        self.proj_1 = _conv(data_format)(channels, channels, 1)
        self.spatial_gating_unit = LargeKernelAttention(channels, data_format)
        self.proj_2 = _conv(data_format)(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x + self.proj_2(self.spatial_gating_unit(F.gelu(self.proj_1(x))))


class ConvolutionalMlp(nn.Layer):  # type: ignore[misc]
    """Two 1x1 convolutions with a depthwise convolution between them."""

    def __init__(self, channels: int, hidden: int, drop_rate: float, data_format: DataFormat) -> None:
        super().__init__()
        conv = _conv(data_format)
        self.fc1 = conv(channels, hidden, 1)
        self.dwconv = nn.Sequential(("dwconv", conv(hidden, hidden, 3, padding=1, groups=hidden)))
        self.fc2 = conv(hidden, channels, 1)
        self.drop = image_dropout(drop_rate, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return self.drop(self.fc2(self.drop(F.gelu(self.dwconv(self.fc1(x))))))


class VisualAttentionBlock(nn.Layer):  # type: ignore[misc]
    """Attention and a `ConvolutionalMlp`. Each has batch norm, a factor per channel and a shortcut."""

    def __init__(
        self, channels: int, ratio: int, drop_rate: float, drop_path: float, data_format: DataFormat
    ) -> None:
        super().__init__()
        self.norm1 = batch_norm(channels, data_format)
        self.norm2 = batch_norm(channels, data_format)
        self.attn = GatedAttention(channels, data_format)
        self.mlp = ConvolutionalMlp(channels, ratio * channels, drop_rate, data_format)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        constant = nn.initializer.Constant(_SCALE)
        for name in ("layer_scale_1", "layer_scale_2"):
            scale = self.create_parameter([channels, 1, 1], default_initializer=constant)
            self.add_parameter(name, scale)
        self._shape = [channels, 1, 1] if data_format == "NCHW" else [channels]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        first = self.layer_scale_1.reshape(self._shape)
        second = self.layer_scale_2.reshape(self._shape)
        x = x + self.drop_path(first * self.attn(self.norm1(x)))
        return x + self.drop_path(second * self.mlp(self.norm2(x)))


class VAN(nn.Layer):  # type: ignore[misc]
    """The VAN network.

    Args:
        widths: Number of channels per stage.
        depths: Number of blocks per stage.
        drop_rate: Dropout rate after each layer of `ConvolutionalMlp`.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    def __init__(
        self,
        widths: tuple[int, int, int, int],
        depths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        channels = input_image_channel
        for i, (width, depth, ratio) in enumerate(zip(widths, depths, (8, 8, 4, 4), strict=True), start=1):
            kernel, stride = (3, 2) if i > 1 else (7, 4)
            conv = _conv(data_format)(channels, width, kernel, stride, padding=kernel // 2)
            patches = nn.Sequential(("proj", conv), ("norm", batch_norm(width, data_format)))
            blocks = [
                VisualAttentionBlock(width, ratio, drop_rate, next(rates), data_format) for _ in range(depth)
            ]
            self.add_sublayer(f"patch_embed{i}", patches)
            self.add_sublayer(f"block{i}", nn.LayerList(blocks))
            self.add_sublayer(f"norm{i}", nn.LayerNorm(width, 1e-6))
            channels = width
        self.head = linear(channels, class_num)
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for i in range(1, 5):
            x = getattr(self, f"patch_embed{i}")(x)
            for block in getattr(self, f"block{i}"):
                x = block(x)
            norm = getattr(self, f"norm{i}")
            last = self._channels_last
            x = norm(x) if last else norm(x.transpose([0, 2, 3, 1])).transpose([0, 3, 1, 2])
        return self.head(x.mean([1, 2] if self._channels_last else [2, 3]))


_WIDE = (64, 128, 320, 512)
VAN_B0 = partial(VAN, (32, 64, 160, 256), (3, 3, 5, 2))
VAN_B1 = partial(VAN, _WIDE, (2, 2, 4, 2))
VAN_B2 = partial(VAN, _WIDE, (3, 3, 12, 3))
VAN_B3 = partial(VAN, _WIDE, (3, 5, 27, 3))
