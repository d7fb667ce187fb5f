"""Helpers of the conformance suite that every loader must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings
from ppcls.data.records.formats import FORMATS as CONTAINER_FORMATS
from ppcls.data.records.shard import ImageRecord, OpenFiles, Shard, default_index_path
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import (
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    count_draws,
    plan_chain,
)
from ppcls.data.transforms.specs.erasing import Cutout, RandomErasing
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRotation
from ppcls.data.transforms.specs.photometric import GaussianBlur, RandomGrayscale
from ppcls.data.transforms.specs.rng import uniforms

Make = Callable[[Index, Order, tuple[Op, ...]], Loader]
Arrays = tuple[NDArray[np.float32], NDArray[np.int64], int, float, bool]

MAKERS: dict[str, Make] = {
    "dali-cpu": partial(DaliLoader, settings=DaliSettings(threads=2, prefetch=4)),  # two pipelines
    "dali-gpu": partial(DaliLoader, settings=DaliSettings(device_id=0, threads=2)),
    "dali-gpu-and-cpu": partial(
        DaliLoader, settings=DaliSettings(device_id=0, threads=2, prefetch=6, turns=(False, True, False))
    ),
    "paddle-0": PaddleLoader,
    "paddle-2": partial(PaddleLoader, settings=PaddleSettings(workers=2)),
}
# Worker processes and a GPU take seconds to start. Tests of the order, its states and the images, which are
# the same code on all backends, run on the fast loaders; the slow ones run the tests of what differs there.
FAST = ["dali-cpu", "paddle-0"]
# NumPy and OpenCV round resized pixels, DALI does not; and the GPU has another decoder.
MAX_DIFFERENCE = {  # grey levels
    "dali-cpu": 1.01,
    "dali-gpu": 70.0,
    "dali-gpu-and-cpu": 70.0,
    "paddle-0": 0.0,
    "paddle-2": 0.0,
}
GREY_LEVELS = 255 * 0.225  # per unit of normalized images

FORMATS = ("jpeg420", "png", "grey", "turned", "alpha", "progressive", "bmp")
# Files and other samples enter DALI's graph in two ways; containers differ only in how they are read.
SOURCES = ["files", "tfrecord", "lmdb", "python"]

TRAIN = plan_chain(
    [DecodeImage(), RandCropImage(size=(24, 20)), RandFlipImage(), NormalizeImage(order="")], "CHW"
)
AUGMENT = plan_chain(
    [
        *(DecodeImage(), RandCropImage(size=(24, 20)), RandFlipImage(), GaussianBlur(kernel_size=3)),
        *(RandomRotation(degrees=30), RandomGrayscale(prob=0.5), Pad(padding=4, padding_mode="reflect")),
        *(RandomCropImage(size=(24, 20)), NormalizeImage(), RandomErasing(mode="pixel"), Cutout(length=8)),
    ],
    "CHW",
)
EVAL = plan_chain([DecodeImage(), ResizeImage(size=(24, 20)), NormalizeImage()], "HWC")
ORDER = Order(ShuffledSampler(21), batch_size=4, seed=3)  # six steps, the last of one sample


class Samples(list[tuple[bytes, int]]):
    """Samples as a Python source: an item is the image's bytes."""

    def __getitem__(self, position: Any) -> Any:
        return super().__getitem__(position)[0]


def write_shards(name: str, folder: Path, samples: list[tuple[bytes, int]]) -> list[Shard]:
    """Writes samples as two shards and opens them."""
    container = CONTAINER_FORMATS[name]
    opened = []
    for begin in (0, 9):
        path = folder / f"{begin}{container.suffix}"
        part = samples[begin : begin + 9] if begin == 0 else samples[begin:]
        container.write(path, [ImageRecord(f"{i}.jpg", *sample) for i, sample in enumerate(part)])
        text = container.build_index(path)
        if text is not None:
            default_index_path(path).write_text(text)
        opened.append(container.open(path, default_index_path(path), OpenFiles()))
    return opened


def photo_files(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    names = [path.name for name, path in photos.items() if name.split("-")[0] in FORMATS]
    listing = tmp_path_factory.mktemp("lists") / "list.txt"
    listing.write_text("".join(f"{name} {(5 * i + 3) % 21}\n" for i, name in enumerate(names)))
    root = next(iter(photos.values())).parent
    return read_list(root, listing)


def read_list(root: Path, listing: Path) -> Index:
    dataset = ImageNetDataset(
        image_root=str(root),
        cls_label_path=str(listing),
        transform_ops=tuple(op.spec for op in TRAIN),
    )
    return dataset.read(21)


def folder_loader(kind: str, folder: Path, batch_size: int = 2, ops: tuple[Op, ...] = TRAIN) -> Loader:
    """Loads the images of ``list.txt`` in a folder, in its order."""
    index = read_list(folder, folder / "list.txt")
    return MAKERS[kind](index, Order(SequentialSampler(len(index)), batch_size=batch_size), ops)


def cases(
    names: str, values: Mapping[str, Any], on_slow: Sequence[str], indirect: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Parametrizes the fast loaders by all cases, and the slow loaders by those named in ``on_slow``."""
    assert set(on_slow) <= set(values)
    params = [
        pytest.param(
            *(kind, *(values[name] if "," in names else [values[name]])),
            id=f"{kind}-{name}",
            marks=pytest.mark.gpu if "gpu" in kind else (),
        )
        for kind in MAKERS
        for name in (values if kind in FAST else on_slow)
    ]
    return pytest.mark.parametrize(f"kind,{names}", params, indirect=indirect)


def sources(*names: str, on_slow: Sequence[str] = ("files",)) -> pytest.MarkDecorator:
    """Parametrizes ``kind`` and ``index``."""
    return cases("index", {name: name for name in names}, on_slow, ["index"])


def arrays(batch: Batch) -> Arrays:
    return np.array(batch.image), np.array(batch.label), batch.valid, batch.weight, batch.update


def take(loader: Loader, epochs: int = 1) -> list[Arrays]:
    return [arrays(batch) for _ in range(epochs) for batch in loader]


def assert_equal(found: list[Arrays], expected: list[Arrays]) -> None:
    """Asserts that two lists of batches are equal, bit for bit."""
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1], two[1])
        assert one[2:] == two[2:]


def reference(index: Index, order: Order, ops: tuple[Op, ...], epoch: int) -> Iterator[Arrays]:
    """Yields the batches of an epoch, computed by numpy_ops."""
    for number in range(len(order)):
        step = order.at(Cursor(epoch, number))
        draws = uniforms(order.seed, epoch, step.indices, count_draws(ops), step.repeats)
        images = [run(ops, index.read(int(i)), row) for i, row in zip(step.indices, draws, strict=True)]
        yield np.stack(images), index.labels[step.indices], step.valid, step.weight, step.update


def check_against_reference(
    kind: str, found: list[Arrays], index: Index, order: Order, ops: tuple[Op, ...], epoch: int
) -> None:
    expected = list(reference(index, order, ops, epoch))
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert one[0].shape == two[0].shape
        assert one[0].dtype == np.float32
        assert np.abs(one[0] - two[0]).max() * GREY_LEVELS <= MAX_DIFFERENCE[kind] + 0.01
        assert one[1].dtype == np.int64
        np.testing.assert_array_equal(one[1], two[1])
        assert one[2:] == two[2:]
