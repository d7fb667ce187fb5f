"""What every loader must do, whoever reads: one set of tests over DALI and paddle.io."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from ppcls.config.sections.dataset import ImageNetDataset
from ppcls.config.sections.transform import Transform
from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.index.python_source import PythonIndex
from ppcls.data.index.read import Index, read_index
from ppcls.data.index.records import RecordIndex
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings
from ppcls.data.records.formats import FORMATS as CONTAINER_FORMATS
from ppcls.data.records.shard import ImageRecord, OpenFiles, Shard, default_index_path
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.sampling.sampler import (
    BalancedClassSampler,
    IdentitySampler,
    RepeatedAugmentationSampler,
    SequentialSampler,
    ShuffledSampler,
    WeightedRandomSampler,
)
from ppcls.data.transforms.numpy_ops import apply, run
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
from ppcls.data.transforms.specs.decisions import Decisions
from ppcls.data.transforms.specs.erasing import Cutout, RandomErasing
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRotation
from ppcls.data.transforms.specs.photometric import GaussianBlur, RandomGrayscale
from ppcls.data.transforms.specs.rng import uniforms
from ppcls.errors import UserError


class _Collect(Transform):
    """Collects garbage, and leaves the image as it is."""


@apply.register
def _(spec: _Collect, image: np.ndarray, decided: Decisions) -> NDArray[Any]:
    gc.collect()
    return image


Make = Callable[[Index, Order, tuple[Op, ...]], Loader]
Arrays = tuple[NDArray[np.float32], NDArray[np.int64], int, float, bool]

MAKERS: dict[str, Make] = {
    "dali-cpu": partial(DaliLoader, settings=DaliSettings(threads=2, prefetch=4)),  # two pipelines
    "dali-gpu": partial(DaliLoader, settings=DaliSettings(device_id=0, threads=2)),
    "paddle-0": PaddleLoader,
    "paddle-2": partial(PaddleLoader, settings=PaddleSettings(workers=2)),
}
# On a GPU a loader takes seconds to start, so its tests are those of what it does there: decode, hand batches
# over, begin anew. The order, its states and the reader, which works on the CPU, are tested by these.
ON_CPU = ["dali-cpu", "paddle-0", "paddle-2"]
VARIANTS: dict[str, dict[str, Any]] = {
    "static": {"exec_dynamic": False},
    "whole": {"decode_window": False},
    "fast": {"decoder": {"use_fast_idct": True}},
    "cached": {"decode_window": False, "decoder": {"cache_size": 64, "cache_type": "threshold"}},
}
# Two conventions meet here: numpy and OpenCV round resized pixels, and DALI's GPU decodes by itself.
GREY_LEVELS = {"dali-cpu": 1.01, "dali-gpu": 70.0, "paddle": 0.0}
OF_LEVEL = 255 * 0.225


def grey_levels(kind: str) -> float:
    return next(levels for name, levels in GREY_LEVELS.items() if kind.startswith(name))


FORMATS = ("jpeg420", "png", "grey", "turned", "alpha", "progressive", "bmp")
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


# What is no file of its own goes another way into DALI's graph; the containers differ in `read` alone.
SOURCES = ["files", "tfrecord", "lmdb", "python"]


@pytest.fixture(scope="session")
def index(
    request: pytest.FixtureRequest, photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Index:
    """21 photographs of seven formats and three shapes; each label occurs once.

    They are files, or what the test's parameter ``index`` says.
    """
    source = getattr(request, "param", "files")
    files = _files(photos, tmp_path_factory)
    if source == "files":
        return files
    samples = [(files.read(position), int(label)) for position, label in enumerate(files.labels)]
    if source == "python":
        return PythonIndex("photos", _Samples(samples), files.labels)
    return RecordIndex(shards(source, tmp_path_factory.mktemp(source), samples))


class _Samples(list[tuple[bytes, int]]):
    def __getitem__(self, position: Any) -> Any:
        return super().__getitem__(position)[0]


def shards(name: str, folder: Path, samples: list[tuple[bytes, int]]) -> list[Shard]:
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


def _files(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    names = [path.name for name, path in photos.items() if name.split("-")[0] in FORMATS]
    listing = tmp_path_factory.mktemp("lists") / "list.txt"
    listing.write_text("".join(f"{name} {(5 * i + 3) % 21}\n" for i, name in enumerate(names)))
    root = next(iter(photos.values())).parent
    return listed(root, listing)


def listed(root: Path, listing: Path) -> Index:
    dataset = ImageNetDataset(
        image_root=str(root),
        cls_label_path=str(listing),
        transform_ops=tuple(op.spec for op in TRAIN),
    )
    return read_index(dataset, 21)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.gpu if "gpu" in name else ()) for name in MAKERS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str, index: Index) -> Callable[..., Loader]:
    def loader(order: Order = ORDER, ops: tuple[Op, ...] = TRAIN, **options: Any) -> Loader:
        return MAKERS[kind](index, order, ops, **options)

    return loader


def cases(
    names: str, values: Mapping[str, Any], on_gpu: Sequence[str], indirect: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Parametrizes by the CPU's loaders and all cases, and by the GPU's and those named in ``on_gpu``."""
    assert set(on_gpu) <= set(values)
    params = [
        pytest.param(kind, *(value if "," in names else [value]), id=f"{kind}-{name}", marks=marks)
        for kinds, chosen, marks in ((ON_CPU, values, ()), (["dali-gpu"], on_gpu, pytest.mark.gpu))
        for kind in kinds
        for name, value in ((name, values[name]) for name in chosen)
    ]
    return pytest.mark.parametrize(f"kind,{names}", params, indirect=indirect)


