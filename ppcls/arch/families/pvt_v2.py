"""PVTv2 (Wang et al. 2021, https://arxiv.org/abs/2106.13797), a pyramid of transformer blocks.

Between the convolutions, features are tokens [B, H, W, C].
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.tokens import PatchNorm, ReducedAttention, TokenConvolution
from ppcls.arch.layers.transformer import TransformerBlock, linear
from ppcls.arch.public.names import PublicNames

_EPSILON = 1e-6  # of the layer norms in PaddleClas and timm, except those of the patch embeddings


class DepthwiseMlp(nn.Layer):  # type: ignore[misc]
    """Two linear layers with a depthwise 3x3 convolution and GELU between them.

    Args:
        relu: Whether ReLU precedes the convolution.
    """

    def __init__(
        self, width: int, hidden: int, drop_rate: float, relu: bool, data_format: DataFormat
    ) -> None:
        super().__init__()
        self.fc1 = linear(width, hidden)
        self.fc2 = linear(hidden, width)
        conv = nn.Conv2D(hidden, hidden, 3, padding=1, groups=hidden, data_format=data_format)
        self.dwconv = TokenConvolution("dwconv", conv, data_format)
        self.drop = dropout(drop_rate)
        self._relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, C] to the same shape."""
        x = self.fc1(x)
        x = self.dwconv(F.relu(x) if self._relu else x)
        return self.drop(self.fc2(self.drop(F.gelu(x))))


class PyramidVisionTransformerV2(nn.Layer):  # type: ignore[misc]
    """The PVTv2 network.

    Args:
        widths: Width of a token per stage.
        depths: Number of blocks per stage.
        ratios: Width within the `DepthwiseMlp` divided by the width of a token, per stage.
        linear_cost: Argument of `ReducedAttention`.
        drop_rate: Dropout rate after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^patch_embed1\.": "patch_embed.",
            r"^patch_embed(\d)\.": r"stages.{\1-1}.downsample.",
            r"^block(\d)\.": r"stages.{\1-1}.blocks.",
            r"^norm(\d)\.": r"stages.{\1-1}.norm.",
            r"\.dwconv\.dwconv\.": ".dwconv.",
        },
    )

    channels_last: ClassVar[bool] = True  # features are [B, H, W, C] in both layouts

    def __init__(
        self,
        widths: tuple[int, int, int, int],
        depths: tuple[int, int, int, int],
        ratios: tuple[int, int, int, int] = (8, 8, 4, 4),
        linear_cost: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        channels = input_image_channel
        drops = drop_rate, attn_drop_rate
        for i, (heads, reduction) in enumerate(((1, 8), (2, 4), (5, 2), (8, 1))):
            width = widths[i]
            blocks = nn.LayerList()
            for _ in range(depths[i]):
                attention = ReducedAttention(width, heads, reduction, linear_cost, drops, data_format)
                mlp = DepthwiseMlp(width, ratios[i] * width, drop_rate, linear_cost, data_format)
                block = TransformerBlock(width, attention, mlp, epsilon=_EPSILON, drop_path=next(rates))
                blocks.append(block)
            kernel, stride = (3, 2) if i else (7, 4)
            conv = partial(nn.Conv2D, padding=kernel // 2, data_format=data_format)
            shape = channels, width, kernel, stride
            embed = PatchNorm(conv(*shape), data_format, inputs="tokens" if i else "image")
            self.add_sublayer(f"patch_embed{i + 1}", embed)
            self.add_sublayer(f"block{i + 1}", blocks)
            self.add_sublayer(f"norm{i + 1}", nn.LayerNorm(width, _EPSILON))
            channels = width
        self.head = linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for i in range(1, 5):
            x = getattr(self, f"patch_embed{i}")(x)
            for block in getattr(self, f"block{i}"):
                x = block(x)
            x = getattr(self, f"norm{i}")(x)
        return self.head(x.mean([1, 2]))


_WIDE = (64, 128, 320, 512)
PVT_V2_B0 = partial(PyramidVisionTransformerV2, (32, 64, 160, 256), (2, 2, 2, 2))
PVT_V2_B1 = partial(PyramidVisionTransformerV2, _WIDE, (2, 2, 2, 2))
PVT_V2_B2 = partial(PyramidVisionTransformerV2, _WIDE, (3, 4, 6, 3))
PVT_V2_B2_Linear = partial(PyramidVisionTransformerV2, _WIDE, (3, 4, 6, 3), linear_cost=True)
PVT_V2_B3 = partial(PyramidVisionTransformerV2, _WIDE, (3, 4, 18, 3))
PVT_V2_B4 = partial(PyramidVisionTransformerV2, _WIDE, (3, 8, 27, 3))
PVT_V2_B5 = partial(PyramidVisionTransformerV2, _WIDE, (3, 6, 40, 3), (4, 4, 4, 4))
