"""Inception V3 (https://arxiv.org/abs/1512.00567) and V4 (https://arxiv.org/abs/1602.07261).

A module is a table of convolutions: name in checkpoints, what it reads, output channels, kernel, and "s" for
stride 2 or "v" for stride 1, both without padding. It reads one or more results, such as ``x`` for the
module's input, which are concatenated; ``max(x)`` and ``avg(x)`` are pooled first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, UnderscoredConvNorm, uniform_linear

Kernel = int | tuple[int, int]
Row = tuple[str, str, int, Kernel, str]
Table = tuple[tuple[Row, ...], str]  # rows, and what the module returns
_POOLED = re.compile(r"(max|avg)\((.*)\)")
_ROW, _COLUMN = (1, 7), (7, 1)
_SHORT_ROW, _SHORT_COLUMN = (1, 3), (3, 1)


def _chain(name: str, source: str, *layers: Sequence[Any]) -> tuple[Row, ...]:
    """Returns rows ``name1``, ``name2`` and so on, each of which reads the one before."""
    names = [f"{name}{i}" for i in range(1, len(layers) + 1)]
    rows = zip(names, (source, *names), layers, strict=False)
    return tuple((this, before, row[0], row[1], "".join(row[2:])) for this, before, row in rows)


class InceptionModule(nn.Layer):  # type: ignore[misc]
    """Convolutions side by side and in chains, whose results are concatenated.

    Args:
        table: See the documentation of this file.
        channels: Input channels.
        conv: Constructor of the convolutions.
        exclusive: Whether average pooling ignores the padding.
    """

    def __init__(
        self, table: Table, channels: int, conv: partial[ConvNorm], exclusive: bool, data_format: DataFormat
    ) -> None:
        super().__init__()
        self._rows, self._output = table
        self._axis = 1 if data_format == "NCHW" else 3
        self._pools = {
            "max": nn.MaxPool2D(3, 2, data_format=data_format),
            "avg": nn.AvgPool2D(3, 1, 1, exclusive=exclusive, data_format=data_format),
        }
        widths = {"x": channels}

        def width_of(names: str) -> int:
            return sum(widths[name] for name in re.sub(r"max|avg|[()+]", " ", names).split())

        for name, source, width, kernel, mode in self._rows:
            sides = (kernel, kernel) if isinstance(kernel, int) else kernel
            padding = [0, 0] if mode else [side // 2 for side in sides]
            layer = conv(width_of(source), width, kernel, 2 if mode == "s" else 1, padding=padding)
            self.add_sublayer(name, layer)
            widths[name] = width
        self.width = width_of(self._output)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, width, H', W']."""
        outputs = {"x": x}

        def read(names: str) -> Tensor:
            parts = []
            for part in names.split():
                pooled = _POOLED.fullmatch(part)
                joined = [outputs[name] for name in (pooled[2] if pooled else part).split("+")]
                value = joined[0] if len(joined) == 1 else paddle.concat(joined, self._axis)
                parts.append(self._pools[pooled[1]](value) if pooled else value)
            return parts[0] if len(parts) == 1 else paddle.concat(parts, self._axis)

        for name, source, *_ in self._rows:
            outputs[name] = getattr(self, name)(read(source))
        return read(self._output)


def _block_a(pooled: int) -> Table:
    rows = (
        ("branch1x1", "x", 64, 1, ""),
        *_chain("branch5x5_", "x", (48, 1), (64, 5)),
        *_chain("branch3x3dbl_", "x", (64, 1), (96, 3), (96, 3)),
        ("branch_pool_conv", "avg(x)", pooled, 1, ""),
    )
    return rows, "branch1x1 branch5x5_2 branch3x3dbl_3 branch_pool_conv"