def sources(*names: str, on_gpu: Sequence[str] = ("files",)) -> pytest.MarkDecorator:
    """Parametrizes ``index``."""
    return cases("index", {name: name for name in names}, on_gpu, ["index"])


@pytest.fixture(scope="session")
def undisturbed_by() -> dict[tuple[str, Path], list[Arrays]]:
    return {}


@pytest.fixture
def undisturbed(
    kind: str, make: Callable[..., Loader], index: Index, undisturbed_by: dict[Any, list[Arrays]]
) -> list[Arrays]:
    """Three epochs, 18 batches, of TRAIN in ORDER: made once by each loader from each source."""
    key = kind, index.source
    if key not in undisturbed_by:
        undisturbed_by[key] = take(make(), epochs=3)
    return undisturbed_by[key]


def arrays(batch: Batch) -> Arrays:
    return np.array(batch.image), np.array(batch.label), batch.valid, batch.weight, batch.update


def take(loader: Loader, epochs: int = 1) -> list[Arrays]:
    return [arrays(batch) for _ in range(epochs) for batch in loader]


def assert_equal(found: list[Arrays], expected: list[Arrays]) -> None:
    """Bit for bit."""
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1], two[1])
        assert one[2:] == two[2:]


def reference(index: Index, order: Order, ops: tuple[Op, ...], epoch: int) -> Iterator[Arrays]:
    """Yields what numpy_ops makes of the samples that the order names."""
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
        assert np.abs(one[0] - two[0]).max() * OF_LEVEL <= grey_levels(kind) + 0.01
        assert one[1].dtype == np.int64
        np.testing.assert_array_equal(one[1], two[1])
        assert one[2:] == two[2:]


CHAINS = {"train": (TRAIN, (4, 3, 20, 24)), "eval": (EVAL, (4, 20, 24, 3))}


@cases(
    "index,ops,shape",
    {f"{name}-{source}": (source, *chain) for source in SOURCES for name, chain in CHAINS.items()},
    on_gpu=["train-files", "eval-files", "train-tfrecord"],
    indirect=["index"],
)
def test_batches_are_those_of_the_order(
    kind: str, make: Callable[..., Loader], index: Index, ops: tuple[Op, ...], shape: tuple[int, ...]
) -> None:
    loader = make(ops=ops)
    assert len(loader) == 6
    for epoch in range(2):
        found = take(loader)
        assert {each[0].shape for each in found} == {shape}
        check_against_reference(kind, found, index, ORDER, ops, epoch)


def test_augmentations_are_the_same_by_every_loader(
    kind: str, make: Callable[..., Loader], index: Index
) -> None:
    check_against_reference(kind, take(make(ops=AUGMENT)), index, ORDER, AUGMENT, 0)


