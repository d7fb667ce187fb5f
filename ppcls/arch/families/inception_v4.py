"""Inception V4 (Szegedy et al. 2016, https://arxiv.org/abs/1602.07261)."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, uniform_linear
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

_V4_STEM: Table = (
    (
        ("_conv_1", "x", 32, 3, "s"),
        ("_conv_2", "_conv_1", 32, 3, "v"),
        ("_conv_3", "_conv_2", 64, 3, ""),
        ("_conv2", "_conv_3", 96, 3, "s"),
        *chain("_conv1_", "max(_conv_3) _conv2", (64, 1), (96, 3, "v")),
        *chain("_conv2_", "max(_conv_3) _conv2", (64, 1), (64, COLUMN), (64, ROW), (96, 3, "v")),
        ("_conv3", "_conv1_2 _conv2_4", 192, 3, "s"),
    ),
    "_conv3 max(_conv1_2+_conv2_4)",
)
_V4_A: Table = (
    (
        *(("_conv1", "avg(x)", 96, 1, ""), ("_conv2", "x", 96, 1, "")),
        *chain("_conv3_", "x", (64, 1), (96, 3)),
        *chain("_conv4_", "x", (64, 1), (96, 3), (96, 3)),
    ),
    "_conv1 _conv2 _conv3_2 _conv4_3",
)
_V4_REDUCTION_A: Table = (
    (("_conv2", "x", 384, 3, "s"), *chain("_conv3_", "x", (192, 1), (224, 3), (256, 3, "s"))),
    "max(x) _conv2 _conv3_3",
)
_V4_B: Table = (
    (
        *(("_conv1", "avg(x)", 128, 1, ""), ("_conv2", "x", 384, 1, "")),
        *chain("_conv3_", "x", (192, 1), (224, ROW), (256, COLUMN)),
        *chain("_conv4_", "x", (192, 1), (192, ROW), (224, COLUMN), (224, ROW), (256, COLUMN)),
    ),
    "_conv1 _conv2 _conv3_3 _conv4_5",
)
_V4_REDUCTION_B: Table = (
    (
        *chain("_conv2_", "x", (192, 1), (192, 3, "s")),
        *chain("_conv3_", "x", (256, 1), (256, ROW), (320, COLUMN), (320, 3, "s")),
    ),
    "max(x) _conv2_2 _conv3_4",
)
_V4_C: Table = (
    (
        ("_conv1", "avg(x)", 256, 1, ""),
        ("_conv2", "x", 256, 1, ""),
        ("_conv3_0", "x", 384, 1, ""),
        ("_conv3_1", "_conv3_0", 256, SHORT_ROW, ""),
        ("_conv3_2", "_conv3_0", 256, SHORT_COLUMN, ""),
        ("_conv4_0", "x", 384, 1, ""),
        ("_conv4_00", "_conv4_0", 448, SHORT_ROW, ""),
        ("_conv4_000", "_conv4_00", 512, SHORT_COLUMN, ""),
        ("_conv4_1", "_conv4_000", 256, SHORT_ROW, ""),
        ("_conv4_2", "_conv4_000", 256, SHORT_COLUMN, ""),
    ),
    "_conv1 _conv2 _conv3_1 _conv3_2 _conv4_1 _conv4_2",
)
_TRANSPOSED = {  # for each prefix of modules' names, the convolutions whose kernels are transposed in timm
    "_inception_stem": {"_conv2_2", "_conv2_3"},
    "_inceptionB": {"_conv4_2", "_conv4_3", "_conv4_4", "_conv4_5"},
    "_inceptionC": {"_conv4_00", "_conv4_000"},
}
_V4 = {
    "_inception_stem": _V4_STEM,
    **{f"_inceptionA_{i}": _V4_A for i in range(1, 5)},
    "_reductionA": _V4_REDUCTION_A,
    **{f"_inceptionB_{i}": _V4_B for i in range(1, 8)},
    "_reductionB": _V4_REDUCTION_B,
    **{f"_inceptionC_{i}": _V4_C for i in range(1, 4)},
}


def _timm_table(name: str, table: Table) -> Table:
    """Returns the table of a module in timm's InceptionV4, where the pooled features come last."""
    transposed = _TRANSPOSED.get(re.sub(r"_\d$", "", name), set())
    rows, output = table
    kernels = {row[0]: row[3][::-1] for row in rows if row[0] in transposed and isinstance(row[3], tuple)}
    rows = tuple((*row[:3], kernels.get(row[0], row[3]), row[4]) for row in rows)
    pooled, _, others = output.partition(" ")
    return rows, output if name == "_inception_stem" else f"{others} {pooled}"


_PUBLIC_EPSILON = 1e-3  # BatchNorm's epsilon in timm


def _dropout_factors(model: nn.Layer) -> dict[str, float]:
    # PyTorch's weights expect its dropout, which scales in training; see `mode` below.
    return {"out.weight": 1 / (1 - model._drop.p)}


class InceptionV4(nn.Layer):  # type: ignore[misc]
    """The Inception V4 network.

    Args:
        timm_variant: Whether 1x7 and 7x1 convolutions, and concatenated features, have the same order as in
            timm.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"\._conv\.(?=\w+$)": ".conv.",
            r"\._batch_norm\.": ".bn.",
            r"^_inception_stem\._conv_(\d)\.": r"features.{\1-1}.",
            r"^_inception_stem\._conv2\.": "features.3.conv.",
            r"^_inception_stem\._conv3\.": "features.5.conv.",
            r"^_inception_stem\._conv(\d)_(\d)\.": r"features.4.branch{\1-1}.{\2-1}.",
            r"^(_inceptionC_\d)\._conv3_(\d)\.": r"\1.branch1_{\2:0 1a 1b}.",
            r"^(_inceptionC_\d)\._conv4_0\.": r"\1.branch2_0.",
            r"^(_inceptionC_\d)\._conv4_00\.": r"\1.branch2_1.",
            r"^(_inceptionC_\d)\._conv4_000\.": r"\1.branch2_2.",
            r"^(_inceptionC_\d)\._conv4_(\d)\.": r"\1.branch2_{\2:- 3a 3b}.",
            r"^_inceptionA_(\d)\.": r"features.{\1+5}.",
            r"^_reductionA\.": "features.10.",
            r"^_inceptionB_(\d)\.": r"features.{\1+10}.",
            r"^_reductionB\.": "features.18.",
            r"^_inceptionC_(\d)\.": r"features.{\1+18}.",
            r"\._conv1\.": ".branch3.1.",
            r"\._conv2\.": ".branch0.",
            r"\._conv(\d)_(\d)\.": r".branch{\1-2}.{\2-1}.",
            r"^out\.": "last_linear.",
        },
        variant="PaddleClas's InceptionV4 has its 1x7 and 7x1 convolutions in another order",
        epsilon=lambda _model, _timm: _PUBLIC_EPSILON,
        factors=_dropout_factors,
    )

    def __init__(
        self,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        conv = partial(UnderscoredConvNorm, act=F.relu, data_format=data_format)
        channels = input_image_channel
        for name, own_table in _V4.items():
            table = _timm_table(name, own_table) if timm_variant else own_table
            module = InceptionModule(table, channels, conv, exclusive=True, data_format=data_format)
            self.add_sublayer(name, module)
            channels = module.width
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self._drop = nn.Dropout(0.2, mode="downscale_in_infer")
        self.out = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for name in _V4:
            x = getattr(self, name)(x)
        return self.out(self._drop(self.avg_pool(x).flatten(1)))
