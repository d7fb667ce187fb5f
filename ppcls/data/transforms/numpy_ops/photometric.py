"""Colours and blur by OpenCV."""

from __future__ import annotations

import cv2
import numpy as np

from ppcls.data.transforms.numpy_ops.chain import Array, apply
from ppcls.data.transforms.specs.decisions import Decided
from ppcls.data.transforms.specs.photometric import NO_BLUR, ColorMap, GaussianBlur


@apply.register
def _(spec: ColorMap, image: np.ndarray, decided: Decided) -> Array:
    matrix, offset = decided
    if not offset.any() and (matrix == np.eye(3)).all():
        return image
    return np.asarray(cv2.transform(image, np.column_stack([matrix, offset])))


@apply.register
def _(spec: GaussianBlur, image: np.ndarray, decided: Decided) -> Array:
    (sigma,) = decided
    if sigma <= np.float32(NO_BLUR):
        return image
    kernel = (spec.kernel_size, spec.kernel_size)
    return np.asarray(cv2.GaussianBlur(image, kernel, float(sigma))).reshape(image.shape)
