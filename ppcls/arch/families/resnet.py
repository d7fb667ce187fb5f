"""ResNet (https://arxiv.org/abs/1512.03385), ResNeXt (1611.05431) and SE-ResNet (1709.01507).

As in PaddleClas, two details differ from the paper. The 3x3 convolution of a bottleneck has the stride
("v1.5"). The shortcut of the first block of every stage has a convolution even if input and output have the
same shape. The "vd" networks (He et al. 2018, https://arxiv.org/abs/1812.01187) start with three 3x3
convolutions and use average pooling in shortcuts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, uniform_linear
from ppcls.arch.layers.residual import (
    FIRST_SHORTCUT,
    RESNET_WIDTHS,
    BasicBlock,
    BottleneckBlock,
    NumberedResNet,
    ResidualBlock,
    ResidualStyle,
    Stride,
    make_blocks,
    make_stem,
    shortcut_rules,
)
from ppcls.arch.public.names import PublicNames

_WIDTHS = {32: (128, 256, 512, 1024), 64: (256, 512, 1024, 2048)}  # for each number of groups, per stage
_EXPANSION = {1: 4, 32: 2, 64: 1}  # for each number of groups; the first stage always outputs 256 channels


def _numbered(
    kind: type[ResidualBlock],
    depths: tuple[int, int, int, int],
    groups: int = 1,
    *,
    stem: tuple[int, ...] = (64,),
    vd: bool = False,
    se: bool = False,
) -> Callable[..., nn.Layer]:
    """Returns the constructor of a network without options.

    Args:
        kind: Class of the blocks.
        depths: Number of blocks per stage.
        groups: Number of groups of the middle convolution in a bottleneck.
        stem: Number of channels of the first convolutions.
        vd: Whether to build a "vd" network.
        se: Whether blocks use squeeze-and-excitation.
    """
    style = ResidualStyle(UnderscoredConvNorm, groups, _EXPANSION[groups], vd, se)
    return partial(NumberedResNet, kind, depths, style, stem, _WIDTHS.get(groups, RESNET_WIDTHS))


class BasicSEResNet(NumberedResNet):
    """An SE-ResNet with basic blocks.

    Args:
        depths: Number of blocks per stage.
        vd: Whether to build a "vd" network.
        timm_variant: Whether to build timm's variant, in which squeeze-and-excitation has another width and
            the shortcut of the network's first block has no convolution.
    """

    public_names: ClassVar[PublicNames] = replace(
        NumberedResNet.public_names,
        variant="PaddleClas's SE-ResNet has other squeezed widths and a convolution in its first shortcut",
    )

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        vd: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        style = ResidualStyle(
            UnderscoredConvNorm,
            pooled_shortcut=vd,
            excited=True,
            squeeze_divisor=8 if timm_variant else 1,
            first_projected=not timm_variant,
        )
        super().__init__(
            BasicBlock,
            depths,
            style,
            _VD if vd else (64,),
            class_num=class_num,
            data_format=data_format,
            input_image_channel=input_image_channel,
        )
        self.timm_variant = timm_variant


# number of channels of the first three convolutions
_VD = (32, 32, 64)
_SENET = (64, 64, 128)

ResNet50_vc = _numbered(BottleneckBlock, (3, 4, 6, 3), stem=_VD)

ResNeXt50_32x4d = _numbered(BottleneckBlock, (3, 4, 6, 3), 32)
ResNeXt50_64x4d = _numbered(BottleneckBlock, (3, 4, 6, 3), 64)
ResNeXt101_32x4d = _numbered(BottleneckBlock, (3, 4, 23, 3), 32)
ResNeXt101_64x4d = _numbered(BottleneckBlock, (3, 4, 23, 3), 64)
ResNeXt152_32x4d = _numbered(BottleneckBlock, (3, 8, 36, 3), 32)
ResNeXt152_64x4d = _numbered(BottleneckBlock, (3, 8, 36, 3), 64)

ResNeXt50_vd_32x4d = _numbered(BottleneckBlock, (3, 4, 6, 3), 32, stem=_VD, vd=True)
ResNeXt50_vd_64x4d = _numbered(BottleneckBlock, (3, 4, 6, 3), 64, stem=_VD, vd=True)
ResNeXt101_vd_32x4d = _numbered(BottleneckBlock, (3, 4, 23, 3), 32, stem=_VD, vd=True)
ResNeXt101_vd_64x4d = _numbered(BottleneckBlock, (3, 4, 23, 3), 64, stem=_VD, vd=True)
ResNeXt152_vd_32x4d = _numbered(BottleneckBlock, (3, 8, 36, 3), 32, stem=_VD, vd=True)
ResNeXt152_vd_64x4d = _numbered(BottleneckBlock, (3, 8, 36, 3), 64, stem=_VD, vd=True)

SE_ResNeXt50_32x4d = _numbered(BottleneckBlock, (3, 4, 6, 3), 32, se=True)
SE_ResNeXt101_32x4d = _numbered(BottleneckBlock, (3, 4, 23, 3), 32, se=True)
SE_ResNeXt50_vd_32x4d = _numbered(BottleneckBlock, (3, 4, 6, 3), 32, stem=_SENET, vd=True, se=True)
SENet154_vd = _numbered(BottleneckBlock, (3, 8, 36, 3), 64, stem=_SENET, vd=True, se=True)

SE_ResNet18 = partial(BasicSEResNet, (2, 2, 2, 2))
SE_ResNet34 = partial(BasicSEResNet, (3, 4, 6, 3))
SE_ResNet50 = _numbered(BottleneckBlock, (3, 4, 6, 3), se=True)
SE_ResNet18_vd = partial(BasicSEResNet, (2, 2, 2, 2), True)
SE_ResNet34_vd = partial(BasicSEResNet, (3, 4, 6, 3), True)
SE_ResNet50_vd = _numbered(BottleneckBlock, (3, 4, 6, 3), stem=_VD, vd=True, se=True)


_SHORTCUT = "blocks.0.short.conv.weight"


def _reject_first_shortcut(model: nn.Layer, names: Collection[str], _source: str) -> str:
    missing = not any(name.startswith("layer1.0.downsample.") for name in names)
    if missing and _SHORTCUT in model.state_dict():
        return f"{FIRST_SHORTCUT}; set Arch.use_first_short_conv: False"
    return ""


def _reject_export(model: nn.Layer, _name: str) -> str:
    names = model.state_dict()
    if _SHORTCUT in names and "blocks.0.conv2.conv.weight" not in names:
        return (
            "in timm, the shortcut of the first block has no convolution; train with "
            "Arch.use_first_short_conv: False"
        )
    return ""


class ResNet(nn.Layer):  # type: ignore[misc]
    """The ResNet network.

    Args:
        kind: Class of the blocks.
        depths: Number of blocks per stage.
        vd: Whether to build a "vd" network.
        layer_type: Class of the inner convolutions of basic blocks, by its name in PaddleClas.
        last_stage_stride: Stride of the last stage; ``stride_list`` overrides it.
        stride_list: Strides of the first convolution, the max pooling and the later stages; 2 by default.
        stem_act: Activation of the first convolutions: ``relu`` or ``none``.
        use_first_short_conv: Whether the shortcut of the first block has a convolution, unlike in the paper.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv1?\.": ("conv1.", "bn1."),
            r"^conv1_3\.": ("conv1.6.", "bn1."),
            r"^conv1_(\d)\.": (r"conv1.{3*\1-3}.", r"conv1.{3*\1-2}."),
            r"^stem\.2\.": ("conv1.6.", "bn1."),
            r"^stem\.(\d)\.": (r"conv1.{3*\1}.", r"conv1.{3*\1+1}."),
            r"^bb_(\d)_(\d+)\.": r"layer{\1+1}.\2.",
            r"^blocks\.(\d+)\.": "layer{stage+1}.{block}.",
            r"^(layer.*)\.res\d\w+_branch2b_(\d)\.": (r"\1.convs.{\2-1}.", r"\1.bns.{\2-1}."),
            r"^(layer.*)\.conv(\d)\.": (r"\1.conv{\2+1}.", r"\1.bn{\2+1}."),
            r"\.scale\.squeeze\.": ".se.fc1.",
            r"\.scale\.excitation\.": ".se.fc2.",
            r"^out\.": "fc.",
        },
        starts=r"^blocks\.(0(?=\.)|\d+(?=\.short\.conv\.))",
        first_timm=shortcut_rules,
        reject_file=_reject_first_shortcut,
        reject_export=_reject_export,
    )

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
        last_stage_stride: int = 2,
        stem_act: Literal["relu", "none"] = "relu",
        stride_list: Sequence[Stride] | None = None,
    ) -> None:
        super().__init__()
        first, pooling, *strides = stride_list or (2, 2, 2, 2, last_stage_stride)
        style = ResidualStyle(
            pooled_shortcut=vd,
            diverse=layer_type == "DiverseBranchBlock",
            first_projected=use_first_short_conv,
            strides=tuple(strides),
        )
        stem = (32, 32, 64) if vd else (64,)
        act = F.relu if stem_act == "relu" else None
        convs = make_stem(style.conv, input_image_channel, stem, data_format, act, stride=first)
        self.stem = nn.Sequential(*convs)
        self.max_pool = nn.MaxPool2D(3, stride=pooling, padding=1, data_format=data_format)
        blocks = make_blocks(kind, depths, RESNET_WIDTHS, stem[-1], style, data_format)
        self.blocks = nn.Sequential(*(block for _, _, block in blocks))
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.flatten = nn.Flatten()
        self.fc = uniform_linear(kind.out_channels(RESNET_WIDTHS[-1], style), class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
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
