"""The subcommands of ``ppcls dataset`` for the user's files: resize, split, stats, index and convert."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import write_output
from ppcls.errors import UserError

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from rich.progress import Progress

    from ppcls.data.index.files import FileIndex
    from ppcls.data.index.protocol import Index
    from ppcls.data.records.shard import RecordFormat
    from ppcls.data.transforms.specs import DecodeImage
    from ppcls.dataset_tools.resize import ResizeJob, ResizeResult

_CONTAINERS = ("webdataset", "tfrecord", "recordio", "lmdb")


def read_source(arguments: argparse.Namespace) -> tuple[FileIndex, tuple[str, ...]]:
    """Returns the labelled images and the class names, which are empty if unknown.

    Raises:
        ppcls.errors.UserError: The folder or list is missing, empty or invalid.
    """
    from ppcls.data.index.class_names import list_class_folders, read_class_names
    from ppcls.data.index.files import read_folder, read_list
    from ppcls.data.records.shard import SHARD_SUFFIXES
    from ppcls.files import IMAGE_EXTENSIONS

    source: Path = arguments.source
    if source.is_dir():
        index = read_folder(source, IMAGE_EXTENSIONS, follow_links=arguments.follow_links)
        return index, list_class_folders(source)
    if source.suffix in SHARD_SUFFIXES:
        raise UserError(
            f"{source}: expected a folder with one subfolder per class, or a list file of 'path label', "
            "found a container"
        )
    root = arguments.image_root or source.parent
    index = read_list(root, source, arguments.delimiter, follow_links=arguments.follow_links)
    names = read_class_names(arguments.names, int(index.labels.max()) + 1) if arguments.names else ()
    return index, names


def progress_bars() -> Progress:
    """Returns progress bars that count images on standard error."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    return Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))


def _resize(arguments: argparse.Namespace) -> None:
    from ppcls.data.bad_images.lists import BadImage, bad_image_error
    from ppcls.dataset_tools.resize import plan_resize, resize_tree
    from ppcls.runtime.hardware import usable_cores

    source = arguments.source
    out = arguments.out
    job = plan_resize(source, out, arguments.max_size, arguments.quality, follow_links=arguments.follow_links)
    with progress_bars() as bars:
        task = bars.add_task(f"{out}", total=len(job.files))
        results = resize_tree(job, usable_cores(), lambda files: bars.advance(task, files))
    _report_resize(job, results)
    bad = [
        BadImage(str(source / path), str(source), result.reason)
        for path, result in results.items()
        if result.done == "bad"
    ]
    if bad:
        raise UserError(f"{len(bad)} bad images were not copied to {out}\n{bad_image_error(bad)}")


def _report_resize(job: ResizeJob, results: dict[Path, ResizeResult]) -> None:
    counts = Counter(result.done for result in results.values())
    images = [path for path, result in results.items() if result.done in ("shrunk", "copied", "there")]
    write_output(
        f"{job.target}: {counts['shrunk']} images shrunk, {counts['copied']} copied unchanged, "
        f"{counts['there']} existed already; {counts['other']} other files copied\n"
    )
    if not images:
        return
    before, after = (sum(getattr(results[path], side) for path in images) for side in ("before", "after"))
    before = before / 1e6
    after = after / 1e6
    write_output(
        f"images: {before:.1f} MB before, {after:.1f} MB after, {before / after:.2f} times smaller\n"
    )


def _split(arguments: argparse.Namespace) -> None:
    import numpy as np

    from ppcls.data.index.split import choose_validation, write_split

    index, names = read_source(arguments)
    validation = choose_validation(index, arguments.val, arguments.seed)
    write_split(index, validation, arguments.out, names, arguments.delimiter)
    training = int((~validation).sum())
    write_output(f"{arguments.out}: {training} images for training, {int(validation.sum())} for validation\n")
    missing = np.setdiff1d(index.labels, index.labels[validation])
    if len(missing):
        classes = [f"{label} ({names[label]})" if names else str(label) for label in missing[:10]]
        more = ", …" if len(missing) > 10 else ""
        write_output(f"classes without validation images: {', '.join(classes)}{more}\n")


def share_or_count(text: str) -> Fraction | int:
    """Returns the value of ``--val``."""
    if text.isascii() and text.isdecimal() and int(text):
        return int(text)
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"expected a share such as 0.2, or an integer > 0, got {text!r}")
    return share


def _stats(arguments: argparse.Namespace) -> None:
    import json

    from ppcls.dataset_tools.mean_std import compute_mean_std
    from ppcls.dataset_tools.stats import collect_stats
    from ppcls.dataset_tools.stats_picture import draw_stats
    from ppcls.files import check_writable, write_text
    from ppcls.runtime.hardware import usable_cores

    name, index, names, decoder = _dataset_to_describe(arguments)
    out: Path = arguments.out
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: expected a folder, found a file")
    check_writable(out)
    with progress_bars() as bars, _advice_on_bad_images(arguments):
        task = bars.add_task(name, total=len(index))
        mean_std = compute_mean_std(index, decoder, usable_cores(), lambda images: bars.advance(task, images))
    stats = collect_stats(name, index.labels, names, mean_std, decoder)
    write_output(stats.describe() + "\n")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "stats.json", json.dumps(stats.as_dict(), indent=1, ensure_ascii=False) + "\n")
    draw_stats(stats, out / "stats.png")
    write_output(f"details: {out}/stats.json and stats.png\n")


