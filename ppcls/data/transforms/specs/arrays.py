"""Images that are numpy arrays in files."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from ppcls.config.base.fields import Count
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decided, Draws, Sides, decide


class DecodeNumpy(Transform):
    """Reads ``.npy`` files in place of DecodeImage: [height, width, channels] or [height, width], C order."""

    channels: Count = Field(3, description="that every array has; 1 for those of [height, width]")
    dtype: Literal["uint8", "uint16", "float32"] = Field("uint8", description="that every array has")
    max_pixels: Count = Field(
        100_000_000, description="an array of more pixels (width x height) is refused before it is read"
    )

    def after(self, state: ImageState) -> ImageState:
        """Returns a decoded state."""
        if not state.encoded:
            raise ValueError("the image is decoded already; remove this DecodeNumpy")
        return replace(state, encoded=False, channels=self.channels, dtype=self.dtype)


@decide.register
def _(spec: DecodeNumpy, draws: Draws, sides: Sides) -> Decided:
    """The array's shape, [N, 3] int32."""
    return (np.column_stack([sides, np.full(len(sides), spec.channels)]).astype(np.int32),)