ORDERS: dict[str, dict[str, Any]] = {
    "in order": {"sampler": SequentialSampler(21)},
    "dropping the last": {"drop_last": True},
    "accumulating": {"accumulate": 4},
    "batches of 21": {"batch_size": 21},
    "batches of 30": {"batch_size": 30},
    "batches of 1": {"batch_size": 1},
    "repeated": {"sampler": RepeatedAugmentationSampler(21, 3, 4)},
    "weighted": {"sampler": WeightedRandomSampler(np.arange(21.0), 30)},
    "balanced": {"sampler": BalancedClassSampler(np.arange(21) % 2, 17)},
    "identities": {"sampler": IdentitySampler(np.arange(21) % 5, 3, 2), "batch_size": 6, "group": 3},
}


@cases("changes", ORDERS, on_gpu=["batches of 30", "batches of 1"])
def test_orders(kind: str, make: Callable[..., Loader], index: Index, changes: dict[str, Any]) -> None:
    order = replace(ORDER, **changes)
    loader = make(order)
    assert len(loader) == len(order)
    check_against_reference(kind, take(loader), index, order, TRAIN, 0)


@pytest.mark.parametrize("kind", ON_CPU)
def test_an_iteration_is_an_epoch(make: Callable[..., Loader]) -> None:
    loader = make()
    for epoch in range(3):
        assert loader.state_dict()["epoch"] == epoch
        batches = take(loader)
        assert [valid for _, _, valid, _, _ in batches] == [4, 4, 4, 4, 4, 1]
        labels = np.concatenate([label[:valid] for _, label, valid, _, _ in batches])
        assert sorted(labels) == list(range(21))
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (3, 0)


@pytest.mark.parametrize("kind", ON_CPU)
def test_a_repeated_image_is_augmented_anew(make: Callable[..., Loader]) -> None:
    """Each of seven images three times: other pixels each time, and on two ranks the same as on one."""
    order = replace(ORDER, sampler=RepeatedAugmentationSampler(21, 3, 6), batch_size=6)
    batches = take(make(order))
    images, labels = (np.concatenate([each[place][: each[2]] for each in batches]) for place in (0, 1))
    assert len(labels) == 21
    for label in set(labels.tolist()):
        one, two, three = images[labels == label]
        for first, second in ((one, two), (one, three), (two, three)):
            assert np.abs(first - second).max() * OF_LEVEL > 10
    ranks = [take(make(replace(order, batch_size=3, world=2, rank=rank))) for rank in (0, 1)]
    for whole, *parts in zip(batches, *ranks, strict=True):
        for place in (0, 1):
            together = np.concatenate([part[place][: part[2]] for part in parts])
            np.testing.assert_array_equal(together, whole[place][: whole[2]])


@pytest.mark.parametrize("kind", ON_CPU)
def test_padded_rows_repeat_real_ones(make: Callable[..., Loader]) -> None:
    batches = take(make(replace(ORDER, sampler=ShuffledSampler(18))))
    image, label, valid, _, _ = batches[-1]
    assert valid == 2
    images, labels = (np.concatenate([each[place] for each in batches])[:18] for place in (0, 1))
    for row in range(valid, 4):
        np.testing.assert_array_equal(image[row], images[list(labels).index(label[row])])


@pytest.mark.parametrize("kind", ON_CPU)
def test_epochs_differ_and_can_be_entered_directly(
    make: Callable[..., Loader], undisturbed: list[Arrays]
) -> None:
    first, second = undisturbed[:6], undisturbed[6:12]
    assert [each[1].tolist() for each in first] != [each[1].tolist() for each in second]
    fresh = make()
    fresh.load_state_dict(ORDER.state_dict(Cursor(1, 0)))
    assert_equal(take(fresh), second)


@pytest.mark.parametrize("kind", ON_CPU)
def test_unshuffled_epochs_keep_the_order_and_change_the_crops(make: Callable[..., Loader]) -> None:
    loader = make(replace(ORDER, sampler=SequentialSampler(21)))
    first, second = take(loader), take(loader)
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[1], two[1])
        assert not np.array_equal(one[0], two[0])


def test_going_on_from_every_step(kind: str, make: Callable[..., Loader]) -> None:
    loader = make()
    states, undisturbed = [loader.state_dict()], []
    for _ in range(2):
        for batch in loader:
            undisturbed.append(arrays(batch))
            states.append(loader.state_dict())
    assert len(undisturbed) == 12
    for step in range(7) if kind in ON_CPU else (2, 6):
        resumed = make()
        resumed.load_state_dict(states[step])
        assert resumed.state_dict() == states[step]
        rest = take(resumed)
        assert_equal(rest, undisturbed[step : 6 if step < 6 else 12])
        if step in (2, 5):  # and the epoch after it
            assert_equal(take(resumed), undisturbed[6:])


