from __future__ import annotations

import io

import numpy as np
from made_results import RESULTS
from PIL import Image

from ppcls.bench.results.charts import drawings
from ppcls.bench.results.plots import file_name, to_png


def test_each_chart_is_a_picture() -> None:
    line, bars = drawings(RESULTS)
    blue = np.array([0x21, 0x66, 0xAC])
    for drawing in (line, bars):
        with Image.open(io.BytesIO(to_png(drawing))) as picture:
            assert picture.format == "PNG"
            pixels = np.asarray(picture.convert("RGB"))
        assert (pixels == blue).all(axis=-1).sum() > 50, "the first series"


def test_files_are_named_by_place_and_title() -> None:
    line, bars = drawings(RESULTS)
    assert file_name(1, line) == "01-speed-by-threads.png"
    assert file_name(2, bars) == "02-stages-each-alone.png"
