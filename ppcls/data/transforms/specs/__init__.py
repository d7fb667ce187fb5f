"""The transforms of ``transform_ops`` as frozen specs: what happens to an image, not how.

A file is a family, and has the decisions of its random transforms beside their specs; ``numpy_ops`` and
``dali_ops`` have files of the same names, which interpret them. ``ppcls.registry`` has all names.
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
from ppcls.data.transforms.specs.chain import Op, count_draws, plan_chain

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
]