@contextmanager
def _advice_on_bad_images(arguments: argparse.Namespace) -> Iterator[None]:
    """Adds advice to the error about a bad image, such as the ``--channels`` to use."""
    from ppcls.data.bad_images.lists import BadImageError

    try:
        yield
    except BadImageError as error:
        match = re.search(r": expected \d+ channels?, found (\d+) channel", str(error))
        if not arguments.source or match is None:
            advice = "fix or remove it; `ppcls dataset check` lists all bad images"
        else:
            images = f"images with {match[1]} channels" if match[1] != "1" else "grey images"
            advice = f"for {images} add --channels {match[1]}"
        raise UserError(f"{error}\n{advice}") from None


def _dataset_to_describe(arguments: argparse.Namespace) -> tuple[str, Index, tuple[str, ...], DecodeImage]:
    """Returns the name, the samples, the class names (empty if unknown) and the decoder of a data set."""
    from ppcls.config.load import load_config
    from ppcls.data.index.read import read_index
    from ppcls.data.transforms.specs import DecodeImage

    if bool(arguments.source) == bool(arguments.config):
        raise UserError("expected either a folder or list file, or -c CONFIG")
    if arguments.source:
        index, names = read_source(arguments)
        decoder = DecodeImage(channels=arguments.channels, dtype=arguments.dtype)
        return str(arguments.source), index, names, decoder
    config = load_config(arguments.config, arguments.override)
    splits = config.DataLoader.splits
    if (split := splits.get(arguments.split)) is None:
        known = f"; known: {', '.join(splits)}" if splits else ""
        raise UserError(f"{arguments.config}: no data set DataLoader.{arguments.split}{known}")
    first = split.dataset.transform_ops[0]
    if not isinstance(first, DecodeImage):
        raise UserError(
            f"{arguments.config}: expected DecodeImage as the first transform, found {first.kind}; "
            "stats describes images only"
        )
    classes = config.class_count(training=arguments.split == "Train")
    return split.dataset.place, read_index(split.dataset, classes), (), first


def _index(arguments: argparse.Namespace) -> None:
    from ppcls.data.records.formats import detect_format
    from ppcls.data.records.shard import default_index_path
    from ppcls.files import write_text

    for path in arguments.files:
        container = detect_format(path, arguments.format)
        text = container.build_index(path)
        index_path = default_index_path(path)
        if text is None:
            raise UserError(f"{path}: {container.name} needs no index file")
        if not index_path.exists():
            write_text(index_path, text)
            write_output(f"{index_path}: written\n")
        elif index_path.read_bytes() == text.encode():
            write_output(f"{index_path}: exists already\n")
        else:
            raise UserError(f"{index_path}: a different index exists already; delete it to write a new one")


def _convert(arguments: argparse.Namespace) -> None:
    from ppcls.data.index.class_names import LABEL_LIST, write_class_names
    from ppcls.dataset_tools.convert import convert, file_sizes, plan_conversion, split_by_size, split_evenly

    index, names = read_source(arguments)
    out: Path = arguments.out

    def ends() -> tuple[int, ...]:
        if arguments.shards:
            return split_evenly(len(index), arguments.shards)
        return split_by_size(file_sizes(index), arguments.shard_size * 10**6)

    split = {"shards": arguments.shards} if arguments.shards else {"shard_size": arguments.shard_size}
    conversion = plan_conversion(index, _record_format(arguments.format, index), out, split, ends)
    if names:
        write_class_names(out / LABEL_LIST, names)
    with progress_bars() as bars:
        task = bars.add_task(f"{out}", total=len(index))
        existing = convert(conversion, lambda images: bars.advance(task, images))
    note = f", {existing} of which existed already" if existing else ""
    write_output(f"{out}: {len(index)} images in {len(conversion.ends)} shards{note}; all verified\n")


def _record_format(name: str, index: FileIndex) -> RecordFormat:
    """Returns the format to write. For WebDataset, it contains the suffixes of all image files."""
    from ppcls.data.records.formats import FORMATS
    from ppcls.data.records.webdataset import WebDatasetFormat

    if name != "webdataset":
        return FORMATS[name]
    suffixes = {Path(index.name(position)).suffix.lower() for position in range(len(index))}
    if "" in suffixes:
        raise UserError(
            f"{index.source}: WebDataset needs file names with a suffix such as .jpg; rename files"
        )
    return WebDatasetFormat(tuple(sorted(suffixes)))


COMMANDS = {"resize": _resize, "split": _split, "stats": _stats, "index": _index, "convert": _convert}
