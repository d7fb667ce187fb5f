"""DeiT (Touvron et al. 2020, https://arxiv.org/abs/2012.12877), parameter for parameter as in PaddleClas.

Distilled ones have a second token with a classifier of its own, which learns from a teacher in the paper.
Their logits are the mean of both classifiers', in training too, as in PaddleClas.

Parameters, in millions: DeiT_tiny_patch16_224 5.7, DeiT_small_patch16_224 22.1, DeiT_base_patch16_224 86.6,
DeiT_base_patch16_384 86.9; DeiT_tiny_distilled_patch16_224 5.9, DeiT_small_distilled_patch16_224 22.4,
DeiT_base_distilled_patch16_224 87.3, DeiT_base_distilled_patch16_384 87.6.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from paddle import Tensor

from ppcls.arch.transformer import linear
from ppcls.arch.vision_transformer import VisionTransformer


class DistilledVisionTransformer(VisionTransformer):
    """A ViT with a token and a classifier for distillation; takes what `VisionTransformer` takes."""

    tokens = ("cls_token", "dist_token")

    def __init__(
        self, side: int, patch: int, width: int, depth: int, heads: int, class_num: int = 1000, **others: Any
    ) -> None:
        super().__init__(side, patch, width, depth, heads, class_num=class_num, **others)
        self.head_dist = linear(width, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        x = self.features(x)
        return (self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2


_TINY, _SMALL, _BASE = (192, 12, 3), (384, 12, 6), (768, 12, 12)  # width, depth, heads

DeiT_tiny_patch16_224 = partial(VisionTransformer, 224, 16, *_TINY)
DeiT_small_patch16_224 = partial(VisionTransformer, 224, 16, *_SMALL)
DeiT_base_patch16_224 = partial(VisionTransformer, 224, 16, *_BASE)
DeiT_base_patch16_384 = partial(VisionTransformer, 384, 16, *_BASE)
DeiT_tiny_distilled_patch16_224 = partial(DistilledVisionTransformer, 224, 16, *_TINY)
DeiT_small_distilled_patch16_224 = partial(DistilledVisionTransformer, 224, 16, *_SMALL)
DeiT_base_distilled_patch16_224 = partial(DistilledVisionTransformer, 224, 16, *_BASE)
DeiT_base_distilled_patch16_384 = partial(DistilledVisionTransformer, 384, 16, *_BASE)
