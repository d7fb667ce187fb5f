"""ResNet (He et al. 2015, https://arxiv.org/abs/1512.03385), parameter for parameter as in PaddleClas.

Two things differ from the paper: the stride of a bottleneck sits on its 3x3 convolution ("v1.5", or
"vb"), and the first block of every stage projects its shortcut, also where the shapes already agree.
The "vd" networks (He et al. 2018, https://arxiv.org/abs/1812.01187) begin with three 3x3 convolutions, and
their shortcuts average before they project.

Parameters, in millions: ResNet18 11.7, ResNet34 21.8, ResNet50 25.6, ResNet101 44.5, ResNet152 60.2;
ResNet18_vd 11.7, ResNet34_vd 21.8, ResNet50_vd 25.6, ResNet101_vd 44.6, ResNet152_vd 60.2, ResNet200_vd 74.7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, uniform_linear
from ppcls.arch.layers.residual import (
    RESNET_WIDTHS,
    BasicBlock,
    BottleneckBlock,
    NumberedResNet,
    ResidualBlock,
    ResidualStyle,
    make_blocks,
    make_stem,
)

WIDTHS = {32: (128, 256, 512, 1024), 64: (256, 512, 1024, 2048)}  # of the four stages, for groups of 4


def resnext_style(groups: int, *, vd: bool = False, excited: bool = False) -> ResidualStyle:
    """Returns the style of ``groups`` groups; the output has 256 channels in the first stage with any."""
    return ResidualStyle(UnderscoredConvNorm, groups, 64 // groups, vd, excited)


def _resnext(depths: tuple[int, int, int, int], groups: int, *, vd: bool = False) -> Callable[..., nn.Layer]:
    return partial(
        NumberedResNet,
        BottleneckBlock,
        depths,
        resnext_style(groups, vd=vd),
        stem=(32, 32, 64) if vd else (64,),
        widths=WIDTHS[groups],
    )


ResNeXt50_32x4d = _resnext((3, 4, 6, 3), 32)
ResNeXt50_64x4d = _resnext((3, 4, 6, 3), 64)
ResNeXt101_32x4d = _resnext((3, 4, 23, 3), 32)
ResNeXt101_64x4d = _resnext((3, 4, 23, 3), 64)
ResNeXt152_32x4d = _resnext((3, 8, 36, 3), 32)
ResNeXt152_64x4d = _resnext((3, 8, 36, 3), 64)

ResNeXt50_vd_32x4d = _resnext((3, 4, 6, 3), 32, vd=True)
ResNeXt50_vd_64x4d = _resnext((3, 4, 6, 3), 64, vd=True)
ResNeXt101_vd_32x4d = _resnext((3, 4, 23, 3), 32, vd=True)
ResNeXt101_vd_64x4d = _resnext((3, 4, 23, 3), 64, vd=True)
ResNeXt152_vd_32x4d = _resnext((3, 8, 36, 3), 32, vd=True)
ResNeXt152_vd_64x4d = _resnext((3, 8, 36, 3), 64, vd=True)


ResNet50_vc = partial(NumberedResNet, BottleneckBlock, (3, 4, 6, 3), stem=(32, 32, 64))


def _se_resnext(
    depths: tuple[int, int, int, int], groups: int = 32, *, vd: bool = False
) -> Callable[..., nn.Layer]:
    return partial(
        NumberedResNet,
        BottleneckBlock,
        depths,
        resnext_style(groups, vd=vd, excited=True),
        stem=(64, 64, 128) if vd else (64,),
        widths=WIDTHS[groups],
    )


SE_ResNeXt50_32x4d = _se_resnext((3, 4, 6, 3))
SE_ResNeXt101_32x4d = _se_resnext((3, 4, 23, 3))
SE_ResNeXt50_vd_32x4d = _se_resnext((3, 4, 6, 3), vd=True)
SENet154_vd = _se_resnext((3, 8, 36, 3), 64, vd=True)


def _se_resnet(
    kind: type[ResidualBlock], depths: tuple[int, int, int, int], *, vd: bool = False
) -> Callable[..., nn.Layer]:
    style = ResidualStyle(UnderscoredConvNorm, pooled_shortcut=vd, excited=True)
    return partial(NumberedResNet, kind, depths, style, stem=(32, 32, 64) if vd else (64,))


SE_ResNet18 = _se_resnet(BasicBlock, (2, 2, 2, 2))
SE_ResNet34 = _se_resnet(BasicBlock, (3, 4, 6, 3))
SE_ResNet50 = _se_resnet(BottleneckBlock, (3, 4, 6, 3))

SE_ResNet18_vd = _se_resnet(BasicBlock, (2, 2, 2, 2), vd=True)
SE_ResNet34_vd = _se_resnet(BasicBlock, (3, 4, 6, 3), vd=True)
SE_ResNet50_vd = _se_resnet(BottleneckBlock, (3, 4, 6, 3), vd=True)


class ResNet(nn.Layer):  # type: ignore[misc]
    """A residual network.

    Args:
        kind: The kind of block.
        depths: Blocks in each of the four stages.
        vd: Whether it is one of the "vd" networks.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
        layer_type: What the inner convolutions of basic blocks are: with batch norm, or of several branches.
        use_first_short_conv: Whether the first block projects its shortcut; the paper's basic one does not.
    """

    def __init__(
        self,
        kind: type[ResidualBlock],
        depths: tuple[int, int, int, int],
        vd: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        layer_type: Literal["ConvBNLayer", "DiverseBranchBlock"] = "ConvBNLayer",
        use_first_short_conv: bool = True,
    ) -> None:
        super().__init__()
        style = ResidualStyle(
            pooled_shortcut=vd,
            diverse=layer_type == "DiverseBranchBlock",
            first_projected=use_first_short_conv,
        )
        stem = (32, 32, 64) if vd else (64,)
        self.stem = nn.Sequential(*make_stem(style.conv, input_image_channel, stem, data_format))
        self.max_pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        made = make_blocks(kind, depths, RESNET_WIDTHS, stem[-1], style, data_format)
        self.blocks = nn.Sequential(*(block for _, _, block in made))
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.flatten = nn.Flatten()
        self.fc = uniform_linear(kind.out_channels(RESNET_WIDTHS[-1], style), class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        x = self.blocks(self.max_pool(self.stem(x)))
        return self.fc(self.flatten(self.avg_pool(x)))


ResNet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
ResNet34 = partial(ResNet, BasicBlock, (3, 4, 6, 3))
ResNet50 = partial(ResNet, BottleneckBlock, (3, 4, 6, 3))
ResNet101 = partial(ResNet, BottleneckBlock, (3, 4, 23, 3))
ResNet152 = partial(ResNet, BottleneckBlock, (3, 8, 36, 3))

ResNet18_vd = partial(ResNet, BasicBlock, (2, 2, 2, 2), True)
ResNet34_vd = partial(ResNet, BasicBlock, (3, 4, 6, 3), True)
ResNet50_vd = partial(ResNet, BottleneckBlock, (3, 4, 6, 3), True)
ResNet101_vd = partial(ResNet, BottleneckBlock, (3, 4, 23, 3), True)
ResNet152_vd = partial(ResNet, BottleneckBlock, (3, 8, 36, 3), True)
ResNet200_vd = partial(ResNet, BottleneckBlock, (3, 12, 48, 3), True)
