"""UniFormer (Li et al. 2022, https://arxiv.org/abs/2201.09450): stages of convolutions, then of attention."""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm
from ppcls.arch.layers.drop_path import DropPath, drop_paths, image_dropout
from ppcls.arch.layers.tokens import PatchNorm, PixelMlp, to_image, to_tokens
from ppcls.arch.layers.transformer import SelfAttention, TransformerBlock, linear

_WIDTHS = (64, 128, 320, 512)
_RATIO = 4


class ConvMlp(PixelMlp):
    """A `PixelMlp` whose parameters have the names of this network."""

    names = ("fc1_conv", "fc2_conv")


class LocalBlock(nn.Layer):  # type: ignore[misc]
    """A transformer block with a depthwise 5x5 convolution instead of attention, and batch norm."""

    def __init__(self, channels: int, drop_rate: float, drop_path: float, data_format: DataFormat) -> None:
        super().__init__()
        conv = partial(nn.Conv2D, channels, channels, data_format=data_format)
        self.pos_embed = conv(3, padding=1, groups=channels)
        self.norm1, self.norm2 = (batch_norm(channels, data_format) for _ in range(2))
        self.conv1 = conv(1)
        self.conv2 = conv(1)
        self.attn = conv(5, padding=2, groups=channels)
        self.mlp = ConvMlp(channels, _RATIO * channels, drop_rate, data_format)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        x = x + self.pos_embed(x)
        x = x + self.drop_path(self.conv2(self.attn(self.conv1(self.norm1(x)))))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class GlobalBlock(TransformerBlock):
    """A transformer block for images, which first adds a depthwise convolution of its input.

    Args:
        width: Number of channels.
        attn: Layer that maps tokens to tokens of the same shape.
        scaled: Whether the attention and the `Mlp` each end with a learned factor per channel.
        drops: Dropout rate within the `Mlp`, and probability of skipping the attention or the `Mlp`.
    """

    def __init__(
        self, width: int, attn: nn.Layer, scaled: bool, drops: tuple[float, float], data_format: DataFormat
    ) -> None:
        super().__init__(width, attn, _RATIO * width, epsilon=1e-6, drop_rate=drops[0], drop_path=drops[1])
        self.pos_embed = nn.Conv2D(width, width, 3, padding=1, groups=width, data_format=data_format)
        self._scaled = scaled
        self._data_format = data_format
        if scaled:
            scale = nn.initializer.Constant(1e-6)
            self.gamma_1, self.gamma_2 = (self.create_parameter([width], attr=scale) for _ in range(2))

    def forward(self, x: Tensor, context: None = None) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape. ``context`` is not used."""
        x = to_tokens(x + self.pos_embed(x), self._data_format)
        tokens = x.flatten(1, 2)
        if self._scaled:
            tokens = tokens + self.drop_path(self.gamma_1 * self.attn(self.norm1(tokens)))
            tokens = tokens + self.drop_path(self.gamma_2 * self.mlp(self.norm2(tokens)))
        else:
            tokens = TransformerBlock.forward(self, tokens, context)  # Paddle 2.6 cannot compile super()
        return to_image(tokens.reshape([-1, *x.shape[1:]]), self._data_format)


def overlapping_conv(in_channels: int, widths: tuple[int, ...], data_format: DataFormat) -> nn.Sequential:
    """Returns 3x3 convolutions that halve the size. Each has batch norm, and GELU is between them."""
    layers: list[nn.Layer] = []
    for width in widths:
        conv = nn.Conv2D(in_channels, width, 3, 2, padding=1, data_format=data_format)
        layers += [conv, batch_norm(width, data_format), nn.GELU()]
        in_channels = width
    return nn.Sequential(("proj", nn.Sequential(*layers[:-1])))


class UniFormer(nn.Layer):  # type: ignore[misc]
    """The UniFormer network.

    Args:
        depths: Number of blocks per stage.
        head: Width of a head.
        overlapping: Whether overlapping 3x3 convolutions reduce the size. If False, patches do not overlap.
        scaled: Argument of `GlobalBlock`.
        drop_path_rate: Probability of skipping the last block, decreasing linearly to 0 for the first block.
        drop_rate: Dropout rate after the first patch embedding and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        head: int = 64,
        overlapping: bool = False,
        scaled: bool = False,
        drop_path_rate: float = 0.1,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        channels = input_image_channel
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        attention = partial(SelfAttention, drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        self.pos_drop = image_dropout(drop_rate, data_format)
        for i, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True), 1):
            if overlapping:
                widths = (width // 2, width) if i == 1 else (width,)
                embed = overlapping_conv(channels, widths, data_format)
            else:
                patch = 4 if i == 1 else 2
                conv = nn.Conv2D(channels, width, patch, patch, data_format=data_format)
                embed = PatchNorm(conv, data_format, "proj_conv", outputs="image")
            blocks = list[nn.Layer]()
            for drops in ((drop_rate, next(rates)) for _ in range(depth)):
                if i <= 2:
                    blocks.append(LocalBlock(width, *drops, data_format))
                else:
                    attn = attention(width, width // head)
                    blocks.append(GlobalBlock(width, attn, scaled, drops, data_format))
            self.add_sublayer(f"patch_embed{i}", embed)
            self.add_sublayer(f"blocks{i}", nn.Sequential(*blocks))
            channels = width
        self.norm = batch_norm(channels, data_format)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.head = linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.blocks1(self.pos_drop(self.patch_embed1(x)))
        for i in range(2, 5):
            x = getattr(self, f"blocks{i}")(getattr(self, f"patch_embed{i}")(x))
        return self.head(self.avg_pool(self.norm(x)).flatten(1))


UniFormer_small = partial(UniFormer, (3, 4, 8, 3))
UniFormer_small_plus = partial(UniFormer, (3, 5, 9, 3), 32, True)
UniFormer_small_plus_dim64 = partial(UniFormer, (3, 5, 9, 3), 64, True)
UniFormer_base = partial(UniFormer, (5, 8, 20, 7), drop_path_rate=0.3)
UniFormer_base_ls = partial(UniFormer, (5, 8, 20, 7), scaled=True, drop_path_rate=0.3)
