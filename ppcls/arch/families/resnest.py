"""ResNeSt (Zhang et al. 2020, https://arxiv.org/abs/2004.08955), a ResNet with attention among branches.

Average pooling in shortcuts rounds sizes up, so images may have any size, unlike in PaddleClas.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, batch_norm, uniform_linear
from ppcls.arch.layers.residual import RESNET_WIDTHS
from ppcls.arch.public.names import PublicNames

_EXPANSION = 4
# reduction and minimum number of channels between the layers for the attention
_REDUCTION = 4
_LEAST = 32
_conv = partial(nn.Conv2D, weight_attr=nn.initializer.KaimingNormal())


class SplitAttention(nn.Layer):  # type: ignore[misc]
    """A 3x3 convolution with several branches, whose outputs are weighted per channel and added (figure 2).

    Args:
        channels: Number of channels of input and output.
        branches: Number of branches. The weights are a softmax over the branches; a sigmoid for one branch.
    """

    def __init__(self, channels: int, branches: int, data_format: DataFormat) -> None:
        super().__init__()
        conv = partial(UnderscoredConvNorm, act=F.relu, data_format=data_format, decay=False)
        squeezed = max(channels * branches // _REDUCTION, _LEAST)
        self.conv1 = conv(channels, channels * branches, 3, groups=branches)
        self.avg_pool2d = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.conv2 = conv(channels, squeezed, 1)
        self.conv3 = _conv(squeezed, channels * branches, 1, data_format=data_format)
        self._branches = branches
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        x = self.conv1(x)
        parts = paddle.split(x, self._branches, self._axis)
        scores = self.conv3(self.conv2(self.avg_pool2d(sum(parts[1:], parts[0]))))
        if self._branches == 1:
            return x * F.sigmoid(scores)
        weights = F.softmax(paddle.stack(paddle.split(scores, self._branches, self._axis)), axis=0)
        weighted = [part * weights[i] for i, part in enumerate(parts)]
        return sum(weighted[1:], weighted[0])


class SplitAttentionBlock(nn.Layer):  # type: ignore[misc]
    """A bottleneck with `SplitAttention`. Average pooling halves the size.

    Args:
        width: Number of channels of the inner convolutions.
        branches: Number of branches.
        pool_first: Whether the pooling precedes the attention.
        counts_padding: Whether the pooling counts the padding.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        branches: int,
        pool_first: bool,
        counts_padding: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        out = width * _EXPANSION
        conv = partial(UnderscoredConvNorm, data_format=data_format, decay=False)
        pool = partial(nn.AvgPool2D, padding=1, exclusive=not counts_padding, data_format=data_format)
        halve = pool(3, stride) if stride > 1 else nn.Identity()
        self.conv1 = conv(in_channels, width, 1, act=F.relu)
        self.conv2 = SplitAttention(width, branches, data_format)
        self.conv3 = conv(width, out, 1)
        self._pools = (halve, nn.Identity()) if pool_first else (nn.Identity(), halve)
        self._projects = stride > 1 or in_channels != out
        if self._projects:
            pooled = nn.AvgPool2D(stride, stride, ceil_mode=True, data_format=data_format)
            self.pool = pooled if stride > 1 else nn.Identity()
            self.conv4 = _conv(in_channels, out, 1, bias_attr=False, data_format=data_format)
            self._batch_norm = batch_norm(out, data_format, decay=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', ceil(H/stride), ceil(W/stride)]."""
        before, after = self._pools
        shortcut = self._batch_norm(self.conv4(self.pool(x))) if self._projects else x
        return self.conv3.add_relu(after(self.conv2(before(self.conv1(x)))), shortcut)


def _attention_biases(names: Mapping[str, str]) -> dict[str, str]:
    norm = ".conv2.bn1._mean"
    return {
        theirs.replace(norm, ".conv2.fc1.bias"): name
        for theirs, name in names.items()
        if theirs.endswith(norm)
    }


def _reject_fast(_model: nn.Layer, name: str) -> str:
    return "timm has no network that computes the same numbers" if name.startswith("ResNeSt50_fast") else ""


class ResNeSt(nn.Layer):  # type: ignore[misc]
    """The ResNeSt network.

    Args:
        depths: Number of blocks per stage.
        stem: Number of channels of the first convolution.
        branches: Number of branches per block.
        timm_variant: Whether the average pooling in blocks counts the padding, as in timm.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^stem\.conv3\.": ("conv1.6.", "bn1."),
            r"^stem\.conv(\d)\.": (r"conv1.{3*\1-3}.", r"conv1.{3*\1-2}."),
            r"^(layer\d)\.layer\d_bottleneck_": r"\1.",
            r"\.conv2\.conv1\.": (".conv2.conv.", ".conv2.bn0."),
            r"\.conv2\.conv2\.": (".conv2.fc1.", ".conv2.bn1."),
            r"\.conv2\.conv3\.": ".conv2.fc2.",
            r"\.conv4\.": ".downsample.1.",
            r"^(layer\d\.\d+)\._batch_norm\.": r"\1.downsample.2.",
            r"\.conv([13])\.": (r".conv\1.", r".bn\1."),
            r"^out\.": "fc.",
        },
        variant="PaddleClas's ResNeSt does not count padding in average pooling",
        biases=_attention_biases,
        reject_export=_reject_fast,
    )

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        stem: int,
        branches: int = 2,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        conv = partial(UnderscoredConvNorm, act=F.relu, data_format=data_format, decay=False)
        self.stem = nn.Sequential(
            ("conv1", conv(input_image_channel, stem, 3, 2)),
            ("conv2", conv(stem, stem, 3)),
            ("conv3", conv(stem, 2 * stem, 3)),
        )
        self.max_pool2d = nn.MaxPool2D(3, 2, padding=1, data_format=data_format)
        channels = 2 * stem
        self._stages = []
        for stage, (width, depth) in enumerate(zip(RESNET_WIDTHS, depths, strict=True), 1):
            blocks = nn.Sequential()
            for i in range(depth):
                stride = 2 if stage > 1 and i == 0 else 1
                pooling = branches == 1, timm_variant
                block = SplitAttentionBlock(channels, width, stride, branches, *pooling, data_format)
                blocks.add_sublayer(f"layer{stage}_bottleneck_{i}", block)
                channels = width * _EXPANSION
            self._stages.append(self.add_sublayer(f"layer{stage}", blocks))
        self.pool2d_avg = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.out = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.max_pool2d(self.stem(x))
        for stage in self._stages:
            x = stage(x)
        return self.out(self.pool2d_avg(x).flatten(1))


ResNeSt50_fast_1s1x64d = partial(ResNeSt, (3, 4, 6, 3), 32, 1)
ResNeSt50 = partial(ResNeSt, (3, 4, 6, 3), 32)
ResNeSt101 = partial(ResNeSt, (3, 4, 23, 3), 64)
ResNeSt200 = partial(ResNeSt, (3, 24, 36, 3), 64)
ResNeSt269 = partial(ResNeSt, (3, 30, 48, 8), 64)
