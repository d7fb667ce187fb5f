"""The Xception network of DeepLabv3+ (Chen et al. 2018, https://arxiv.org/abs/1802.02611) as a classifier.

Unlike in `ppcls.arch.families.xception`, strided convolutions replace max pooling, and a separable
convolution starts with its depthwise convolution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm
from ppcls.arch.layers.drop_path import image_dropout
from ppcls.arch.public.names import PublicNames, Rule

# As in the code of the authors, which uses TensorFlow.
_norm = partial(batch_norm, epsilon=1e-3, momentum=0.99)
# number of channels of each block; blocks of _ENTRY have stride 2
_ENTRY = (128, 256, 728)
_MIDDLE = 728
_EXIT = ((728, 1024, 1024), (1536, 1536, 2048))


class NormalizedConv(nn.Layer):  # type: ignore[misc]
    """A convolution without bias, followed by batch norm."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, data_format: DataFormat
    ) -> None:
        super().__init__()
        shape = (in_channels, out_channels, kernel, stride)
        padding = kernel // 2
        self._conv = nn.Conv2D(*shape, padding=padding, bias_attr=False, data_format=data_format)
        self._bn = _norm(out_channels, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return self._bn(self._conv(x))


class DepthwiseFirst(nn.Layer):  # type: ignore[misc]
    """A depthwise 3x3 convolution and a 1x1 convolution, each with batch norm.

    Args:
        dilation: Dilation of the depthwise convolution.
        activates: Whether ReLU follows each batch norm.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        dilation: int,
        activates: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        conv: partial[Any] = partial(nn.Conv2D, bias_attr=False, data_format=data_format)
        depthwise = {"padding": dilation, "dilation": dilation, "groups": in_channels}
        self._conv1 = conv(in_channels, in_channels, 3, stride, **depthwise)
        self._bn1 = _norm(in_channels, data_format)
        self._conv2 = conv(in_channels, out_channels, 1)
        self._bn2 = _norm(out_channels, data_format)
        self._activates = activates

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        x = self._bn1(self._conv1(x))
        x = self._bn2(self._conv2(F.relu(x) if self._activates else x))
        return F.relu(x) if self._activates else x


class StridedBlock(nn.Layer):  # type: ignore[misc]
    """A block of three separable convolutions and a shortcut. The last convolution has the stride.

    Args:
        widths: Number of channels of the input and of the output of each convolution.
        last: Whether this is the last block, which has ReLU after each batch norm and no shortcut.
        dilation: Dilation of the depthwise convolutions.
    """

    def __init__(
        self,
        widths: Sequence[int],
        stride: int,
        data_format: DataFormat,
        last: bool = False,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        for i in range(3):
            shape = widths[i], widths[i + 1], stride if i == 2 else 1, dilation
            self.add_sublayer(f"_conv{i + 1}", DepthwiseFirst(*shape, last, data_format))
        self._last = last
        self._short = nn.Identity()
        if not last and (stride > 1 or widths[0] != widths[-1]):
            self._short = NormalizedConv(widths[0], widths[-1], 1, stride, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = x
        for conv in (self._conv1, self._conv2, self._conv3):
            y = conv(y if self._last else F.relu(y))
        return y if self._last else self._short(x) + y


def _dropout_factors(model: nn.Layer) -> dict[str, float]:
    # PyTorch's weights expect its dropout, which scales in training; see `mode` below.
    return {"_fc.weight": 1 / (1 - model._drop.p)}


def _block_rules(model: nn.Layer) -> list[Rule]:
    """Returns the rule that numbers the blocks of all flows in order, as timm does."""
    block = re.compile(r"^(xception_\d+/\w+/block\d+|_exit_flow_\d)\.")
    order = list(dict.fromkeys(match[1] for name in model.state_dict() if (match := block.match(name))))
    return [(block.pattern, lambda match: f"blocks.{order.index(match[1])}.")]


class XceptionDeepLab(nn.Layer):  # type: ignore[misc]
    """The Xception network of DeepLabv3+.

    Args:
        name: Name of the network in checkpoints, which depends on ``depth``.
        depth: Number of blocks of the middle flow.
        timm_variant: Whether the last block has no dilation, as in timm.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^_conv(\d)\._": r"stem.{\1-1}.",
            r"\._short\._": ".shortcut.",
            r"^(blocks\.\d+)\._conv(\d)\.": r"\1.stack.conv\2.",
            r"\._(conv|bn)1\.": r".\1_dw.",
            r"\._(conv|bn)2\.": r".\1_pw.",
            r"^_fc\.": "head.fc.",
        },
        variant="the last block of PaddleClas's Xception_deeplab is dilated",
        factors=_dropout_factors,
        first_timm=_block_rules,
    )

    def __init__(
        self,
        name: str,
        depth: int,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        self._conv1 = NormalizedConv(input_image_channel, 32, 3, 2, data_format)
        self._conv2 = NormalizedConv(32, 64, 3, 1, data_format)
        self._blocks = []
        channels = 64
        for flow, widths, stride in (("entry_flow", _ENTRY, 2), ("middle_flow", (_MIDDLE,) * depth, 1)):
            for i, width in enumerate(widths, 1):
                block = StridedBlock((channels, width, width, width), stride, data_format)
                self._blocks.append(self.add_sublayer(f"{name}/{flow}/block{i}", block))
                channels = width
        self._exit_flow_1 = StridedBlock((channels, *_EXIT[0]), 2, data_format)
        dilation = 1 if timm_variant else 2
        self._exit_flow_2 = StridedBlock((_EXIT[0][-1], *_EXIT[1]), 1, data_format, True, dilation)
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self._drop = image_dropout(0.5, data_format, mode="downscale_in_infer")
        self._pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._fc = nn.Linear(_EXIT[1][-1], class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = F.relu(self._conv2(F.relu(self._conv1(x))))
        for block in self._blocks:
            x = block(x)
        x = self._exit_flow_2(self._exit_flow_1(x))
        return self._fc(self._pool(self._drop(x)).flatten(1))


Xception41_deeplab = partial(XceptionDeepLab, "xception_41", 8)
Xception65_deeplab = partial(XceptionDeepLab, "xception_65", 16)
