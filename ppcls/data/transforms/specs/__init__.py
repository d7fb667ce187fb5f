"""The transforms of ``transform_ops`` as frozen specs: what happens to an image, not how.

Each file holds one family of specs and the decisions of its random transforms. ``numpy_ops`` and ``dali_ops``
implement the specs. ``ppcls.registry`` lists all names.
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
