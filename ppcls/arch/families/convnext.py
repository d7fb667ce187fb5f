"""ConvNeXt (Liu et al. 2022, https://arxiv.org/abs/2201.03545).

Networks whose names end in 384 have the same structure, for weights that were fine-tuned at 384 x 384 pixels.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import DropPath, drop_paths
from ppcls.arch.layers.sequence import activate_linear, add_linear_branch
from ppcls.arch.layers.tokens import ChannelNorm
from ppcls.arch.layers.transformer import DEVIATION, linear, normal
from ppcls.arch.public.names import PublicNames

_EPSILON = 1e-6  # of the layer norms in PaddleClas, timm and torchvision; Paddle's default is 1e-5
_TO_LAST = [0, 2, 3, 1]
_TO_FIRST = [0, 3, 1, 2]


class ConvNeXtBlock(nn.Layer):  # type: ignore[misc]
    """A depthwise convolution, layer norm, and two linear layers with GELU between them.

    Args:
        channels: Number of channels of input and output.
        scale: Initial value of the learned factor per channel; 0 for no factor.
        drop_path: Probability of skipping the block for an image in training.
    """

    adds_branch: ClassVar[bool] = True  # its sums can use the kernels of `ppcls.arch.fused`

    def __init__(self, channels: int, scale: float, drop_path: float, data_format: DataFormat) -> None:
        super().__init__()
        self.dwconv = _convolution(channels, channels, 7, data_format, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, _EPSILON)
        self.pwconv1 = linear(channels, 4 * channels)
        self.pwconv2 = linear(4 * channels, channels)
        self.gamma = None
        if scale:
            constant = nn.initializer.Constant(scale)
            self.gamma = self.create_parameter([channels], default_initializer=constant)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self._act = F.gelu
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        y = self.dwconv(x)
        y = self.norm(y if self._channels_last else y.transpose(_TO_LAST))
        y = activate_linear(self, self.pwconv1, y, self._act)
        if self._channels_last:
            return add_linear_branch(self, x, y, self.pwconv2, self.drop_path, self.gamma)
        y = self.pwconv2(y)
        if self.gamma is not None:
            y = y * self.gamma
        return x + self.drop_path(y.transpose(_TO_FIRST))


class ConvNeXt(nn.Layer):  # type: ignore[misc]
    """The ConvNeXt network.

    Args:
        depths: Number of blocks of each stage.
        widths: Number of channels of each stage.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
        layer_scale_init_value: Initial value of the learned factor per channel of each block; 0 for no
            factor.
        head_init_scale: Factor for the initial weights of the classifier.
        patch_size: Side of the patches that the first convolution maps to features, in pixels.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^head\.": "head.fc.",
            r"^norm\.": "head.norm.",
            r"^downsample_layers\.0\.": "stem.",
            r"^stages\.(\d)\.": r"stages.\1.blocks.",
            r"^downsample_layers\.(\d)\.": r"stages.\1.downsample.",
            r"\.dwconv\.": ".conv_dw.",
            r"\.pwconv(\d)\.": r".mlp.fc\1.",
        },
        torchvision={
            r"^head\.": "classifier.2.",
            r"^norm\.": "classifier.0.",
            r"^downsample_layers\.(\d)\.": r"features.{2*\1}.",
            r"^stages\.(\d)\.": r"features.{2*\1+1}.",
            r"\.gamma$": ".layer_scale",
            r"\.dwconv\.": ".block.0.",
            r"\.norm\.": ".block.2.",
            r"\.pwconv1\.": ".block.3.",
            r"\.pwconv2\.": ".block.5.",
        },
    )

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        widths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_path_rate: float = 0.0,
        layer_scale_init_value: float = 1e-6,
        head_init_scale: float = 1.0,
        patch_size: int = 4,
    ) -> None:
        super().__init__()
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        self.downsample_layers = nn.LayerList()
        self.stages = nn.LayerList()
        channels = input_image_channel
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            side = 2 if i else patch_size
            halve = _convolution(channels, width, side, data_format, stride=side)
            norm = ChannelNorm(channels if i else width, _EPSILON, data_format)
            self.downsample_layers.append(nn.Sequential(norm, halve) if i else nn.Sequential(halve, norm))
            blocks = [
                ConvNeXtBlock(width, layer_scale_init_value, next(rates), data_format) for _ in range(depth)
            ]
            self.stages.append(nn.Sequential(*blocks))
            channels = width
        self.norm = nn.LayerNorm(channels, _EPSILON)
        self.head = linear(channels, class_num, deviation=DEVIATION * head_init_scale)
        self._pixels = [1, 2] if data_format == "NHWC" else [2, 3]

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for i, stage in enumerate(self.stages):  # Paddle cannot compile zip(..., strict=True)
            x = stage(self.downsample_layers[i](x))
        return self.head(self.norm(x.mean(self._pixels)))


def _convolution(
    in_channels: int,
    out_channels: int,
    kernel: int,
    data_format: DataFormat,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
) -> nn.Conv2D:
    return nn.Conv2D(
        in_channels,
        out_channels,
        kernel,
        stride,
        padding,
        groups=groups,
        weight_attr=normal(),
        data_format=data_format,
    )


_BASE = partial(ConvNeXt, (3, 3, 27, 3), (128, 256, 512, 1024))
_LARGE = partial(ConvNeXt, (3, 3, 27, 3), (192, 384, 768, 1536))

ConvNeXt_tiny = partial(ConvNeXt, (3, 3, 9, 3), (96, 192, 384, 768))
ConvNeXt_small = partial(ConvNeXt, (3, 3, 27, 3), (96, 192, 384, 768))
ConvNeXt_base_224 = ConvNeXt_base_384 = _BASE
ConvNeXt_large_224 = ConvNeXt_large_384 = _LARGE
