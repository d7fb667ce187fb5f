"""The random crop's window, for one image or a whole batch: the same numbers for every backend."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms import RandCropImage


def random_windows(
    spec: RandCropImage, sides: NDArray[np.integer], draws: NDArray[np.floating]
) -> NDArray[np.int32]:
    """Computes the windows of PaddleClas's RandCropImage.

    The aspect ratio is uniform in ``ratio``, the share of the area uniform in ``scale``, both limited
    to what the image can hold; the place is uniform among all that fit.

    Args:
        spec: The transform.
        sides: [N, 2] heights and widths of the images.
        draws: [N, 4] uniform numbers in [0, 1): aspect, area, left, top.

    Returns:
        [N, 4] int32: top, left, height, width; within the image and not empty.
    """
    height, width = sides.astype(np.float64).T
    draw_aspect, draw_area, draw_left, draw_top = draws.astype(np.float64).T
    aspect = spec.ratio[0] + (spec.ratio[1] - spec.ratio[0]) * draw_aspect
    bound = np.minimum(width / height / aspect, height / width * aspect)
    lowest, highest = np.minimum(spec.scale[0], bound), np.minimum(spec.scale[1], bound)
    area = width * height * (lowest + (highest - lowest) * draw_area)
    cut_width = np.clip(np.floor(np.sqrt(area * aspect)), 1, width)
    cut_height = np.clip(np.floor(np.sqrt(area / aspect)), 1, height)
    left = np.floor((width - cut_width + 1) * draw_left)
    top = np.floor((height - cut_height + 1) * draw_top)
    return np.stack([top, left, cut_height, cut_width], axis=1).astype(np.int32)
