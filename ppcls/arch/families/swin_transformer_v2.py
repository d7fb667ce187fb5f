"""Swin Transformer V2 (Liu et al. 2021, https://arxiv.org/abs/2111.09883).

Unlike in version 1, attention compares only the directions of queries and keys, a small network computes the
position biases, and each residual ends with a normalization. As in version 1, images may have any size.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.families.swin_transformer import PatchMerging, SwinTransformer
from ppcls.arch.layers.transformer import TransformerBlock, linear
from ppcls.arch.layers.windows import WindowAttention, add_constant
from ppcls.arch.public.names import PublicNames

_HIDDEN = 512  # width of the hidden layer in the network that computes position biases
_MAX_BIAS = 16.0  # of the code of the authors; the paper has no limit
_MAX_SCALE = 100.0  # 1 / 0.01, where 0.01 is the smallest temperature in section 3.3
# Minimum norm of queries and keys. With a smaller value, the gradients of padding overflow in float16.
_MIN_NORM = 1e-4


class CosineAttention(WindowAttention):
    """Window attention with cosines. A network computes the biases from the logarithms of distances.

    Args:
        trained_window: Side of the windows in pretraining, which scales the distances; 0 for ``window``.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        shift: int,
        drop_rate: float,
        attn_drop_rate: float,
        trained_window: int,
    ) -> None:
        super().__init__(width, heads, window, shift, drop_rate, attn_drop_rate, bias=False)
        start = nn.initializer.Constant(math.log(10))
        self.logit_scale = self.create_parameter([heads, 1, 1], default_initializer=start)
        self.cpb_mlp = nn.Sequential(linear(2, _HIDDEN), nn.ReLU(), linear(_HIDDEN, heads, bias=False))
        self.q_bias, self.v_bias = (self.create_parameter([width], is_bias=True) for _ in range(2))
        add_constant(self, "relative_coords_table", log_distances(window, trained_window or window))

    def project(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to queries, keys and values [B, N, 3 * width]."""
        x = self.qkv(x)  # keys have no bias
        bias = paddle.concat([self.q_bias, paddle.zeros_like(self.q_bias), self.v_bias])
        return x + bias.astype(x.dtype)

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        """Maps queries and keys [B, heads, N, width / heads] to their scaled cosines [B, heads, N, N]."""
        scores = self.scores(_normalize(query), _normalize(key))
        return scores * self.logit_scale.clip(max=math.log(_MAX_SCALE)).exp().astype(scores.dtype)

    def table(self) -> Tensor:
        """Returns the computed biases of all relative positions, [(2 * window - 1) ** 2, heads]."""
        return _MAX_BIAS * F.sigmoid(self.cpb_mlp(self.relative_coords_table).flatten(0, 2))


def _normalize(x: Tensor) -> Tensor:
    """Returns vectors scaled to length 1, computed in float32. Zero vectors stay zero."""
    exact = x.astype("float32")
    squares = exact.square().sum(axis=-1, keepdim=True)
    # Paddle2ONNX 1.3 omits the addition of a number below 1e-6, so zero vectors would become NaN.
    return (exact * squares.clip(min=_MIN_NORM**2).rsqrt()).astype(x.dtype)


def log_distances(window: int, trained_window: int) -> NDArray[np.float32]:
    """Returns the relative positions on a logarithmic scale (equation 4), [1, 2w - 1, 2w - 1, 2]."""
    # 8 is not in the equation but in the code of the authors: the largest trained distance becomes 8, whose
    # logarithm scales the result to about 1.
    distances = np.arange(1 - window, window) / max(trained_window - 1, 1) * 8
    scaled = np.sign(distances) * np.log2(np.abs(distances) + 1) / np.log2(8)
    return np.stack(np.meshgrid(scaled, scaled, indexing="ij"), -1)[None].astype(np.float32)


class PostNormBlock(TransformerBlock):
    """A transformer block whose residuals end with normalization (figure 1)."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Maps tokens [B, ..., width] to the same shape; ``context`` is the mask of `WindowAttention`."""
        x = x + self.drop_path(self.norm1(self.attn(x, context)))
        return x + self.drop_path(self.norm2(self.mlp(x)))


class PostNormMerging(PatchMerging):
    """Merges 2 x 2 tokens into one token of twice the width, and normalizes the result."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 * C]."""
        return self.norm(self.reduction(self.gather(x)))


_WINDOWS = re.compile(r"window(\d+)(?:to(\d+))?_")  # windows in and after pretraining, in names of timm


def _reject_windows(model: nn.Layer, source: str) -> str:
    windows = _WINDOWS.search(source)
    if windows is None:
        return ""
    sides = int(windows[1]), int(windows[2] or windows[1])
    if sides == model.window_sides:
        return ""
    return (
        f"expected windows of {model.window_sides[0]} tokens in pretraining and {model.window_sides[1]} "
        f"after it, got {sides[0]} and {sides[1]}; choose the architecture with these windows"
    )


class SwinTransformerV2(SwinTransformer):
    """The Swin Transformer V2 network.

    Args:
        side: Image side of the publication, in pixels. For such images, no window is larger than the feature
            map of its stage.
        trained_windows: Window side of each stage in pretraining; 0 if it equals that of this network.
        options: Further arguments of `SwinTransformer`.
    """

    public_names: ClassVar[PublicNames] = replace(
        SwinTransformer.public_names,
        reject_source=_reject_windows,
    )

    derived: ClassVar[tuple[str, ...]] = (*SwinTransformer.derived, "relative_coords_table")
    block: ClassVar[type[TransformerBlock]] = PostNormBlock
    merging: ClassVar[type[PatchMerging]] = PostNormMerging

    def __init__(
        self,
        width: int,
        depths: tuple[int, int, int, int],
        heads: int,
        window: int,
        side: int = 256,
        trained_windows: tuple[int, int, int, int] = (0, 0, 0, 0),
        **options: Any,
    ) -> None:
        stages = [
            (min(window, side // 4 >> i), partial(CosineAttention, trained_window=trained))
            for i, trained in enumerate(trained_windows)
        ]
        super().__init__(width, depths, heads, window, stages=stages, shift_single_window=False, **options)
        self.window_sides = trained_windows[0] or window, window  # in pretraining, and in this network


_TINY = partial(SwinTransformerV2, 96, (2, 2, 6, 2), 3, drop_path_rate=0.2)
_SMALL = partial(SwinTransformerV2, 96, (2, 2, 18, 2), 3, drop_path_rate=0.3)
_BASE = partial(SwinTransformerV2, 128, (2, 2, 18, 2), 4, drop_path_rate=0.5)
_FINE_TUNED: dict[str, Any] = {"drop_path_rate": 0.2, "trained_windows": (12, 12, 12, 6)}
_LARGE = partial(SwinTransformerV2, 192, (2, 2, 18, 2), 6, **_FINE_TUNED)

SwinTransformerV2_tiny_patch4_window8_256 = partial(_TINY, 8)
SwinTransformerV2_tiny_patch4_window16_256 = partial(_TINY, 16)
SwinTransformerV2_small_patch4_window8_256 = partial(_SMALL, 8)
SwinTransformerV2_small_patch4_window16_256 = partial(_SMALL, 16)
SwinTransformerV2_base_patch4_window8_256 = partial(_BASE, 8)
SwinTransformerV2_base_patch4_window16_256 = partial(_BASE, 16)
SwinTransformerV2_base_patch4_window24_384 = partial(_BASE, 24, 384, **_FINE_TUNED)
SwinTransformerV2_large_patch4_window16_256 = partial(_LARGE, 16)
SwinTransformerV2_large_patch4_window24_384 = partial(_LARGE, 24, 384)
