"""Measured work: each function runs in its own process and prints nothing.

A function prepares its data in a folder if they are missing, and yields once before the measured work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.scale.model_rows import load_models, restore_checkpoint, save_checkpoint

_IMAGES_PER_CLASS = 650  # of ImageNet-21k
_CHUNK = 200_000
_EPOCHS = 300


def read_list_file(folder: Path, count: int) -> Iterator[None]:
    """Reads a list of ``count`` images without the images, and identifies it, as each rank does."""
    from ppcls.data.index.files import read_list
    from ppcls.data.index.protocol import describe_index

    listing = folder / f"list_{count}.txt"
    if not listing.exists():
        with listing.open("wb") as file:
            for start in range(0, count, _CHUNK):
                numbers = ((at, at // _IMAGES_PER_CLASS) for at in range(start, min(count, start + _CHUNK)))
                lines = [b"n%08d/n%08d_%d.JPEG %d\n" % (c, c, at * 7 % 100_000, c) for at, c in numbers]
                file.write(b"".join(lines))
    yield
    index = read_list(folder, listing, " ", count // _IMAGES_PER_CLASS + 1)
    assert describe_index(index).startswith(f"{count} samples")


def read_class_folders(folder: Path, count: int) -> Iterator[None]:
    """Scans 58 empty files per class, and splits them by ``val_share``."""
    from ppcls.data.index.folders import ImageFolderDataset

    root = folder / f"classes_{count}"
    if not root.exists():
        for label in range(count // 58):
            place = root / f"n{label:08d}"
            place.mkdir(parents=True)
            for at in range(58):
                (place / f"{label}_{at * 37}.JPEG").touch()
    ops = [{"DecodeImage": {}}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": {}}]
    yield
    for part in ("train", "val"):
        fields = {"image_root": str(root), "part": part, "transform_ops": ops}
        ImageFolderDataset.model_validate(fields).read(count // 58)


def skip_bad_images(folder: Path, count: int) -> Iterator[None]:
    """Adds ``count`` bad images one by one, and starts again with the list of them."""
    from ppcls.data.bad_images.quarantine import Quarantine
    from ppcls.data.index.files import FileIndex
    from ppcls.data.transforms.specs import DecodeImage

    file = folder / f"bad_{count}_{os.getpid()}.txt"
    paths = np.array([b"%d.jpg" % at for at in range(10 * count)])
    index = FileIndex(folder, paths, np.zeros(len(paths), np.int64), folder)
    yield
    quarantine = Quarantine(index, file)
    for at in range(count):
        quarantine.add({at: "damaged"})
    Quarantine(index, file).recheck([file], DecodeImage())


def draw_metrics(folder: Path, count: int) -> Iterator[None]:
    """Draws the charts of two evaluations with ``count`` metrics."""
    from ppcls.report.charts import draw_charts
    from ppcls.report.record import EvalRecord

    metrics = {f"recall/{label}": 0.5 for label in range(count)}
    records = [EvalRecord(epoch, epoch, 1.0, metrics, 9, 1.0, best=True) for epoch in (1, 2)]
    yield
    draw_charts(records, folder / f"curves_{os.getpid()}.png")


def draw_long_run(folder: Path, count: int) -> Iterator[None]:
    """Draws ``curves.png`` ten times in a run of 300 epochs with ``count`` training records."""
    from ppcls.report.charts import CurvesPicture
    from ppcls.report.record import EvalRecord, StepRecord

    steps = max(1, count // _EPOCHS)  # records per epoch
    metrics = {"top1": 0.5}
    yield
    picture = CurvesPicture(folder / f"long_{os.getpid()}.png")
    for update in range(1, steps * _EPOCHS + 1):
        epoch = 1 + (update - 1) // steps
        step = 1 + (update - 1) % steps
        loss = 2.0 + 1 / update
        picture.record(StepRecord(epoch, _EPOCHS, step, steps, update, loss, metrics, 0.1, 9.0, 0.0, 1.0))
        if step == steps:
            picture.record(EvalRecord(epoch, update, loss, metrics, 9, 1.0, best=True))
            if epoch % (_EPOCHS // 10) == 0:
                picture.close()  # draws


def resume_history(folder: Path, count: int) -> Iterator[None]:
    """Truncates ``metrics.jsonl`` with ``count`` records near its end, and reads its history."""
    from ppcls.report import jsonlines
    from ppcls.report.record import StepRecord

    path = folder / f"metrics_{count}_{os.getpid()}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for update in range(1, count + 1):
            record = StepRecord(
                1, 9, update, count, update, 2.0 + 1 / update, {"top1": 0.5}, 0.1, 9.0, 0.0, 1.0
            )
            file.write(jsonlines.to_line(record))
    yield
    jsonlines.truncate_after(path, count - count // 50)
    getattr(jsonlines, "read_history", jsonlines.read_records)(path)
    path.unlink()


def change_index(folder: Path, count: int) -> Iterator[None]:
    """Adds an image to an index of ``count`` images, removes it, and maps the index into memory."""
    from ppcls.deploy.image_index import ImageIndex
    from ppcls.deploy.index_folder import add_images, create_index, load_index, remove_images

    path = folder / f"index_{count}"
    if not path.exists():
        vectors = np.random.default_rng(0).random((count, 64), np.float32)
        create_index(path, ImageIndex([Path(f"{at % 1000}/{at}.jpg") for at in range(count)], vectors))
    new = Path("new.jpg")
    yield
    add_images(path, {new: np.zeros(64, np.float32)})
    remove_images(path, [new])
    assert len(load_index(path)) == count


def shuffle_list(folder: Path, count: int) -> Iterator[None]:  # noqa: ARG001 - the signature of a row
    """Computes the order of an epoch of ``count`` images, as each rank does today."""
    from ppcls.data.sampling.epoch_samplers import ShuffledSampler
    from ppcls.data.sampling.order import Cursor, Order

    yield
    order = Order(ShuffledSampler(count), 256, rank=3, world=64)
    order.at(Cursor(0, len(order) // 2))


def shuffle_shards(folder: Path, count: int) -> Iterator[None]:  # noqa: ARG001 - the signature of a row
    """Simulates an order of shards that needs no list of all images, on 64 ranks, and checks it."""
    from benchmarks.scale.shard_order import check_order

    yield
    check_order(count, ranks=64)


ROWS: dict[str, tuple[Callable[[Path, int], Iterator[None]], int, str]] = {
    "list": (read_list_file, 14_200_000, "images in a list"),
    "folders": (read_class_folders, 1_266_778, "images in class folders"),
    "bad-images": (skip_bad_images, 4000, "bad images"),
    "metrics": (draw_metrics, 1000, "metrics in curves.png"),
    "curves": (draw_long_run, 500_000, "records of 300 epochs, drawn ten times in curves.png"),
    "history": (resume_history, 1_500_000, "records at a resume"),
    "save": (save_checkpoint, 100_000_000, "parameters saved with AdamW"),
    "restore": (restore_checkpoint, 100_000_000, "parameters restored with AdamW, on each rank"),
    "models": (load_models, 100, "models of 17 MB loaded into a server with --max-models 10"),
    "index": (change_index, 1_000_000, "images in an index, one added and removed"),
    "order": (shuffle_list, 100_000_000, "images in an order of all images"),
    "shard-order": (shuffle_shards, 100_000_000, "images in an order of shards"),
}