def _block_c(width: int) -> Table:
    inner = ((width, _COLUMN), (width, _ROW), (width, _COLUMN))
    rows = (
        ("branch1x1", "x", 192, 1, ""),
        *_chain("branch7x7_", "x", (width, 1), (width, _ROW), (192, _COLUMN)),
        *_chain("branch7x7dbl_", "x", (width, 1), *inner, (192, _ROW)),
        ("branch_pool_conv", "avg(x)", 192, 1, ""),
    )
    return rows, "branch1x1 branch7x7_3 branch7x7dbl_5 branch_pool_conv"


_V3_STEM: Table = (
    (
        ("conv_1a_3x3", "x", 32, 3, "s"),
        ("conv_2a_3x3", "conv_1a_3x3", 32, 3, "v"),
        ("conv_2b_3x3", "conv_2a_3x3", 64, 3, ""),
        ("conv_3b_1x1", "max(conv_2b_3x3)", 80, 1, ""),
        ("conv_4a_3x3", "conv_3b_1x1", 192, 3, "v"),
    ),
    "max(conv_4a_3x3)",
)
_BLOCK_B: Table = (
    (("branch3x3", "x", 384, 3, "s"), *_chain("branch3x3dbl_", "x", (64, 1), (96, 3), (96, 3, "s"))),
    "branch3x3 branch3x3dbl_3 max(x)",
)
_BLOCK_D: Table = (
    (
        *_chain("branch3x3_", "x", (192, 1), (320, 3, "s")),
        *_chain("branch7x7x3_", "x", (192, 1), (192, _ROW), (192, _COLUMN), (192, 3, "s")),
    ),
    "branch3x3_2 branch7x7x3_4 max(x)",
)
_BLOCK_E: Table = (
    (
        ("branch1x1", "x", 320, 1, ""),
        ("branch3x3_1", "x", 384, 1, ""),
        ("branch3x3_2a", "branch3x3_1", 384, _SHORT_ROW, ""),
        ("branch3x3_2b", "branch3x3_1", 384, _SHORT_COLUMN, ""),
        *_chain("branch3x3dbl_", "x", (448, 1), (384, 3)),
        ("branch3x3dbl_3a", "branch3x3dbl_2", 384, _SHORT_ROW, ""),
        ("branch3x3dbl_3b", "branch3x3dbl_2", 384, _SHORT_COLUMN, ""),
        ("branch_pool_conv", "avg(x)", 192, 1, ""),
    ),
    "branch1x1 branch3x3_2a branch3x3_2b branch3x3dbl_3a branch3x3dbl_3b branch_pool_conv",
)
_V3 = (*map(_block_a, (32, 64, 64)), _BLOCK_B, *map(_block_c, (128, 160, 160, 192)), _BLOCK_D)

