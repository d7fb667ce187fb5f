"""MobileViTV2 (Mehta and Rastegari 2022, https://arxiv.org/abs/2206.02680), with linear-cost attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.families.mobilevit import MobileViTConvNorm
from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, round_channels
from ppcls.arch.layers.drop_path import dropout
from ppcls.arch.layers.sequence import ResidualSequence
from ppcls.arch.layers.tokens import UNIFORM, even, linear_transformer, over_patches, pointwise, resize, sides
from ppcls.arch.public.names import PublicNames


class MobileViTV2Block(nn.Layer):  # type: ignore[misc]
    """Convolutions, a `linear_transformer`, and a convolution.

    The transformer processes pixels that have the same position in their patches.

    Args:
        width: Width of a token.
        depth: Number of blocks of the transformer.
    """

    def __init__(
        self, channels: int, width: int, depth: int, conv: partial[ConvNorm], data_format: DataFormat
    ) -> None:
        super().__init__()
        narrow = nn.Sequential(("conv", pointwise(channels, width, data_format, bias=False)))
        self.local_rep = nn.Sequential(conv(channels, channels, 3, 1, channels, F.silu), narrow)
        self.global_rep = linear_transformer(width, depth, data_format)
        self.conv_proj = conv(width, channels, 1)
        self._data_format = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape. Odd sides are rounded up to even sides."""
        x = resize(x, even(sides(x, self._data_format)), self._data_format, align=True)
        x = over_patches(self.global_rep, self.local_rep(x), self._data_format, self._data_format)
        return self.conv_proj(x)


def inverted_residual(
    conv: partial[ConvNorm], in_channels: int, out_channels: int, stride: int, expansion: int
) -> ResidualSequence:
    """Returns an inverted residual whose layers have the names of MobileViTV2's checkpoints."""
    width = round_channels(in_channels * expansion)
    block = nn.Sequential(
        ("exp_1x1", conv(in_channels, width, 1, act=F.silu)),
        ("conv_3x3", conv(width, width, 3, stride, width, F.silu)),
        ("red_1x1", conv(width, out_channels, 1)),
    )
    return ResidualSequence({"block": block}, stride == 1 and in_channels == out_channels)


class MobileViTStages(nn.Sequential):  # type: ignore[misc]
    """Base class of MobileViTV2 and V3, which map images [B, C, H, W] (or NHWC) to logits [B, class_num].

    Args:
        channels: Number of channels of the first convolution and of each stage.
        widths: Width of a token in the last three stages.
        depths: Number of transformer blocks in the last three stages.
        block: Constructor of the MobileViT block at the end of each of these stages.
        initializer: Initializer of the convolutions with batch norm.
        expansion: Number of channels within an inverted residual divided by that of its input.
        repeats: Number of inverted residuals in the second stage.
        features: Number of channels of the last convolution; 0 for no last convolution.
        drop_rate: Dropout rate before the classifier.
        linear: Constructor of the classifier.
    """

    def __init__(
        self,
        channels: Sequence[int],
        widths: Sequence[int],
        depths: Sequence[int] = (2, 4, 3),
        block: Callable[..., nn.Layer] = MobileViTV2Block,
        initializer: nn.initializer.Initializer = UNIFORM,
        expansion: int = 2,
        repeats: int = 2,
        features: int = 0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        linear: Callable[[int, int], nn.Linear] = nn.Linear,
    ) -> None:
        conv = partial(MobileViTConvNorm, data_format=data_format, initializer=initializer)
        residual = partial(inverted_residual, conv, expansion=expansion)
        stem, first, second, *later = channels
        stages = [[residual(stem, first, 1)], [residual(first, second, 2)]]
        stages[1] += [residual(second, second, 1) for _ in range(repeats - 1)]
        for out, width, depth in zip(later, widths, depths, strict=True):
            stages.append([residual(second, out, 2), block(out, width, depth, conv, data_format)])
            second = out
        pool = nn.Sequential(nn.AdaptiveAvgPool2D(1, data_format=data_format), nn.Flatten())
        classifier = linear(features or second, class_num)
        super().__init__(
            ("conv_1", conv(input_image_channel, stem, 3, 2, act=F.silu)),
            *((f"layer_{i}", nn.Sequential(*stage)) for i, stage in enumerate(stages, 1)),
            ("conv_1x1_exp", conv(second, features, 1, act=F.silu) if features else nn.Identity()),
            (
                "classifier",
                nn.Sequential(("pool", pool), ("dropout", dropout(drop_rate)), ("fc", classifier)),
            ),
        )


class MobileViTV2(MobileViTStages):
    """The MobileViTV2 network.

    Args:
        factor: Factor for all numbers of channels.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"\.(?:conv\.0|block\.exp_1x1)\.(conv|norm)\.": r".conv1_1x1.\1.",
            r"\.(?:conv\.1|block\.conv_3x3)\.(conv|norm)\.": r".conv2_kxk.\1.",
            r"\.block\.red_1x1\.(conv|norm)\.": r".conv3_1x1.\1.",
            r"\.conv\.2\.": ".conv3_1x1.conv.",
            r"\.conv\.3\.": ".conv3_1x1.norm.",
            r"^conv_1\.": "stem.",
            r"^layer_(\d)\.": r"stages.{\1-1}.",
            r"\.local_rep\.0\.": ".conv_kxk.",
            r"\.local_rep\.1\.conv\.": ".conv_1x1.",
            r"\.norm\.": ".bn.",
            r"\.global_rep\.(\d)\.pre_norm_attn\.0\.": r".transformer.\1.norm1.",
            r"\.global_rep\.(\d)\.pre_norm_attn\.1\.": r".transformer.\1.attn.",
            r"\.global_rep\.(\d)\.pre_norm_ffn\.0\.": r".transformer.\1.norm2.",
            r"\.global_rep\.(\d)\.pre_norm_ffn\.1\.": r".transformer.\1.mlp.fc1.",
            r"\.global_rep\.(\d)\.pre_norm_ffn\.4\.": r".transformer.\1.mlp.fc2.",
            r"\.global_rep\.\d\.": ".norm.",
            r"^classifier\.fc\.": "head.fc.",
        },
    )

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(*scaled(factor), **options)


def scaled(factor: float) -> tuple[list[int], list[int]]:
    """Returns the channels and widths of `MobileViTStages`, multiplied by ``factor``."""
    stages = [round_channels(channels * factor) for channels in (128, 256, 384, 512)]
    widths = [round_channels(width * factor) for width in (128, 192, 256)]
    return [int(32 * factor), round_channels(64 * factor, 16), *stages], widths


MobileViTV2_x0_5 = partial(MobileViTV2, 0.5)
MobileViTV2_x1_0 = partial(MobileViTV2, 1.0)
MobileViTV2_x1_5 = partial(MobileViTV2, 1.5)
MobileViTV2_x2_0 = partial(MobileViTV2, 2.0)
