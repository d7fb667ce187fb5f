"""StarNet (Ma et al. 2024, https://arxiv.org/abs/2403.19967), whose blocks multiply two projections."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm
from ppcls.arch.layers.drop_path import DropPath, drop_paths, dropout
from ppcls.arch.public.names import PublicNames

_STEM = 32
_RATIO = 4


def _conv(
    in_channels: int,
    out: int,
    kernel: int,
    data_format: DataFormat,
    stride: int = 1,
    groups: int = 1,
    norm: bool = True,
) -> nn.Sequential:
    """Returns a convolution with bias, followed by batch norm if ``norm`` is True."""
    padding = kernel // 2
    conv = nn.Conv2D(
        in_channels, out, kernel, stride, padding=padding, groups=groups, data_format=data_format
    )
    return nn.Sequential(("conv", conv), *([("bn", batch_norm(out, data_format))] if norm else []))


class StarBlock(nn.Layer):  # type: ignore[misc]
    """Multiplies two projections of the output of a depthwise convolution. The block has a shortcut."""

    def __init__(self, channels: int, drop_path: float, data_format: DataFormat) -> None:
        super().__init__()
        hidden = _RATIO * channels
        conv = partial(_conv, data_format=data_format)
        self.dwconv = conv(channels, channels, 7, groups=channels)
        self.f1 = conv(channels, hidden, 1, norm=False)
        self.f2 = conv(channels, hidden, 1, norm=False)
        self.g = conv(hidden, channels, 1)
        self.dwconv2 = conv(channels, channels, 7, groups=channels, norm=False)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        y = self.dwconv(x)
        y = F.relu6(self.f1(y)) * self.f2(y)
        return x + self.drop_path(self.dwconv2(self.g(y)))


class StarNet(nn.Layer):  # type: ignore[misc]
    """The StarNet network.

    Args:
        width: Number of channels of the first stage. Each further stage doubles the number.
        depths: Number of blocks per stage.
        drop_rate: Dropout rate before the classifier.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={},
    )

    def __init__(
        self,
        width: int,
        depths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(input_image_channel, _STEM, 3, data_format, 2), nn.ReLU6())
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        channels = _STEM
        self.stages = nn.LayerList()
        for i, depth in enumerate(depths):
            down = _conv(channels, width << i, 3, data_format, 2)
            channels = width << i
            blocks = [StarBlock(channels, next(rates), data_format) for _ in range(depth)]
            self.stages.append(nn.Sequential(down, *blocks))
        self.norm = batch_norm(channels, data_format)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.drop = dropout(drop_rate)
        self.head = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.drop(self.avgpool(self.norm(x)).flatten(1)))


StarNet_S1 = partial(StarNet, 24, (2, 2, 8, 3))
StarNet_S2 = partial(StarNet, 32, (1, 2, 6, 2))
StarNet_S3 = partial(StarNet, 32, (2, 2, 8, 4))
StarNet_S4 = partial(StarNet, 32, (3, 3, 12, 5))
