"""HRNet (Wang et al. 2019, https://arxiv.org/abs/1908.07919). It processes several resolutions in parallel.

Images may have any size. PaddleClas's networks accept only multiples of 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, uniform_linear
from ppcls.arch.public.names import PublicNames

_DEPTH = 4  # number of blocks of each resolution in a module
_HEAD = (32, 64, 128, 256)  # number of inner channels of the head's blocks; they output four times as many


class HighResolutionBlock(nn.Layer):  # type: ignore[misc]
    """A residual block of two 3x3 convolutions, or a bottleneck that multiplies its width by 4.

    Args:
        width: Number of inner channels.
        bottleneck: Whether the block is a bottleneck.
        project: Whether the shortcut is a 1x1 convolution. If False, it is the identity.
    """

    def __init__(
        self, in_channels: int, width: int, bottleneck: bool, project: bool, data_format: DataFormat
    ) -> None:
        super().__init__()
        conv = partial(ConvNorm, data_format=data_format)
        kernels, out = ((1, 3, 1), 4 * width) if bottleneck else ((3, 3), width)
        channels = [in_channels, *[width] * (len(kernels) - 1), out]
        self._names = [f"conv{i}" for i in range(1, len(kernels) + 1)]  # names in checkpoints
        for i, kernel in enumerate(kernels):
            act = F.relu if i < len(kernels) - 1 else None
            self.add_sublayer(self._names[i], conv(channels[i], channels[i + 1], kernel, act=act))
        self.conv_down = conv(in_channels, out, 1) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        y = x
        for name in self._names[:-1]:
            y = getattr(self, name)(y)
        return getattr(self, self._names[-1]).add_relu(y, self.conv_down(x))


class ResolutionFusion(nn.Layer):  # type: ignore[misc]
    """Adds the features of all resolutions to each resolution, after strided convolutions or upsampling."""

    def __init__(self, widths: Sequence[int], data_format: DataFormat) -> None:
        super().__init__()
        conv = partial(ConvNorm, data_format=data_format)
        self.residual_func_list = nn.LayerList()
        for to, out in enumerate(widths):
            for source, width in enumerate(widths):
                if source > to:
                    self.residual_func_list.append(conv(width, out, 1))
                for _ in range(to - source - 1):
                    self.residual_func_list.append(conv(width, width, 3, 2, act=F.relu))
                if source < to:
                    self.residual_func_list.append(conv(width, out, 3, 2))
        self._spatial = slice(2, 4) if data_format == "NCHW" else slice(1, 3)
        self._resize = partial(F.interpolate, mode="nearest", data_format=data_format)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Maps features of decreasing resolution to the same shapes."""
        layers = iter(self.residual_func_list)
        fused = []
        for to, total in enumerate(features):
            for source, feature in enumerate(features):
                if source > to:
                    total = total + self._resize(next(layers)(feature), size=total.shape[self._spatial])
                elif source < to:
                    for _ in range(to - source):
                        feature = next(layers)(feature)
                    total = total + feature
            fused.append(F.relu(total))
        return fused