_V4_STEM: Table = (
    (
        ("_conv_1", "x", 32, 3, "s"),
        ("_conv_2", "_conv_1", 32, 3, "v"),
        ("_conv_3", "_conv_2", 64, 3, ""),
        ("_conv2", "_conv_3", 96, 3, "s"),
        *_chain("_conv1_", "max(_conv_3) _conv2", (64, 1), (96, 3, "v")),
        *_chain("_conv2_", "max(_conv_3) _conv2", (64, 1), (64, _COLUMN), (64, _ROW), (96, 3, "v")),
        ("_conv3", "_conv1_2 _conv2_4", 192, 3, "s"),
    ),
    "_conv3 max(_conv1_2+_conv2_4)",
)
_V4_A: Table = (
    (
        *(("_conv1", "avg(x)", 96, 1, ""), ("_conv2", "x", 96, 1, "")),
        *_chain("_conv3_", "x", (64, 1), (96, 3)),
        *_chain("_conv4_", "x", (64, 1), (96, 3), (96, 3)),
    ),
    "_conv1 _conv2 _conv3_2 _conv4_3",
)
_V4_REDUCTION_A: Table = (
    (("_conv2", "x", 384, 3, "s"), *_chain("_conv3_", "x", (192, 1), (224, 3), (256, 3, "s"))),
    "max(x) _conv2 _conv3_3",
)
_V4_B: Table = (
    (
        *(("_conv1", "avg(x)", 128, 1, ""), ("_conv2", "x", 384, 1, "")),
        *_chain("_conv3_", "x", (192, 1), (224, _ROW), (256, _COLUMN)),
        *_chain("_conv4_", "x", (192, 1), (192, _ROW), (224, _COLUMN), (224, _ROW), (256, _COLUMN)),
    ),
    "_conv1 _conv2 _conv3_3 _conv4_5",
)
_V4_REDUCTION_B: Table = (
    (
        *_chain("_conv2_", "x", (192, 1), (192, 3, "s")),
        *_chain("_conv3_", "x", (256, 1), (256, _ROW), (320, _COLUMN), (320, 3, "s")),
    ),
    "max(x) _conv2_2 _conv3_4",
)
_V4_C: Table = (
    (
        *(("_conv1", "avg(x)", 256, 1, ""), ("_conv2", "x", 256, 1, ""), ("_conv3_0", "x", 384, 1, "")),
        ("_conv3_1", "_conv3_0", 256, _SHORT_ROW, ""),
        ("_conv3_2", "_conv3_0", 256, _SHORT_COLUMN, ""),
        ("_conv4_0", "x", 384, 1, ""),
        ("_conv4_00", "_conv4_0", 448, _SHORT_ROW, ""),
        ("_conv4_000", "_conv4_00", 512, _SHORT_COLUMN, ""),
        ("_conv4_1", "_conv4_000", 256, _SHORT_ROW, ""),
        ("_conv4_2", "_conv4_000", 256, _SHORT_COLUMN, ""),
    ),
    "_conv1 _conv2 _conv3_1 _conv3_2 _conv4_1 _conv4_2",
)
_V4 = {
    **{"_inception_stem": _V4_STEM, **{f"_inceptionA_{i}": _V4_A for i in range(1, 5)}},
    **{"_reductionA": _V4_REDUCTION_A, **{f"_inceptionB_{i}": _V4_B for i in range(1, 8)}},
    **{"_reductionB": _V4_REDUCTION_B, **{f"_inceptionC_{i}": _V4_C for i in range(1, 4)}},
}


class InceptionV3(nn.Layer):  # type: ignore[misc]
    """The Inception V3 network, without the auxiliary classifier."""

    def __init__(
        self, class_num: int = 1000, data_format: DataFormat = "NCHW", input_image_channel: int = 3
    ) -> None:
        super().__init__()
        conv = partial(ConvNorm, act=F.relu, data_format=data_format)
        module: Callable[..., InceptionModule] = partial(
            InceptionModule, conv=conv, exclusive=False, data_format=data_format
        )
        self.inception_stem = module(_V3_STEM, input_image_channel)
        self.inception_block_list = nn.LayerList()
        channels = self.inception_stem.width
        for table in (*_V3, _BLOCK_E, _BLOCK_E):
            self.inception_block_list.append(block := module(table, channels))
            channels = block.width
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.dropout = nn.Dropout(0.2, mode="downscale_in_infer")
        self.fc = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.inception_stem(x)
        for block in self.inception_block_list:
            x = block(x)
        return self.fc(self.dropout(self.avg_pool(x).flatten(1)))


class InceptionV4(nn.Layer):  # type: ignore[misc]
    """The Inception V4 network."""

    def __init__(
        self, class_num: int = 1000, data_format: DataFormat = "NCHW", input_image_channel: int = 3
    ) -> None:
        super().__init__()
        conv = partial(UnderscoredConvNorm, act=F.relu, data_format=data_format)
        channels = input_image_channel
        for name, table in _V4.items():
            module = InceptionModule(table, channels, conv, exclusive=True, data_format=data_format)
            self.add_sublayer(name, module)
            channels = module.width
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._drop = nn.Dropout(0.2, mode="downscale_in_infer")
        self.out = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for name in _V4:
            x = getattr(self, name)(x)
        return self.out(self._drop(self.avg_pool(x).flatten(1)))