@sources("files", "tfrecord")
def test_breaking_off_and_seeking(make: Callable[..., Loader], undisturbed: list[Arrays]) -> None:
    loader = make()
    moves = [
        (0, 0, 3),
        (0, 1, 2),
        (0, 4, 2),
        (2, 1, 1),
        (0, 0, 1),
        (0, 1, 5),
        (1, 5, 1),
        (1, 5, 1),
        (0, 3, 1),
        (0, 5, 1),
    ]
    for epoch, step, count in moves:
        loader.load_state_dict(ORDER.state_dict(Cursor(epoch, step)))
        found = [arrays(batch) for batch in islice(loader, count)]
        assert_equal(found, undisturbed[6 * epoch + step : 6 * epoch + step + count])
        assert loader.state_dict() == ORDER.state_dict(
            Cursor(epoch, step + count) if step + count < 6 else Cursor(epoch + 1, 0)
        )


def test_breaking_off_goes_on_where_it_was(make: Callable[..., Loader], undisturbed: list[Arrays]) -> None:
    loader = make()
    found = [arrays(batch) for batch in islice(loader, 2)]
    assert_equal(found + take(loader), undisturbed[:6])


@pytest.mark.parametrize("kind", ON_CPU)
def test_a_state_of_another_run_is_refused(make: Callable[..., Loader]) -> None:
    loader = make()
    with pytest.raises(UserError, match="in the middle of epoch 1, but seed was 4 and is 3"):
        loader.load_state_dict(replace(ORDER, seed=4).state_dict(Cursor(0, 2)))
    assert len(take(loader)) == 6


@cases(
    "index,size",
    {f"{size}-{source}": (source, size) for source in ("files", "lmdb") for size in (21, 19, 17)},
    on_gpu=["21-files"],
    indirect=["index"],
)
def test_two_ranks_make_one(make: Callable[..., Loader], size: int) -> None:
    whole = take(make(replace(ORDER, sampler=ShuffledSampler(size))))
    ranks = [
        take(make(replace(ORDER, sampler=ShuffledSampler(size), batch_size=2, world=2, rank=rank)))
        for rank in (0, 1)
    ]
    for one, *parts in zip(whole, *ranks, strict=True):
        assert sum(part[2] for part in parts) == one[2]
        for place in (0, 1):
            together = np.concatenate([part[place][: part[2]] for part in parts])
            np.testing.assert_array_equal(together, one[place][: one[2]])
        assert sum(part[3] for part in parts) == pytest.approx(2 * one[3])


def test_a_kept_batch_does_not_change(make: Callable[..., Loader]) -> None:
    kept, copies = [], []
    for _ in range(2):
        for batch in make():
            kept.append(batch)
            copies.append(arrays(batch))
    assert_equal([arrays(batch) for batch in kept], copies)


@sources("files", "lmdb")
def test_several_loaders_at_once(make: Callable[..., Loader], undisturbed: list[Arrays]) -> None:
    orders = [ORDER, replace(ORDER, seed=4), replace(ORDER, batch_size=5)]
    expected = [undisturbed[:6], *(take(make(order)) for order in orders[1:])]
    loaders = [make(order) for order in orders]
    turns = [iter(loader) for loader in loaders]
    found: list[list[Arrays]] = [[] for _ in orders]
    for _ in range(6):
        for turn, batches in zip(turns, found, strict=True):
            batches += [arrays(batch) for batch in islice(turn, 1)]
    for one, two in zip(found, expected, strict=True):
        assert_equal(one, two)


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        *(("dali-cpu", variant) for variant in ("static", "whole", "fast")),
        *(
            pytest.param("dali-gpu", variant, marks=pytest.mark.gpu)
            for variant in ("static", "whole", "cached")
        ),
    ],
)
def test_settings_change_no_batch(kind: str, variant: str, index: Index, undisturbed: list[Arrays]) -> None:
    """But for a grey level at the borders of windows, where chroma is scaled up from what was decoded."""
    settings = DaliSettings(None if kind == "dali-cpu" else 0, threads=2)
    varied = take(DaliLoader(index, ORDER, TRAIN, replace(settings, **VARIANTS[variant])), epochs=3)
    for a, b in zip(varied, undisturbed, strict=True):
        assert (np.abs(a[0] - b[0]) * OF_LEVEL).mean() < (0.0001 if variant == "static" else 1.0)
        np.testing.assert_array_equal(a[1], b[1])


