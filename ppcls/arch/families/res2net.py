"""Res2Net (Gao et al. 2019, https://arxiv.org/abs/1904.01169), parameter for parameter as in PaddleClas.

``26w_4s``: the middle of a bottleneck is 4 convolutions of 26 channels in the first stage, each on a share
of the channels and on what the one before made. A block that halves the size has no such chain.
The "vd" networks (He et al. 2018, https://arxiv.org/abs/1812.01187) begin with three 3x3 convolutions, and
their shortcuts average before they project.

Parameters, in millions: Res2Net50_26w_4s 25.7, Res2Net50_14w_8s 25.1, Res2Net50_vd_26w_4s 25.7,
Res2Net101_vd_26w_4s 45.2, Res2Net200_vd_26w_4s 76.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm
from ppcls.arch.layers.residual import RESNET_WIDTHS, NumberedResNet, ResidualBlock, ResidualStyle

_LETTERS = (
    12  # blocks of a stage that go by letters in checkpoints; of longer stages all but the first are numbered
)


@dataclass(frozen=True)
class Res2NetStyle(ResidualStyle):
    """What the blocks of one Res2Net have in common.

    Attributes:
        scales: Shares of the channels.
        share: Channels of each in the first stage.
    """

    conv: type[UnderscoredConvNorm] = UnderscoredConvNorm
    scales: int = 4
    share: int = 26


class Res2NetBlock(ResidualBlock):
    """A bottleneck whose middle sees the image at several scales (figure 2b)."""

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
        self.last_pool = nn.AvgPool2D(3, stride, 1, data_format=data_format) if stride > 1 else nn.Identity()
        self.conv2 = style.conv(middle, self.out_channels(width, style), 1, data_format=data_format)
        self._chained = stride == 1
        self._channels = 1 if data_format == "NCHW" else 3

    @staticmethod
    def out_channels(width: int, style: ResidualStyle) -> int:
        """See `ResidualBlock.out_channels`."""
        return width * style.expansion

    def name_filters(self, block: str) -> None:
        """Registers the middle's convolutions under the names that they have in a block called ``block``."""
        for number, conv in enumerate(self._filters, 1):
            self.add_sublayer(f"{block}_branch2b_{number}", conv)

    def forward(self, x: Tensor) -> Tensor:
        """See `ResidualBlock.forward`."""
        shares = paddle.split(self.conv0(x), len(self._filters) + 1, axis=self._channels)
        made: list[Tensor] = []
        for i, conv in enumerate(self._filters):
            chained = self._chained and i > 0
            made.append(conv(shares[i] + made[-1] if chained else shares[i]))
        made.append(self.last_pool(shares[-1]))
        return self._join(self.conv2, paddle.concat(made, axis=self._channels), x)


class Res2Net(NumberedResNet):
    """A Res2Net.

    Args:
        depths: Blocks in each of the four stages.
        share: See `Res2NetStyle`.
        scales: See `Res2NetStyle`.
        vd: Whether it is one of the "vd" networks.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
    """

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
    ) -> None:
        super().__init__(
            Res2NetBlock,
            depths,
            Res2NetStyle(pooled_shortcut=vd, scales=scales, share=share),
            (32, 32, 64) if vd else (64,),
            class_num=class_num,
            data_format=data_format,
            input_image_channel=input_image_channel,
        )
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
