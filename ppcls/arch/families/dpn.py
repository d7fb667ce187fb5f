"""DPN (Chen et al. 2017, https://arxiv.org/abs/1707.01629), which has a residual path and a dense path."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, batch_norm
from ppcls.arch.layers.norm_act import norm_relu
from ppcls.arch.public.names import PublicNames


class NormConvolution(nn.Layer):  # type: ignore[misc]
    """Batch norm and ReLU, followed by a convolution."""

    def __init__(
        self,
        in_channels: int,
        out: int,
        kernel: int,
        data_format: DataFormat,
        stride: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self._batch_norm = batch_norm(in_channels, data_format)
        self._conv = nn.Conv2D(
            in_channels,
            out,
            kernel,
            stride,
            padding=kernel // 2,
            groups=groups,
            bias_attr=False,
            data_format=data_format,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return self._conv(norm_relu(self._batch_norm, x))


class DualPathBlock(nn.Layer):  # type: ignore[misc]
    """A bottleneck that adds its first channels to the residual path and appends the rest to the dense path.

    Args:
        in_channels: Total number of channels of both paths.
        inner: Number of channels within the bottleneck.
        residual: Number of channels of the residual path.
        growth: Number of channels that are appended to the dense path.
        groups: Number of groups of the 3x3 convolution.
        stride: Stride of the block. If it is 0, the stride is 1 and the block does not project its input.
    """

    def __init__(
        self,
        in_channels: int,
        inner: int,
        residual: int,
        growth: int,
        groups: int,
        stride: int,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self._projects = stride > 0
        stride = stride or 1
        conv = partial(NormConvolution, data_format=data_format)
        if self._projects:
            self.c1x1_w_func = conv(in_channels, residual + 2 * growth, 1, stride=stride)
        self.c1x1_a_func = conv(in_channels, inner, 1)
        self.c3x3_b_func = conv(inner, inner, 3, stride=stride, groups=groups)
        self.c1x1_c_func = conv(inner, residual + growth, 1)
        self._residual = residual
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, paths: Sequence[Tensor]) -> list[Tensor]:
        """Maps the residual path and the dense path, or one tensor, to the new residual and dense path."""
        x = paths[0] if len(paths) == 1 else paddle.concat(paths, self._axis)
        residual, dense = self._split(self.c1x1_w_func(x)) if self._projects else paths
        added, appended = self._split(self.c1x1_c_func(self.c3x3_b_func(self.c1x1_a_func(x))))
        return [residual + added, paddle.concat([dense, appended], self._axis)]

    def _split(self, x: Tensor) -> list[Tensor]:
        parts: list[Tensor] = paddle.split(x, [self._residual, -1], axis=self._axis)
        return parts


_PUBLIC_EPSILON = 1e-3  # BatchNorm's epsilon in timm


class DPN(nn.Layer):  # type: ignore[misc]
    """The DPN network.

    Args:
        stem: Number of channels of the first convolution.
        kernel: Kernel of the first convolution.
        inner: Number of channels in bottlenecks of the first stage. Each further stage doubles the number.
        groups: Number of groups of the 3x3 convolutions in bottlenecks.
        residual: Number of channels of the residual path in the first stage. Each further stage doubles it.
        depths: Number of blocks per stage.
        growths: Number of channels that a block appends to the dense path, per stage.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv1_x_1_func\.": "features.conv1_1.",
            r"^conv5_x_x_bn\.": "features.conv5_bn_ac.bn.",
            r"^dpn(\d+)\.": "features.conv{stage+2}_{block+1}.",
            r"^(features\.conv2_\d+)\.c1x1_w_func\.": r"\1.c1x1_w_s1.",
            r"\.c1x1_w_func\.": ".c1x1_w_s2.",
            r"^(features\.\w+\.\w+)_func\.": r"\1.",
            r"\.": (".conv.", ".bn."),
            r"^out\.": "classifier.",
        },
        starts=r"^dpn(\d+)\.c1x1_w_func\.",
        epsilon=lambda _model, _timm: _PUBLIC_EPSILON,
        as_convolutions={".classifier.": 1},
    )

    def __init__(
        self,
        stem: int,
        kernel: int,
        inner: int,
        groups: int,
        residual: int,
        depths: tuple[int, int, int, int],
        growths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = UnderscoredConvNorm(input_image_channel, stem, kernel, 2, act=F.relu, data_format=data_format)
        self.conv1_x_1_func = conv
        self.pool2d_max = nn.MaxPool2D(3, 2, 1, data_format=data_format)
        channels = stem
        self._count = sum(depths)
        number = 0
        for stage, (depth, growth) in enumerate(zip(depths, growths, strict=True)):
            width = residual << stage
            for i in range(depth):
                stride = 0 if i else 2 if stage else 1
                block = DualPathBlock(channels, inner << stage, width, growth, groups, stride, data_format)
                number += 1
                self.add_sublayer(f"dpn{number}", block)
                channels = channels + growth if i else width + 3 * growth
        self.conv5_x_x_bn = batch_norm(channels, data_format)
        self.pool2d_avg = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        # PaddleClas's bound for all DPNs; Paddle's default would depend on the number of channels.
        uniform = paddle.ParamAttr(initializer=nn.initializer.Uniform(-0.01, 0.01))
        self.out = nn.Linear(channels, class_num, weight_attr=uniform)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        paths = [self.pool2d_max(self.conv1_x_1_func(x))]
        for number in range(1, self._count + 1):
            paths = getattr(self, f"dpn{number}")(paths)
        x = norm_relu(self.conv5_x_x_bn, paddle.concat(paths, self._axis))
        return self.out(self.pool2d_avg(x).flatten(1))


DPN68 = partial(DPN, 10, 3, 128, 32, 64, (3, 4, 12, 3), (16, 32, 32, 64))
DPN92 = partial(DPN, 64, 7, 96, 32, 256, (3, 4, 20, 3), (16, 32, 24, 128))
DPN98 = partial(DPN, 96, 7, 160, 40, 256, (3, 6, 20, 3), (16, 32, 32, 128))
DPN107 = partial(DPN, 128, 7, 200, 50, 256, (4, 8, 20, 3), (20, 64, 64, 128))
DPN131 = partial(DPN, 128, 7, 160, 40, 256, (4, 8, 28, 3), (16, 32, 32, 128))
