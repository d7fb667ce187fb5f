"""MobileViT (Mehta and Rastegari 2021, https://arxiv.org/abs/2110.02178)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat
from ppcls.arch.layers.sequence import ResidualSequence, named
from ppcls.arch.layers.tokens import even, over_patches, resize, sides
from ppcls.arch.layers.transformer import Mlp, SelfAttention
from ppcls.arch.public.names import PublicNames

_DEPTHS = (2, 4, 3)  # number of blocks of each transformer
_HEADS = 4
_DROP = 0.1  # dropout rate of the paper


class MobileViTConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of the MobileViT families."""

    names = ("conv", "norm")


class EncoderLayer(nn.Layer):  # type: ignore[misc]
    """Attention and an `Mlp`, each with a normalization before it and a shortcut around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.attn = SelfAttention(width, _HEADS, drop_rate=_DROP)
        self.mlp = Mlp(width, 2 * width, _DROP, F.silu)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to the same shape."""
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class MobileViTBlock(nn.Layer):  # type: ignore[misc]
    """Convolutions, a transformer, and a convolution that fuses its output with the input.

    The transformer processes pixels that have the same position in their patches.

    Args:
        width: Width of a token.
        depth: Number of blocks of the transformer.
    """

    def __init__(
        self, channels: int, width: int, depth: int, conv: partial[ConvNorm], data_format: DataFormat
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, channels, 3)
        self.conv2 = nn.Conv2D(channels, width, 1, bias_attr=False, data_format=data_format)
        layers = nn.LayerList([EncoderLayer(width) for _ in range(depth)])
        self.transformer = nn.LayerDict({"layers": layers, "norm": nn.LayerNorm(width, 1e-6)})
        self.conv3 = conv(width, channels, 1)
        self.conv4 = conv(2 * channels, channels, 3)
        self._data_format = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape. The transformer gets images with even sides."""
        y = self.conv2(self.conv1(x))
        size = sides(x, self._data_format)
        # Attention is between pixels at the same place of patches of 2 x 2.
        y = resize(y, even(size), self._data_format)
        y = over_patches(self._transform, y, self._data_format, "NHWC")
        y = self.conv3(resize(y, size, self._data_format, "nearest"))
        return self.conv4(paddle.concat([x, y], axis=3 if self._data_format == "NHWC" else 1))

    def _transform(self, x: Tensor) -> Tensor:
        x = x.flatten(0, 1)
        for layer in self.transformer["layers"]:
            x = layer(x)
        return self.transformer["norm"](x)


class MobileViT(nn.Sequential):  # type: ignore[misc]
    """The MobileViT network, which maps images [B, C, H, W] (or NHWC) to logits [B, class_num].

    Args:
        channels: Number of channels of the first convolution, of each stage, and of the features.
        widths: Width of a token in each transformer.
        expansion: Number of channels within an inverted residual divided by that of its input.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"\.(?:conv\.0|block\.exp_1x1)\.(conv|norm)\.": r".conv1_1x1.\1.",
            r"\.(?:conv\.1|block\.conv_3x3)\.(conv|norm)\.": r".conv2_kxk.\1.",
            r"\.block\.red_1x1\.(conv|norm)\.": r".conv3_1x1.\1.",
            r"\.conv\.2\.": ".conv3_1x1.conv.",
            r"\.conv\.3\.": ".conv3_1x1.norm.",
            r"^mv2_block_1\.": "stages.0.0.",
            r"^mv2_block_([234])\.": r"stages.1.{\1-2}.",
            r"^mv2_block_(\d)\.": r"stages.{\1-3}.0.",
            r"^mvit_block_(\d)\.": r"stages.{\1+1}.1.",
            r"(conv\w*)\.norm\.": r"\1.bn.",
            r"\.transformer\.norm\.": ".norm.",
            r"\.transformer\.layers\.(\d)\.attn_norm\.": r".transformer.\1.norm1.",
            r"\.transformer\.layers\.(\d)\.mlp_norm\.": r".transformer.\1.norm2.",
            r"\.transformer\.layers\.": ".transformer.",
            r"\.conv1\.": ".conv_kxk.",
            r"\.conv2\.": ".conv_1x1.",
            r"\.conv3\.": ".conv_proj.",
            r"\.conv4\.": ".conv_fusion.",
            r"^conv3x3\.": "stem.",
            r"^conv1x1\.": "final_conv.",
            r"^linear\.": "head.fc.",
        },
    )

    def __init__(
        self,
        channels: tuple[int, ...],
        widths: tuple[int, int, int],
        expansion: int = 4,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        uniform = nn.initializer.KaimingUniform()
        conv = partial(MobileViTConvNorm, act=F.silu, data_format=data_format, initializer=uniform)
        stem, first, second, *later, features = channels
        pairs = [(stem, first, 1), (first, second, 2), (second, second, 1), (second, second, 1)]
        blocks = {
            f"mv2_block_{i}": _inverted_residual(conv, *pair, expansion) for i, pair in enumerate(pairs, 1)
        }
        for i, (out, width, depth) in enumerate(zip(later, widths, _DEPTHS, strict=True), 1):
            blocks[f"mv2_block_{i + 4}"] = _inverted_residual(conv, second, out, 2, expansion)
            blocks[f"mvit_block_{i}"] = MobileViTBlock(out, width, depth, conv, data_format)
            second = out
        super().__init__(
            ("conv3x3", conv(input_image_channel, stem, 3, 2)),
            *blocks.items(),
            ("conv1x1", conv(second, features, 1)),
            ("pool", nn.AdaptiveAvgPool2D(1, data_format=data_format)),
            ("flatten", nn.Flatten()),
            ("dropout", nn.Dropout(_DROP)),
            ("linear", nn.Linear(features, class_num)),
        )


def _inverted_residual(
    conv: partial[ConvNorm], in_channels: int, out_channels: int, stride: int, expansion: int
) -> ResidualSequence:
    width = in_channels * expansion
    reduce = conv(width, out_channels, 1, act=None, initializer=None)
    layers = {"0": conv(in_channels, width, 1), "1": conv(width, width, 3, stride, width)}
    sequence = nn.Sequential(*layers.items(), *named("2", "3", reduce).items())
    return ResidualSequence({"conv": sequence}, stride == 1 and in_channels == out_channels)


MobileViT_XXS = partial(MobileViT, (16, 16, 24, 48, 64, 80, 320), (64, 80, 96), 2)
MobileViT_XS = partial(MobileViT, (16, 32, 48, 64, 80, 96, 384), (96, 120, 144))
MobileViT_S = partial(MobileViT, (16, 32, 64, 96, 128, 160, 640), (144, 192, 240))
