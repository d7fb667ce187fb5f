"""Res2Net (Gao et al. 2019, https://arxiv.org/abs/1904.01169).

In a network named ``26w_4s``, the middle of a bottleneck splits the channels into 4 groups, which have 26
channels in the first stage. The output of the previous group is added to each group before its convolution,
except in blocks that halve the size. The "vd" networks (He et al. 2018, https://arxiv.org/abs/1812.01187)
start with three 3x3 convolutions and use average pooling in shortcuts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm
from ppcls.arch.layers.residual import RESNET_WIDTHS, NumberedResNet, ResidualBlock, ResidualStyle
from ppcls.arch.public.names import PublicNames

# In checkpoints, letters name the blocks of stages with up to 12 blocks. In longer stages, a letter names
# only the first block.
_LETTERS = 12


@dataclass(frozen=True)
class Res2NetStyle(ResidualStyle):
    """The properties that all blocks of a Res2Net share.

    Attributes:
        scales: Number of groups of channels.
        share: Number of channels per group in the first stage.
        timm_variant: Argument of `Res2Net`.
    """

    conv: type[UnderscoredConvNorm] = UnderscoredConvNorm
    scales: int = 4
    share: int = 26
    timm_variant: bool = False


class Res2NetBlock(ResidualBlock):
    """A bottleneck whose middle convolutions have receptive fields of several sizes (figure 2b)."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        project: bool,
        style: Res2NetStyle,
        data_format: DataFormat,
    ) -> None:
        super().__init__(in_channels, width, stride, project, style, data_format)
        share = style.share * width // RESNET_WIDTHS[0]
        middle = share * style.scales
        self.conv0 = style.conv(in_channels, middle, 1, act=F.relu, data_format=data_format)
        self._filters = [
            style.conv(share, share, 3, stride, act=F.relu, data_format=data_format)
            for _ in range(style.scales - 1)
        ]
        first = stride > 1 or (style.timm_variant and project)
        self.last_pool = (
            nn.AvgPool2D(3, stride, 1, exclusive=not style.timm_variant, data_format=data_format)
            if first
            else nn.Identity()
        )
        self.conv2 = style.conv(middle, self.out_channels(width, style), 1, data_format=data_format)
        self._chained = not first
        self._channels = 1 if data_format == "NCHW" else 3

    @staticmethod
    def out_channels(width: int, style: ResidualStyle) -> int:
        """Returns the number of output channels."""
        return width * style.expansion

    def name_filters(self, block: str) -> None:
        """Registers the middle convolutions under the names that they have in the block ``block``."""
        for number, conv in enumerate(self._filters, 1):
            self.add_sublayer(f"{block}_branch2b_{number}", conv)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        shares = paddle.split(self.conv0(x), len(self._filters) + 1, axis=self._channels)
        outputs: list[Tensor] = []
        for i, conv in enumerate(self._filters):
            chained = self._chained and i > 0
            outputs.append(conv(shares[i] + outputs[-1] if chained else shares[i]))
        outputs.append(self.last_pool(shares[-1]))
        return self._join(self.conv2, paddle.concat(outputs, axis=self._channels), x)


class Res2Net(NumberedResNet):
    """The Res2Net network.

    Args:
        depths: Number of blocks per stage.
        share: Number of channels per group in the first stage.
        scales: Number of groups of channels.
        vd: Whether to build a "vd" network.
        timm_variant: Whether to build timm's variant, in which average pooling counts the padding and the
            first block of the first stage works like the first block of the other stages.
    """

    public_names: ClassVar[PublicNames] = replace(
        NumberedResNet.public_names,
        variant="PaddleClas's Res2Net does not count padding in average pooling, and has another first block",
    )

    stem_name = "conv1"

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        share: int,
        scales: int,
        vd: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__(
            Res2NetBlock,
            depths,
            Res2NetStyle(pooled_shortcut=vd, scales=scales, share=share, timm_variant=timm_variant),
            (32, 32, 64) if vd else (64,),
            class_num=class_num,
            data_format=data_format,
            input_image_channel=input_image_channel,
        )
        self.timm_variant = timm_variant
        names = [
            f"res{stage}{_letter(i, depth)}" for stage, depth in enumerate(depths, 2) for i in range(depth)
        ]
        for name, block in zip(names, self._blocks, strict=True):
            block.name_filters(name)


def _letter(block: int, depth: int) -> str:
    return f"b{block}" if block and depth > _LETTERS else chr(ord("a") + block)


Res2Net50_26w_4s = partial(Res2Net, (3, 4, 6, 3), 26, 4)
Res2Net50_14w_8s = partial(Res2Net, (3, 4, 6, 3), 14, 8)
Res2Net50_vd_26w_4s = partial(Res2Net, (3, 4, 6, 3), 26, 4, True)
Res2Net101_vd_26w_4s = partial(Res2Net, (3, 4, 23, 3), 26, 4, True)
Res2Net200_vd_26w_4s = partial(Res2Net, (3, 12, 48, 3), 26, 4, True)
