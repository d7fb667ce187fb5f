"""Defines the transforms of ``transform_ops`` as frozen specs.

A spec defines the effect of a transform, independent of the backend. Each file has one family of specs, and
the functions that make the decisions of its random transforms. ``numpy_ops`` and ``dali_ops`` implement the
specs. ``ppcls.registry`` lists the names of all transforms.
"""

from ppcls.data.transforms.specs.basic import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.chain import Op, count_draws, plan_chain, split_chain

__all__ = [
    "CropImage",
    "DecodeImage",
    "NormalizeImage",
    "Op",
    "RandCropImage",
    "RandFlipImage",
    "ResizeImage",
    "ToCHWImage",
    "count_draws",
    "plan_chain",
    "split_chain",
]
