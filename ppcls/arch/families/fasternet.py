"""FasterNet (Chen et al. 2023, https://arxiv.org/abs/2303.03667)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm
from ppcls.arch.layers.drop_path import DropPath, drop_paths
from ppcls.arch.layers.transformer import linear, normal
from ppcls.arch.public.names import PublicNames

_FEATURES = 1280
_PART = 4  # a partial convolution changes 1 / 4 of the channels


def _conv(in_channels: int, out_channels: int, kernel: int, data_format: DataFormat) -> nn.Conv2D:
    """Returns a convolution whose stride equals its kernel, so that windows do not overlap."""
    return nn.Conv2D(
        in_channels,
        out_channels,
        kernel,
        kernel,
        weight_attr=normal(),
        bias_attr=False,
        data_format=data_format,
    )


class PartialConvolution(nn.Layer):  # type: ignore[misc]
    """A 3x3 convolution of the first quarter of the channels. The other channels do not change."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        part = channels // _PART
        self.partial_conv3 = nn.Conv2D(
            part, part, 3, padding=1, weight_attr=normal(), bias_attr=False, data_format=data_format
        )
        self._parts = [part, channels - part]
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        first, others = paddle.split(x, self._parts, axis=self._axis)
        return paddle.concat([self.partial_conv3(first), others], axis=self._axis)


class PartialBlock(nn.Layer):  # type: ignore[misc]
    """A partial convolution and two 1x1 convolutions, with a shortcut."""

    def __init__(self, channels: int, act: type[nn.Layer], drop_path: float, data_format: DataFormat) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            _conv(channels, 2 * channels, 1, data_format),
            batch_norm(2 * channels, data_format),
            act(),
            _conv(2 * channels, channels, 1, data_format),
        )
        self.spatial_mixing = PartialConvolution(channels, data_format)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x + self.drop_path(self.mlp(self.spatial_mixing(x)))


class NormalizedReduction(nn.Layer):  # type: ignore[misc]
    """A convolution without overlapping windows, followed by batch norm.

    Args:
        name: Name of the convolution in checkpoints.
        momentum: Weight of the old value in updates of batch norm's running statistics.
    """

    def __init__(
        self,
        name: str,
        in_channels: int,
        out_channels: int,
        kernel: int,
        momentum: float,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self._name = name
        self.add_sublayer(name, _conv(in_channels, out_channels, kernel, data_format))
        self.norm = batch_norm(out_channels, data_format, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/kernel, W/kernel]."""
        return self.norm(getattr(self, self._name)(x))


class FasterNet(nn.Layer):  # type: ignore[misc]
    """The FasterNet network.

    Args:
        width: Number of channels of the first stage. Each further stage doubles the number.
        depths: Number of blocks per stage.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
        act: Activation.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^stages\.(\d)\.blocks\.": r"stages.{\1:0 0 1 1 2 2 3 3}.blocks.",
            r"^stages\.(\d)\.(reduction|norm)\.": r"stages.{\1:0 1 1 2 2 3 3 4}.downsample.\2.",
            r"^avgpool_pre_head\.1\.": "conv_head.",
            r"^head\.": "classifier.",
        },
    )

    def __init__(
        self,
        width: int,
        depths: tuple[int, int, int, int],
        drop_path_rate: float,
        act: type[nn.Layer] = nn.ReLU,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        # PaddleClas's momentum is 0.1, PyTorch's way of writing 0.9, so that the running statistics are
        # almost those of the last batch.
        self.patch_embed = NormalizedReduction("proj", input_image_channel, width, 4, 0.1, data_format)
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        stages = []
        for i, depth in enumerate(depths):
            if i:
                stages.append(NormalizedReduction("reduction", width, 2 * width, 2, 0.9, data_format))
                width *= 2
            blocks = [PartialBlock(width, act, next(rates), data_format) for _ in range(depth)]
            stages.append(nn.Sequential(("blocks", nn.Sequential(*blocks))))
        self.stages = nn.Sequential(*stages)
        self.avgpool_pre_head = nn.Sequential(
            nn.AdaptiveAvgPool2D(1, data_format=data_format), _conv(width, _FEATURES, 1, data_format), act()
        )
        self.head = linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.head(self.avgpool_pre_head(self.stages(self.patch_embed(x))).flatten(1))


_SHALLOW = (1, 2, 8, 2)
_DEEP = (3, 4, 18, 3)
FasterNet_T0 = partial(FasterNet, 40, _SHALLOW, 0.0, nn.GELU)
FasterNet_T1 = partial(FasterNet, 64, _SHALLOW, 0.02, nn.GELU)
FasterNet_T2 = partial(FasterNet, 96, _SHALLOW, 0.05)
FasterNet_S = partial(FasterNet, 128, (1, 2, 13, 2), 0.1)
FasterNet_M = partial(FasterNet, 144, _DEEP, 0.2)
FasterNet_L = partial(FasterNet, 192, _DEEP, 0.3)
