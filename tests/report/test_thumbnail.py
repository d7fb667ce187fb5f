from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from ppcls.report.thumbnail import PictureSource, data_uri


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB"), (4, "RGB")])
def test_data_uri_any_number_of_channels_is_a_small_jpeg(channels: int, mode: str) -> None:
    pixels = np.zeros((600, 300, channels), np.uint8)
    pixels[:, :, 0] = 200
    address = data_uri(pixels[:, ::-1])
    kind, _, data = address.partition(",")
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert (image.size, image.mode) == ((64, 128), mode)
        first = image.getpixel((5, 5))
        assert abs((first[0] if isinstance(first, tuple) else first) - 200) < 8
    assert len(address) < 5000


def test_picture_source_is_empty_by_default() -> None:
    assert PictureSource().augmented() == []
    assert PictureSource().evaluated(3) is None