def test_decisions_do_not_depend_on_the_backend(index: Index) -> None:
    """The same windows and flips: images differ by rounding only."""
    dali, paddle = (take(MAKERS[name](index, ORDER, TRAIN)) for name in ("dali-cpu", "paddle-2"))
    for one, two in zip(dali, paddle, strict=True):
        assert one[1].tolist() == two[1].tolist()
        assert np.abs(one[0] - two[0]).max() * OF_LEVEL <= 1.02
        assert np.abs(one[0] - two[0][:, :, :, ::-1]).max() * OF_LEVEL > 50, "a flip would be seen"


def test_threads_change_no_pixel(index: Index) -> None:
    assert_equal(
        take(DaliLoader(index, ORDER, TRAIN, DaliSettings(threads=1))),
        take(DaliLoader(index, ORDER, TRAIN, DaliSettings(threads=4, prefetch=8))),
    )


@pytest.mark.parametrize("prefetch", [1, 3, 9])
def test_prefetching_changes_no_batch(index: Index, prefetch: int) -> None:
    loader = DaliLoader(index, ORDER, TRAIN, DaliSettings(threads=2, prefetch=prefetch))
    assert_equal(take(loader, epochs=2), take(MAKERS["dali-cpu"](index, ORDER, TRAIN), epochs=2))
    loader.load_state_dict(ORDER.state_dict(Cursor(1, 4)))
    assert_equal(take(loader), take(MAKERS["dali-cpu"](index, ORDER, TRAIN), epochs=2)[-2:])


def test_without_shared_memory(index: Index) -> None:
    assert_equal(
        take(PaddleLoader(index, ORDER, TRAIN, PaddleSettings(workers=1, use_shared_memory=False))),
        take(PaddleLoader(index, ORDER, TRAIN)),
    )


def test_workers_do_not_inherit_what_is_left_of_dali(index: Index) -> None:
    """A forked worker that collects a pipeline hangs or crashes: the pipeline's threads are not there."""
    order = Order(SequentialSampler(2), batch_size=2)
    gc.disable()  # so that the pipeline is still there when the worker starts
    try:
        cycle: list[Any] = [MAKERS["dali-cpu"](index, order, TRAIN)]
        take(cycle[0])
        cycle.append(cycle)
        del cycle
        found = take(
            PaddleLoader(index, order, (*TRAIN[:1], Op(_Collect(), 0), *TRAIN[1:]), PaddleSettings(workers=1))
        )
    finally:
        gc.enable()
    assert_equal(found, take(MAKERS["paddle-0"](index, order, TRAIN)))


def test_a_released_loader_holds_no_threads_and_goes_on(
    kind: str, make: Callable[..., Loader], undisturbed: list[Arrays]
) -> None:
    tasks = Path("/proc/self/task")
    loader = make()
    found = [arrays(batch) for batch in islice(loader, 2)]
    during = len(list(tasks.iterdir()))
    loader.release()
    assert len(list(tasks.iterdir())) < during or "paddle" in kind
    found += take(loader)
    loader.release()
    found += take(loader)
    assert_equal(found, undisturbed[:12])


def test_an_iteration_that_is_broken_off_leaves_no_worker(index: Index) -> None:
    loader = MAKERS["paddle-2"](index, ORDER, TRAIN)
    for _ in range(3):
        assert len(list(islice(loader, 1))) == 1
        gc.collect()
        assert multiprocessing.active_children() == []


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("this is not an image\n" * 20)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def huge(path: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(path, "PNG")


def gif(path: Path) -> None:
    Image.new("RGB", (30, 30)).save(path, "GIF")


def five_channels(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((30, 30, 5), np.uint8), photometric="minisblack", planarconfig="contig")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.fixture
def many(photos: dict[str, Path], tmp_path: Path) -> Path:
    """A folder of twelve JPEGs, with their list."""
    for number in range(12):
        shutil.copy(photos["jpeg420-odd"], tmp_path / f"{number}.jpg")
    (tmp_path / "list.txt").write_text("\n".join(f"{number}.jpg {number}" for number in range(12)))
    return tmp_path


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (missing, "no such file or directory"),
    "empty": (empty, "the file is empty"),
    "text": (text, "not an image that can be decoded"),
    "cut": (cut, "not an image that can be decoded"),
    "half": (half, "not an image that can be decoded"),
    "gif": (gif, "not an image that can be decoded"),
    "huge": (huge, "20000x20000 pixels are more than DecodeImage's max_pixels, 100000000"),
    "five channels": (five_channels, "expected 3 channels, found 5 channels"),
    "folder": (folder, "is a directory"),
}


