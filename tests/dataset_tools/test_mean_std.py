"""Mean and standard deviation compared with NumPy in float64."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from zoo import make_zoo

from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.index.files import list_files
from ppcls.data.index.protocol import Index
from ppcls.data.index.records import read_records
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import ImageRecord, default_index_path
from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.mean_std import PixelStats, compute_mean_std


def run(index: Index, decoder: DecodeImage | None = None) -> PixelStats:
    done: list[int] = []
    found = compute_mean_std(index, decoder or DecodeImage(), 2, done.append)
    assert sum(done) == len(index)
    return found


def check(found: PixelStats, images: list[np.ndarray]) -> None:
    """Compares with all pixels of all images in one array of float64."""
    pixels = np.concatenate([each.reshape(-1, each.shape[2]) for each in images]).astype(np.float64)
    assert found.pixels == len(pixels)
    np.testing.assert_allclose(found.mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, pixels.std(0), rtol=1e-9)
    assert found.sides.tolist() == [list(each.shape[:2]) for each in images]


@pytest.fixture
def images() -> list[np.ndarray]:
    """More than a batch, of several sizes, dark in one channel."""
    random = np.random.default_rng(0)
    return [
        random.integers(0, (256, 200, 3), (10 + number % 7, 20 + number % 3, 3), np.uint8)
        for number in range(40)
    ]


def save(images: list[np.ndarray], folder: Path) -> list[Path]:
    paths = [folder / f"{number:02}.png" for number in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        Image.fromarray(image).save(path)
    return paths


def test_mean_std_of_files_equals_numpy(images: list[np.ndarray], tmp_path: Path) -> None:
    paths = save(images, tmp_path)
    found = run(list_files(paths))
    check(found, images)
    assert found.sizes.tolist() == [path.stat().st_size for path in paths]


def test_mean_std_of_records_equals_numpy(images: list[np.ndarray], tmp_path: Path) -> None:
    records = [ImageRecord(path.name, path.read_bytes(), 0) for path in save(images, tmp_path)]
    container, path = FORMATS["tfrecord"], tmp_path / "a.tfrecord"
    container.write(path, records)
    text = container.build_index(path)
    assert text is not None
    default_index_path(path).write_text(text)
    found = run(read_records(container, (str(path),), None, 1))
    check(found, images)
    assert found.sizes.tolist() == [len(each.image) for each in records]


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [1, 5])
def test_mean_std_of_other_channels_and_depths(channels: int, dtype: str, tmp_path: Path) -> None:
    random = np.random.default_rng(channels)
    top = np.iinfo(dtype).max
    # The brightest values that there are, where sums are largest.
    images = [random.integers(top - 5, top, (30 + i, 40, channels), dtype, endpoint=True) for i in range(5)]
    paths = [tmp_path / f"{number}.tif" for number in range(5)]
    for image, path in zip(images, paths, strict=True):
        pixels = image if channels > 1 else image[:, :, 0]
        tifffile.imwrite(
            path, pixels, photometric="minisblack", planarconfig="contig" if channels > 1 else None
        )
    check(run(list_files(paths), DecodeImage(channels=channels, dtype=dtype)), images)


def test_mean_std_applies_orientation(photos: dict[str, Path]) -> None:
    width, height = Image.open(photos["turned-landscape"]).size
    assert run(list_files([photos["turned-landscape"]])).sides.tolist() == [[width, height]]


def test_std_of_plain_image_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "plain.png"
    Image.new("RGB", (300, 200), (255, 0, 7)).save(path)
    found = run(list_files([path]))
    assert found.mean == (255, 0, 7)
    assert found.std == (0, 0, 0)


@given(arrays(np.uint16, st.integers(1, 50)), st.integers(1, 10**9))
def test_pixel_stats_are_exact_for_many_pixels(values: np.ndarray, repeats: int) -> None:
    """Also for more pixels than float64 has digits for."""
    numbers = values.tolist()
    sums, squares = sum(numbers) * repeats, sum(each**2 for each in numbers) * repeats
    none = np.zeros((0, 2), np.int64)
    found = PixelStats(len(numbers) * repeats, (sums,), (squares,), none, none)
    np.testing.assert_allclose(found.mean[0], values.astype(np.float64).mean(), rtol=1e-12)
    np.testing.assert_allclose(found.std[0], values.astype(np.float64).std(), rtol=1e-9, atol=1e-9)


def test_mean_std_skips_bad_images_with_their_reasons(photos: dict[str, Path], tmp_path: Path) -> None:
    zoo = make_zoo()
    paths = [Path(shutil.copy(photos["png-odd"], tmp_path / f"{number}.png")) for number in range(3)]
    expected = run(list_files([paths[0], paths[2]]))

    def check(reason: str) -> None:
        found = run(list_files(paths))
        assert [*found.bad] == [1]
        assert re.search(reason, found.bad[1])
        assert (found.pixels, found.sums, found.squares) == (expected.pixels, expected.sums, expected.squares)
        np.testing.assert_array_equal(found.sides, expected.sides)

    paths[1].write_bytes(zoo["half a jpeg"])
    check("the JPEG file is truncated: .*; copy it again$")
    paths[1].unlink()
    check("no such file or directory$")
    paths[1].write_bytes(zoo["uint16 tiff of 5"])
    check("expected 3 channels, found 5 channels$")
    with pytest.raises(BadImageError, match=r"1\.png .*: expected 3 channels, found 5 channels$"):
        run(list_files([paths[1]]))
