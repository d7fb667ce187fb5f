"""Inception V3 (Szegedy et al. 2015, https://arxiv.org/abs/1512.00567)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, uniform_linear
from ppcls.arch.layers.inception import (
    COLUMN,
    ROW,
    SHORT_COLUMN,
    SHORT_ROW,
    InceptionModule,
    Table,
    chain,
)
from ppcls.arch.public.names import PublicNames


def _block_a(pooled: int) -> Table:
    rows = (
        ("branch1x1", "x", 64, 1, ""),
        *chain("branch5x5_", "x", (48, 1), (64, 5)),
        *chain("branch3x3dbl_", "x", (64, 1), (96, 3), (96, 3)),
        ("branch_pool_conv", "avg(x)", pooled, 1, ""),
    )
    return rows, "branch1x1 branch5x5_2 branch3x3dbl_3 branch_pool_conv"


def _block_c(width: int) -> Table:
    inner = ((width, COLUMN), (width, ROW), (width, COLUMN))
    rows = (
        ("branch1x1", "x", 192, 1, ""),
        *chain("branch7x7_", "x", (width, 1), (width, ROW), (192, COLUMN)),
        *chain("branch7x7dbl_", "x", (width, 1), *inner, (192, ROW)),
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
    (("branch3x3", "x", 384, 3, "s"), *chain("branch3x3dbl_", "x", (64, 1), (96, 3), (96, 3, "s"))),
    "branch3x3 branch3x3dbl_3 max(x)",
)
_BLOCK_D: Table = (
    (
        *chain("branch3x3_", "x", (192, 1), (320, 3, "s")),
        *chain("branch7x7x3_", "x", (192, 1), (192, ROW), (192, COLUMN), (192, 3, "s")),
    ),
    "branch3x3_2 branch7x7x3_4 max(x)",
)
_BLOCK_E: Table = (
    (
        ("branch1x1", "x", 320, 1, ""),
        ("branch3x3_1", "x", 384, 1, ""),
        ("branch3x3_2a", "branch3x3_1", 384, SHORT_ROW, ""),
        ("branch3x3_2b", "branch3x3_1", 384, SHORT_COLUMN, ""),
        *chain("branch3x3dbl_", "x", (448, 1), (384, 3)),
        ("branch3x3dbl_3a", "branch3x3dbl_2", 384, SHORT_ROW, ""),
        ("branch3x3dbl_3b", "branch3x3dbl_2", 384, SHORT_COLUMN, ""),
        ("branch_pool_conv", "avg(x)", 192, 1, ""),
    ),
    "branch1x1 branch3x3_2a branch3x3_2b branch3x3dbl_3a branch3x3dbl_3b branch_pool_conv",
)
_V3 = (*map(_block_a, (32, 64, 64)), _BLOCK_B, *map(_block_c, (128, 160, 160, 192)), _BLOCK_D)


_PUBLIC_EPSILON = 1e-3  # BatchNorm's epsilon in timm and torchvision


def _dropout_factors(model: nn.Layer) -> dict[str, float]:
    # PyTorch's weights expect its dropout, which scales in training; see `mode` below.
    return {"fc.weight": 1 / (1 - model.dropout.p)}


class InceptionV3(nn.Layer):  # type: ignore[misc]
    """The Inception V3 network, without the auxiliary classifier."""

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^inception_stem\.conv_": "Conv2d_",
            r"^inception_block_list\.(\d+)\.": r"Mixed_{\1:5b 5c 5d 6a 6b 6c 6d 6e 7a 7b 7c}.",
            r"\.branch_pool_conv\.": ".branch_pool.",
            r"\.0\.": ".conv.",
            r"\.1\.": ".bn.",
        },
        epsilon=lambda _model, _timm: _PUBLIC_EPSILON,
        factors=_dropout_factors,
    )

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
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self.dropout = nn.Dropout(0.2, mode="downscale_in_infer")
        self.fc = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.inception_stem(x)
        for block in self.inception_block_list:
            x = block(x)
        return self.fc(self.dropout(self.avg_pool(x).flatten(1)))
