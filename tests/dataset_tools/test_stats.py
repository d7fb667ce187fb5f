"""Statistics as text, JSON and picture."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.mean_std import PixelStats
from ppcls.dataset_tools.stats import DatasetStats, collect_stats
from ppcls.dataset_tools.stats_picture import draw_stats

MOMENTS = PixelStats(
    pixels=100,
    sums=(100 * 255, 50 * 255),  # half of the pixels of the second channel are 0
    squares=(100 * 255**2, 50 * 255**2),
    sides=np.array([[5, 10], [5, 10], [10, 5]]),
    sizes=np.array([1_000_000, 2_000_000, 6_000_000]),
)


def stats(labels: tuple[int, ...] = (0, 2, 2), names: tuple[str, ...] = ("a $x", "b ü", "c")) -> DatasetStats:
    return collect_stats("mine", np.array(labels), names, MOMENTS, DecodeImage(channels=2))


def test_as_dict_has_all_statistics() -> None:
    found = json.loads(json.dumps(stats().as_dict()))
    assert found["classes"][1:] == [
        {"label": 1, "name": "b ü", "images": 0},
        {"label": 2, "name": "c", "images": 2},
    ]
    assert (found["images"], found["bytes"], found["pixels"]) == (3, 9_000_000, 100)
    assert found["short_side"] == {**dict.fromkeys(("0", "5", "25", "50", "75", "95", "100"), 5), "mean": 5}
    assert (found["width"]["0"], found["width"]["50"], found["width"]["100"]) == (5, 10, 10)
    assert found["bytes_per_image"]["mean"] == 3_000_000
    assert (found["mean"], found["std"]) == ([1, 0.5], [0, 0.5])


def test_collect_stats_uses_ids_without_names() -> None:
    assert [each["name"] for each in stats(names=()).as_dict()["classes"]] == ["0", "1", "2"]


def test_describe_has_lines_for_config() -> None:
    text = stats().describe()
    assert text.startswith("mine: 3 images of 3 classes, 9.0 MB\nimages per class: 0 to 2, median 1\n")
    lines = yaml.safe_load(text[text.index("- Normalize") :])
    assert lines == [{"NormalizeImage": {"scale": "1.0/255.0", "mean": [1, 0.5], "std": [0, 0.5]}}]


def test_draw_stats_writes_picture(tmp_path: Path) -> None:
    path = tmp_path / "stats.png"
    for names in (("a $x", "b $", "猫"), ("long " * 60, "b", "c"), tuple(map(str, range(300)))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as of glyphs that a font lacks, or without room
            draw_stats(replace(stats(names=names), name="folder " * 60), path)
        with Image.open(path) as picture:
            assert picture.size == (1440, 960)
            assert len(picture.convert("RGB").getcolors(2**24) or ()) > 100
    assert [each.name for each in tmp_path.iterdir()] == ["stats.png"]