@cases("spoil,reason", SPOILT, on_gpu=["missing", "text", "half"])
def test_a_bad_image_is_named(
    kind: str, many: Path, spoil: Callable[[Path], None], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(many / "7.jpg")
    loader = MAKERS[kind](listed(many, many / "list.txt"), Order(SequentialSampler(12), batch_size=2), TRAIN)
    found: list[Arrays] = []
    with pytest.raises(BadImageError) as caught:
        found.extend(map(arrays, loader))
    assert str(caught.value) == f"{many}/7.jpg ({many}/list.txt, line 8): {reason}"
    assert isinstance(caught.value, UserError)
    assert len(found) <= 3, "the bad image's batch, the fourth, is not handed out"
    assert "Traceback" not in capfd.readouterr().err


@cases("source", {name: name for name in (*CONTAINER_FORMATS, "python")}, on_gpu=["tfrecord"])
def test_a_bad_record_is_named(kind: str, many: Path, source: str) -> None:
    """The eleventh of twelve: the second record of the second shard."""
    good = (many / "0.jpg").read_bytes()
    samples = [(good[:40] if number == 10 else good, number) for number in range(12)]
    if source == "python":
        index: Index = PythonIndex("mine", _Samples(samples), np.arange(12))
        place = "Python source 'mine' (sample 10)"
    else:
        index = RecordIndex(shards(source, many, samples))
        second = many / f"9{CONTAINER_FORMATS[source].suffix}"
        shard = CONTAINER_FORMATS[source].open(second, default_index_path(second), OpenFiles())
        place = f"{second} ({shard.where(1)})"
    loader = MAKERS[kind](index, Order(SequentialSampler(12), batch_size=2), TRAIN)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    assert str(caught.value) == f"{place}: not an image that can be decoded"


@pytest.mark.parametrize("kind", ON_CPU)
def test_a_record_mended_in_place_is_read_by_the_same_loader(kind: str, many: Path) -> None:
    good = (many / "0.jpg").read_bytes()
    index = RecordIndex(shards("tfrecord", many, [(good, number) for number in range(12)]))
    path = many / "9.tfrecord"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    loader = MAKERS[kind](index, Order(SequentialSampler(12), batch_size=2), TRAIN)
    found: list[Arrays] = []
    with pytest.raises(BadImageError, match="checksum"):
        found.extend(map(arrays, loader))
    read = path.stat()
    path.write_bytes(whole)
    os.utime(path, ns=(read.st_atime_ns, read.st_mtime_ns))  # a file that looks changed is refused
    found += take(loader)
    assert [label for _, labels, _, _, _ in found for label in labels] == list(range(12))


@pytest.mark.parametrize("kind", ON_CPU)
def test_all_bad_images_of_a_batch_are_named(kind: str, many: Path) -> None:
    for number in (4, 5):
        missing(many / f"{number}.jpg")
    loader = MAKERS[kind](listed(many, many / "list.txt"), Order(SequentialSampler(12), batch_size=12), TRAIN)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    lines = str(caught.value).splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"{many}/4.jpg", f"{many}/5.jpg"]


@pytest.mark.parametrize("kind", ON_CPU)
def test_ten_bad_images_are_shown(kind: str, many: Path) -> None:
    for number in range(12):
        empty(many / f"{number}.jpg")
    loader = MAKERS[kind](listed(many, many / "list.txt"), Order(SequentialSampler(12), batch_size=15), TRAIN)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 2 more"


ODD_NAMES = (
    "with blanks .jpg",
    'O\'Neill "x".jpg',
    "Käse 猫.jpg",
    "a\tb.jpg",
    "%2F $x;`y`.jpg",
    b"\xff\xfe.jpg",
)