class ResolutionModule(nn.Layer):  # type: ignore[misc]
    """Blocks for each resolution, followed by a `ResolutionFusion`."""

    def __init__(self, widths: Sequence[int], data_format: DataFormat) -> None:
        super().__init__()
        self.basic_block_list = nn.LayerList()
        for width in widths:
            blocks = [HighResolutionBlock(width, width, False, False, data_format) for _ in range(_DEPTH)]
            self.basic_block_list.append(nn.Sequential(*blocks))
        self.fuse_func = ResolutionFusion(widths, data_format)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Maps features of decreasing resolution to the same shapes."""
        features = [blocks(features[i]) for i, blocks in enumerate(self.basic_block_list)]
        fused: list[Tensor] = self.fuse_func(features)
        return fused


def _head_biases(names: Mapping[str, str]) -> dict[str, str]:
    return {
        theirs.replace(".1._mean", ".0.bias"): name
        for theirs, name in names.items()
        if name.endswith("._mean") and name.startswith(("cls_head_conv_list.", "conv_last."))
    }


class HRNet(nn.Layer):  # type: ignore[misc]
    """The HRNet network, with ``width`` channels for the highest resolution."""

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv_layer1_(\d)\.": (r"conv\1.", r"bn\1."),
            r"^conv_tr1_1\.": "transition1.0.",
            r"^conv_tr1_2\.": "transition1.1.0.",
            r"^conv_tr(\d)\.": r"transition\1.\1.0.",
            r"^st(\d)\.stage_func_list\.(\d)\.": r"stage\1.\2.",
            r"^(stage2\.\d)\.fuse_func\.residual_func_list\.(\d+)\.": r"\1.fuse_layers.{\2:0.1 1.0.0}.",
            r"^(stage3\.\d)\.fuse_func\.residual_func_list\.(\d+)\.": (
                r"\1.fuse_layers.{\2:0.1 0.2 1.0.0 1.2 2.0.0 2.0.1 2.1.0}."
            ),
            r"^(stage4\.\d)\.fuse_func\.residual_func_list\.(\d+)\.": (
                r"\1.fuse_layers.{\2:0.1 0.2 0.3 1.0.0 1.2 1.3 2.0.0 2.0.1 2.1.0 2.3 3.0.0 3.0.1 "
                r"3.0.2 3.1.0 3.1.1 3.2.0}."
            ),
            r"\.basic_block_list\.": ".branches.",
            r"^last_cls\.func_list\.(\d)\.": r"incre_modules.\1.0.",
            r"^cls_head_conv_list\.": "downsamp_modules.",
            r"^conv_last\.": "final_layer.",
            r"\.conv_down\.": ".downsample.",
            r"\.conv(\d)\.": (r".conv\1.", r".bn\1."),
            r"\.": (".0.", ".1."),
            r"^fc\.": "classifier.",
        },
        biases=_head_biases,
    )

    def __init__(
        self,
        width: int,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = partial(ConvNorm, act=F.relu, data_format=data_format)
        widths = [width << i for i in range(4)]
        self.conv_layer1_1 = conv(input_image_channel, 64, 3, 2)
        self.conv_layer1_2 = conv(64, 64, 3, 2)
        block = partial(HighResolutionBlock, bottleneck=True, data_format=data_format)
        self.layer1 = nn.Sequential(*(block(256 if i else 64, 64, project=i == 0) for i in range(_DEPTH)))
        self.conv_tr1_1 = conv(256, widths[0], 3)
        self.conv_tr1_2 = conv(256, widths[1], 3, 2)
        self.conv_tr2, self.conv_tr3 = (conv(widths[i], widths[i + 1], 3, 2) for i in (1, 2))
        for number, depth in ((2, 1), (3, 4), (4, 3)):
            modules = [ResolutionModule(widths[:number], data_format) for _ in range(depth)]
            self.add_sublayer(f"st{number}", nn.LayerDict({"stage_func_list": nn.LayerList(modules)}))
        head = [block(width, inner, project=True) for width, inner in zip(widths, _HEAD, strict=True)]
        self.last_cls = nn.LayerDict({"func_list": nn.LayerList(head)})
        self.cls_head_conv_list = nn.LayerList([conv(4 * inner, 8 * inner, 3, 2) for inner in _HEAD[:-1]])
        self.conv_last = conv(4 * _HEAD[-1], 2048, 1)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = uniform_linear(2048, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.layer1(self.conv_layer1_2(self.conv_layer1_1(x)))
        features = [self.conv_tr1_1(x), self.conv_tr1_2(x)]
        for stage, conv in ((self.st2, self.conv_tr2), (self.st3, self.conv_tr3), (self.st4, None)):
            for module in stage["stage_func_list"]:
                features = module(features)
            features += [] if conv is None else [conv(features[-1])]
        features = [block(features[i]) for i, block in enumerate(self.last_cls["func_list"])]
        total = features[0]
        for i, conv in enumerate(self.cls_head_conv_list):
            total = features[i + 1] + conv(total)
        return self.fc(self.avg_pool(self.conv_last(total)).flatten(1))


HRNet_W18_C = partial(HRNet, 18)
HRNet_W30_C = partial(HRNet, 30)
HRNet_W32_C = partial(HRNet, 32)
HRNet_W40_C = partial(HRNet, 40)
HRNet_W44_C = partial(HRNet, 44)
HRNet_W48_C = partial(HRNet, 48)
HRNet_W64_C = partial(HRNet, 64)
