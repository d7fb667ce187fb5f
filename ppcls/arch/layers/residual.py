"""Residual blocks, and the structure that networks derived from ResNet share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat, UnderscoredConvNorm, uniform_linear
from ppcls.arch.layers.diverse_branch import DiverseBranchBlock
from ppcls.arch.layers.squeeze_excitation import LinearSqueezeExcitation
from ppcls.arch.public.names import PublicNames, Rule, conv_norm_rules

RESNET_WIDTHS = (64, 128, 256, 512)
Stride: TypeAlias = int | tuple[int, int]  # one number for both axes, or (vertical, horizontal)


@dataclass(frozen=True)
class ResidualStyle:
    """The properties that all blocks of a network share.

    Attributes:
        conv: Subclass of `ConvNorm`, which defines the names of the parameters.
        groups: Number of groups in the middle convolution of a bottleneck (ResNeXt's cardinality).
        expansion: Number of output channels of a bottleneck, divided by its width.
        pooled_shortcut: Whether a shortcut that halves the size averages 2x2 pixels before its convolution
            ("vd", figure 2c of He et al. 2018, https://arxiv.org/abs/1812.01187). If False, the convolution
            skips pixels.
        excited: Whether the residual ends with squeeze-and-excitation.
        squeeze_divisor: Number to a multiple of which the width in squeeze-and-excitation is rounded.
        diverse: Whether the convolutions of a `BasicBlock` are instances of `DiverseBranchBlock`.
        first_projected: Whether the shortcut of the network's first block is a convolution.
        strides: Stride of each stage except the first: a number, or (vertical, horizontal).
    """

    conv: type[ConvNorm] = ConvNorm
    groups: int = 1
    expansion: int = 4
    pooled_shortcut: bool = False
    excited: bool = False
    squeeze_divisor: int = 1
    diverse: bool = False
    first_projected: bool = True
    strides: tuple[Stride, ...] = (2, 2, 2)


class ResidualBlock(nn.Layer):  # type: ignore[misc]
    """Base class of residual blocks, which return ``relu(residual(x) + shortcut(x))``.

    Args:
        width: Number of channels of the inner convolutions.
        project: Whether the shortcut is a 1x1 convolution. If False, it is the identity.
        style: Properties that all blocks of the network share.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: Stride,
        project: bool,
        style: ResidualStyle,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        channels = self.out_channels(width, style)
        pooled = project and style.pooled_shortcut and stride != 1
        self.pool = _average_pool(stride, data_format) if pooled else nn.Identity()
        self.short = (
            style.conv(in_channels, channels, 1, 1 if pooled else stride, data_format=data_format)
            if project
            else nn.Identity()
        )
        self._excited = style.excited
        if style.excited:
            divisor = style.squeeze_divisor
            self.scale = LinearSqueezeExcitation(channels, data_format=data_format, divisor=divisor)

    @staticmethod
    def out_channels(width: int, style: ResidualStyle) -> int:
        """Returns the number of output channels."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        raise NotImplementedError

    def _join(self, last: ConvNorm | DiverseBranchBlock, inner: Tensor, x: Tensor) -> Tensor:
        """Applies the ``last`` convolution to ``inner``, adds the shortcut of ``x``, and applies ReLU."""
        shortcut = self.short(self.pool(x))
        if self._excited:
            return F.relu(self.scale(last(inner)) + shortcut)
        return last.add_relu(inner, shortcut)


class BasicBlock(ResidualBlock):
    """A residual block of two 3x3 convolutions (He et al. 2015, figure 5, left)."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: Stride,
        project: bool,
        style: ResidualStyle,
        data_format: DataFormat,
    ) -> None:
        super().__init__(in_channels, width, stride, project, style, data_format)
        conv = DiverseBranchBlock if style.diverse else style.conv
        self.conv0 = conv(in_channels, width, 3, stride, act=F.relu, data_format=data_format)
        self.conv1 = conv(width, width, 3, data_format=data_format)

    @staticmethod
    def out_channels(width: int, style: ResidualStyle) -> int:  # noqa: ARG004 (one signature for both blocks)
        """Returns the number of output channels."""
        return width

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        inner, x = _fork(self.conv0, x)
        return self._join(self.conv1, inner, x)


class BottleneckBlock(ResidualBlock):
    """A residual block of 1x1, 3x3 and 1x1 convolutions (He et al. 2015, figure 5, right).

    The 3x3 convolution has the stride.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: Stride,
        project: bool,
        style: ResidualStyle,
        data_format: DataFormat,
    ) -> None:
        super().__init__(in_channels, width, stride, project, style, data_format)
        self.conv0 = style.conv(in_channels, width, 1, act=F.relu, data_format=data_format)
        self.conv1 = style.conv(width, width, 3, stride, style.groups, F.relu, data_format)
        self.conv2 = style.conv(width, self.out_channels(width, style), 1, data_format=data_format)

    @staticmethod
    def out_channels(width: int, style: ResidualStyle) -> int:
        """Returns the number of output channels."""
        return width * style.expansion

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        inner, x = _fork(self.conv0, x)
        return self._join(self.conv2, self.conv1(inner), x)


def _fork(conv: ConvNorm | DiverseBranchBlock, x: Tensor) -> tuple[Tensor, Tensor]:
    return conv.fork(x) if isinstance(conv, ConvNorm) else (conv(x), x)


def _average_pool(stride: Stride, data_format: DataFormat) -> nn.AvgPool2D:
    """Returns the average pooling of 2x2 pixels in a shortcut. Windows at the border may be smaller."""
    if stride == 2:
        return nn.AvgPool2D(2, 2, ceil_mode=True, data_format=data_format)
    return nn.AvgPool2D(2, stride, "SAME", data_format=data_format)


def make_blocks(
    kind: type[ResidualBlock],
    depths: Sequence[int],
    widths: Sequence[int],
    channels: int,
    style: ResidualStyle,
    data_format: DataFormat,
) -> Iterator[tuple[int, int, ResidualBlock]]:
    """Yields each block with its stage and its position in the stage, as (stage, position, block).

    Each stage except the first usually halves the size.
    """
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for i in range(depth):
            stride = style.strides[stage - 1] if stage > 0 and i == 0 else 1
            project = i == 0 and (stage > 0 or style.first_projected)
            yield stage, i, kind(channels, width, stride, project, style, data_format)
            channels = kind.out_channels(width, style)


def make_stem(
    conv: type[ConvNorm],
    in_channels: int,
    widths: Sequence[int],
    data_format: DataFormat,
    act: Activation | None = F.relu,
    *,
    stride: Stride = 2,
) -> list[ConvNorm]:
    """Returns the first convolutions, which usually halve the size.

    For one width, this is a 7x7 convolution; for several widths, one 3x3 convolution per width.
    """
    kernel = 7 if len(widths) == 1 else 3
    inputs = (in_channels, *widths)
    return [
        conv(inputs[i], width, kernel, 1 if i else stride, act=act, data_format=data_format)
        for i, width in enumerate(widths)
    ]


def shortcut_rules(model: nn.Layer) -> list[Rule]:
    """Returns the rules of the stem and of the shortcuts, which timm numbers after their pooling."""
    shortcuts = (layer for name, layer in model.named_sublayers() if name.endswith(".pool"))
    pooled = int(any(isinstance(layer, nn.AvgPool2D) for layer in shortcuts))  # "vd" variants, "d" in timm
    rules = conv_norm_rules(r"\.short\.", f".downsample.{pooled}.", f".downsample.{pooled + 1}.")
    single = "stem.1.conv.weight" not in model.state_dict()
    return [*(conv_norm_rules(r"^stem\.0\.", "conv1.", "bn1.") if single else ()), *rules]


FIRST_SHORTCUT = "the shortcut of the first block has no convolution in the file, but has one in the model"


def _reject_first_shortcut(model: nn.Layer, names: Collection[str], _source: str) -> str:
    missing = not any(name.startswith("layer1.0.downsample.") for name in names)
    return FIRST_SHORTCUT if missing and "bb_0_0.short._conv.weight" in model.state_dict() else ""


class NumberedResNet(nn.Layer):  # type: ignore[misc]
    """A network with the structure of ResNet. In checkpoints, its blocks have names such as ``bb_0_2``.

    Args:
        kind: Class of the blocks.
        depths: Number of blocks per stage.
        style: Properties of the blocks.
        stem: Widths of the first convolutions: one width for a 7x7 convolution, or three widths for 3x3
            convolutions.
        widths: Width of the blocks per stage.
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
    )

    stem_name: ClassVar[str] = "conv"  # name of a single first convolution in checkpoints

    def __init__(
        self,
        kind: type[ResidualBlock],
        depths: tuple[int, int, int, int],
        style: ResidualStyle | None = None,
        stem: tuple[int, ...] = (64,),
        widths: tuple[int, int, int, int] = RESNET_WIDTHS,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        style = style or ResidualStyle(UnderscoredConvNorm)
        names = [self.stem_name] if len(stem) == 1 else [f"conv1_{i + 1}" for i in range(len(stem))]
        convs = make_stem(style.conv, input_image_channel, stem, data_format)
        self._stem = [self.add_sublayer(name, conv) for name, conv in zip(names, convs, strict=True)]
        self.max_pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        self._blocks = []
        for stage, i, block in make_blocks(kind, depths, widths, stem[-1], style, data_format):
            self._blocks.append(self.add_sublayer(f"bb_{stage}_{i}", block))
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.out = uniform_linear(kind.out_channels(widths[-1], style), class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for conv in self._stem:
            x = conv(x)
        x = self.max_pool(x)
        for block in self._blocks:
            x = block(x)
        return self.out(self.avg_pool(x).flatten(1))