@pytest.mark.parametrize("kind", ON_CPU)
def test_names_are_as_the_file_system_has_them(kind: str, many: Path) -> None:
    names = [os.fsencode(name) for name in ODD_NAMES]
    for name in names:
        shutil.copy(many / "0.jpg", many / os.fsdecode(name))
    (many / "list.txt").write_bytes(b"".join(name + b" 1\n" for name in names))
    order = Order(SequentialSampler(len(names)), batch_size=3)
    images = [image for image, *_ in take(MAKERS[kind](listed(many, many / "list.txt"), order, EVAL))]
    assert len(np.concatenate(images)) == 6
    assert np.ptp(np.concatenate(images), axis=0).max() == 0


def test_a_misnamed_image_is_read_by_what_it_is(kind: str, many: Path, photos: dict[str, Path]) -> None:
    for number, source in enumerate(("png", "tiff", "bmp", "webp", "jpeg2000")):
        shutil.copy(photos[f"{source}-odd"], many / f"{number}.jpg")
    index = listed(many, many / "list.txt")
    order = Order(SequentialSampler(12), batch_size=12)
    check_against_reference(kind, take(MAKERS[kind](index, order, EVAL)), index, order, EVAL, 0)


DEEP = plan_chain(
    [
        DecodeImage(channels=5, dtype="uint16"),
        RandCropImage(size=(24, 20)),
        RandFlipImage(),
        NormalizeImage(scale=1 / 65535, mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(0.225,) * 5),
    ],
    "CHW",
)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """A folder of eight 16-bit TIFFs of five channels, with their list; the fourth and fifth compressed."""
    rng = np.random.default_rng(3)
    for number in range(8):
        shape = (30 + number, 40 - number, 5)
        tifffile.imwrite(
            tmp_path / f"{number}.tif",
            rng.integers(0, 65536, shape, np.uint16),
            photometric="minisblack",
            planarconfig="contig",
            compression={3: "lzw", 4: "zlib"}.get(number),
        )
    (tmp_path / "list.txt").write_text("".join(f"{number}.tif {number}\n" for number in range(8)))
    return tmp_path


def test_images_of_five_channels(kind: str, cells: Path) -> None:
    index, order = listed(cells, cells / "list.txt"), Order(ShuffledSampler(8), batch_size=4)
    found = take(MAKERS[kind](index, order, DEEP))
    assert {each[0].shape for each in found} == {(4, 5, 20, 24)}
    check_against_reference(kind, found, index, order, DEEP, 0)


@pytest.mark.parametrize("kind", ON_CPU)
def test_an_image_of_other_channels_is_bad(kind: str, cells: Path, photos: dict[str, Path]) -> None:
    for number, name in enumerate(("grey-odd", "jpeg420-odd", "alpha-odd"), start=3):
        shutil.copy(photos[name], cells / f"{number}.tif")
    loader = MAKERS[kind](listed(cells, cells / "list.txt"), Order(SequentialSampler(8), batch_size=8), DEEP)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    assert str(caught.value).splitlines() == [
        f"{cells}/{number}.tif ({cells}/list.txt, line {number + 1}): expected 5 channels, found {found}"
        for number, found in ((3, "1 channel"), (4, "3 channels"), (5, "4 channels"))
    ]


def test_a_mended_image_is_read_by_the_same_loader(kind: str, many: Path) -> None:
    good = (many / "0.jpg").read_bytes()
    empty(many / "7.jpg")
    loader = MAKERS[kind](listed(many, many / "list.txt"), Order(SequentialSampler(12), batch_size=2), TRAIN)
    found: list[Arrays] = []
    with pytest.raises(BadImageError):
        found.extend(map(arrays, loader))
    (many / "7.jpg").write_bytes(good)
    found += take(loader)
    assert_equal(
        found,
        take(
            MAKERS[kind](listed(many, many / "list.txt"), Order(SequentialSampler(12), batch_size=2), TRAIN)
        ),
    )


@pytest.mark.parametrize("kind", ON_CPU)
def test_batches_name_their_samples(make: Callable[..., Loader]) -> None:
    loader = make()
    for step, batch in enumerate(loader):
        assert batch.positions is not None
        np.testing.assert_array_equal(batch.positions, loader.order.at(Cursor(0, step)).indices)
        labels = np.asarray(batch.label.numpy())
        np.testing.assert_array_equal(labels, loader.index.labels[batch.positions])
