"""Creates several views of each image for test-time augmentation, which averages the scores of the views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from ppcls.data.transforms.specs import CropImage, ResizeImage
from ppcls.errors import UserError

ViewKind = Literal["flip", "five-crop"]
VIEW_KINDS: tuple[ViewKind, ...] = get_args(ViewKind)


@dataclass(frozen=True)
class ImageViews:
    """Creates views of transformed images.

    Attributes:
        kind: ``flip``: each image and its mirror image. ``five-crop``: crops at the four corners and at the
            centre.
        size: Height and width in pixels that the model expects.
        layout: Layout of the images.
    """

    kind: ViewKind
    size: tuple[int, int]
    layout: Literal["NCHW", "NHWC"]

    def __call__(self, images: Any) -> list[Any]:
        """Returns a list of views, each [B, ...] in ``self.layout``.

        Args:
            images: [B, ...] transformed images, as a NumPy array or a Paddle tensor.
        """
        nchw = self.layout == "NCHW"
        if self.kind == "flip":
            return [images, images[:, :, :, ::-1] if nchw else images[:, :, ::-1]]
        height, width = self.size
        down, right = ((images.shape[2:] if nchw else images.shape[1:3])[side] for side in (0, 1))
        down = down - height
        right = right - width
        corners = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
        windows = [(slice(top, top + height), slice(left, left + width)) for top, left in corners]
        return [
            images[:, :, rows, columns] if nchw else images[:, rows, columns] for rows, columns in windows
        ]


def transforms_for_views(kind: ViewKind, transforms: Sequence[Any]) -> tuple[Any, ...]:
    """Returns transforms that prepare images for a kind of views.

    For ``five-crop``, the size of `CropImage` is increased to the shorter side of the resized image, so that
    the result is large enough for five different crops.

    Raises:
        UserError: The kind is ``five-crop``, but the transforms do not crop the resized image.
    """
    if kind == "flip":
        return tuple(transforms)
    for before, crop in pairwise(transforms):
        if isinstance(before, ResizeImage) and isinstance(crop, CropImage):
            side = before.resize_short
            if side is not None and side > max(crop.size):
                larger = crop.model_copy(update={"size": (side, side)})
                return tuple(larger if spec is crop else spec for spec in transforms)
    raise UserError(
        "--tta five-crop needs ResizeImage with resize_short, followed by CropImage with a smaller size, "
        "such as resize_short 256 and size 224; use --tta flip, or change the transforms"
    )
