"""The modules of Inception networks (Szegedy et al. 2014, https://arxiv.org/abs/1409.4842).

A table describes a module. Each row of the table is a convolution with five values: name in checkpoints,
inputs, output channels, kernel, and padding mode.

The inputs are the names of one or more results, which are concatenated. The name ``x`` is the module's input.
``max(x)`` and ``avg(x)`` are the input after pooling. The padding mode is "s" for stride 2 without padding,
"v" for stride 1 without padding, or "" for stride 1 with padding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat

Kernel = int | tuple[int, int]
Row = tuple[str, str, int, Kernel, str]
Table = tuple[tuple[Row, ...], str]  # rows, and names of the results that the module returns
_POOLED = re.compile(r"(max|avg)\((.*)\)")
# kernels (height, width)
ROW = (1, 7)
COLUMN = (7, 1)
SHORT_ROW = (1, 3)
SHORT_COLUMN = (3, 1)


def chain(name: str, source: str, *layers: Sequence[Any]) -> tuple[Row, ...]:
    """Returns rows named ``name1``, ``name2`` and so on. Each row reads the result of the previous row."""
    names = [f"{name}{i}" for i in range(1, len(layers) + 1)]
    rows = zip(names, (source, *names), layers, strict=False)
    return tuple((this, before, row[0], row[1], "".join(row[2:])) for this, before, row in rows)


class InceptionModule(nn.Layer):  # type: ignore[misc]
    """A module of parallel and chained convolutions, whose results are concatenated.

    Args:
        table: Table of the convolutions; the docstring of this file describes the format.
        channels: Number of input channels.
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
