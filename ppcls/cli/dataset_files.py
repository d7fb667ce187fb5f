"""The subcommands of ``ppcls dataset`` for the user's files: resize, split, stats, index and convert."""

from __future__ import annotations

import argparse
import errno
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from ppcls.cli.arguments.options import Exclusive, argument, option, required
from ppcls.cli.command import Command, write_output
from ppcls.cli.shared_options import trust_option
from ppcls.commands import command_line
from ppcls.data.index.arrays.list_line import read_delimiter
from ppcls.errors import UserError, counted
from ppcls.files import print_error
from ppcls.runtime.signals import interruptible

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from rich.progress import Progress

    from ppcls.data.index.files import FileIndex
    from ppcls.data.index.protocol import Index
    from ppcls.data.records.shard import RecordFormat
    from ppcls.data.transforms.specs import DecodeImage
    from ppcls.dataset_tools.resize import ResizeJob, ResizeResult

_SHOWN_BAD_IMAGES = 10
_CONTINUE = "run the same command again to continue"
_SHARDS = Exclusive()
ContainerFormat = Literal["webdataset", "tfrecord", "recordio", "lmdb"]
O = TypeVar("O")  # noqa: E741 - a class of options


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


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Options of a command that reads list files."""

    image_root: Path | None = option(
        None, "folder to which the paths in a list are relative (default: the list's folder)"
    )
    follow_links: bool = option(
        False, "follow symbolic links that point outside the folder, and use the images there"
    )
    delimiter: str = option(
        " ", "separator of path and label in a list (default: a space)", read=read_delimiter
    )

    def read_list(self, listing: Path) -> FileIndex:
        """Returns the labelled images of a list file.

        Raises:
            ppcls.errors.UserError: The list is missing, empty or invalid.
        """
        from ppcls.data.index.files import read_list

        root = self.image_root or listing.parent
        return read_list(root, listing, self.delimiter, follow_links=self.follow_links)


@dataclass(frozen=True, kw_only=True)
class LabelledImagesOptions(ListOptions):
    """Options of a command whose ``source`` is a folder or a list file of labelled images."""

    names: Path | None = option(
        None,
        "file with the names of the classes, one 'id name' per line. The class folders get these labels, for "
        "example those of a model (label_list.txt)",
    )


@dataclass(frozen=True, kw_only=True)
class ResizeOptions:
    """Copy a folder of images, and shrink the large images."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset resize pictures/ --max-size 512 --out small/",
        "ppcls dataset resize scans/ --max-size 1024 --quality 95 --out scans_1024/",
    )

    source: Path = argument("folder to copy; it is not changed")
    max_size: int = required("maximum length of an image's short side in pixels", gt=0)
    quality: int = option(90, "quality of JPEG and WebP images, 1 to 100", ge=1, le=100)
    out: Path = required("folder for the copy")
    follow_links: bool = option(
        False, "follow symbolic links that point outside the folder, and copy the files there"
    )


@dataclass(frozen=True, kw_only=True)
class SplitOptions(LabelledImagesOptions):
    """Write list files for training and validation; both contain all classes if possible."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset split pictures/ --out lists/",
        "ppcls dataset split list.txt --image-root pictures/ --val 0.1 --out lists/",
        "ppcls dataset split pictures/ --group-duplicates --out lists/",
    )

    source: Path = argument("folder with one subfolder per class, or list file with lines of 'path label'")
    val: Fraction | int = option(
        Fraction("0.2"),
        "share or number of images for validation, such as 0.1 or 5000",
        read=share_or_count,
    )
    seed: int = option(0, "seed of the random split", ge=0)
    group_duplicates: bool = option(
        False, "keep exact and near duplicates, as dataset audit finds them, in the same list"
    )
    model: str = option(
        "EfficientNet_lite0",
        "model that computes the features for --group-duplicates; see dataset audit",
        metavar="MODEL",
    )
    trust: bool = trust_option()
    out: Path = required("new folder for the lists")


@dataclass(frozen=True, kw_only=True)
class StatsOptions(LabelledImagesOptions):
    """Report classes, image sizes, mean and standard deviation, as JSON and PNG."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset stats pictures/",
        "ppcls dataset stats -c configs/ResNet50.yaml --split Eval",
    )

    source: Path | None = argument(
        "folder with one subfolder per class, or list file with lines of 'path label'", default=None
    )
    config: str | None = option(
        None, "config with the data set to describe; its DecodeImage is used", names=["-c"]
    )
    override: tuple[str, ...] = option((), "set values of the config", names=["-o"], metavar="KEY=VALUE")
    split: Literal["Train", "Eval", "Eval.Query", "Eval.Gallery"] = option(
        "Train", "data set of the config to describe"
    )
    channels: int = option(3, "number of channels of the images in source", gt=0)
    dtype: Literal["uint8", "uint16"] = option("uint8", "dtype of the pixels of the images in source")
    out: Path = option(Path("stats"), "folder for the results")


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Write an index file for DALI next to each container."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset index shards/*.tar",
        "ppcls dataset index part-000 --format tfrecord",
    )

    files: tuple[Path, ...] = argument("containers: .tar, .tfrecord or .rec files")
    format: ContainerFormat | None = option(
        None, "format of the containers (default: chosen by the file name)"
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(LabelledImagesOptions):
    """Write image files into containers, or continue an interrupted conversion."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset convert webdataset pictures/ --out shards/",
        "ppcls dataset convert tfrecord list.txt --image-root pictures/ --shard-size 200 --out shards/",
    )

    format: ContainerFormat = argument("format of the containers")
    source: Path = argument("folder with one subfolder per class, or list file with lines of 'path label'")
    out: Path = required("folder for the containers (shards)")
    shards: int | None = option(None, "number of shards", gt=0, exclusive=_SHARDS)
    shard_size: int = option(
        1000, "maximum total size of the images in one shard, in MB", gt=0, exclusive=_SHARDS
    )


def dataset_command(
    name: str, options: type[O], interrupted: str = "nothing was written"
) -> Callable[[Callable[[O], None]], Command[O]]:
    """Returns a decorator that turns a function into a subcommand of ``ppcls dataset``.

    Args:
        name: Name of the subcommand.
        options: Class that declares its options.
        interrupted: What remains after an interrupt or on a full disk, for the message. A function that
            knows more raises `KeyboardInterrupt` with another text.
    """

    def decorate(function: Callable[[O], None]) -> Command[O]:
        def run(options: O) -> None:
            try:
                with interruptible():
                    function(options)
            except KeyboardInterrupt as interrupt:
                interrupt.args = interrupt.args or (interrupted,)
                raise interrupt from None
            except OSError as error:
                if error.errno is None:
                    raise UserError(str(error)) from None
                # The error of a full disk has no file name.
                place = error.filename or getattr(options, "out", None)
                hint = f"; {interrupted}" if error.errno == errno.ENOSPC else ""
                raise UserError(f"{f'{place}: ' if place else ''}{error.strerror}{hint}") from None

        run.__doc__ = function.__doc__
        return Command(name, options, run)

    return decorate


def read_source(source: Path, options: LabelledImagesOptions) -> tuple[FileIndex, tuple[str, ...]]:
    """Returns the labelled images and the class names, which are empty if unknown.

    Raises:
        ppcls.errors.UserError: The folder or list is missing, empty or invalid.
    """
    from ppcls.data.images.paths import ARRAY_SUFFIXES, explain_records
    from ppcls.data.index.class_folders import check_are_classes, list_class_folders, read_metadata
    from ppcls.data.index.class_names import read_all_class_names, read_class_names
    from ppcls.data.index.files import read_folder
    from ppcls.data.records.shard import SHARD_SUFFIXES
    from ppcls.files import IMAGE_EXTENSIONS
    from ppcls.recipe.folder_hints import explain_missing_folder

    if source.is_dir():
        if not options.names and read_metadata(source) is None:
            check_are_classes(source, list_class_folders(source))
        names = read_all_class_names(options.names) if options.names else list_class_folders(source)
        index = read_folder(source, IMAGE_EXTENSIONS, class_names=names, follow_links=options.follow_links)
        return index, names
    if not source.exists() and not source.suffix:  # lists have a suffix
        raise UserError(
            f"{source}: no such folder or list file; expected a folder with one subfolder of images per "
            f"class, or a list file of 'path label'{explain_missing_folder(source)}"
        )
    suffix = source.suffix.lower()
    if suffix in (*SHARD_SUFFIXES, *ARRAY_SUFFIXES) or explain_records(source.name):
        raise UserError(
            f"{source}: expected a folder with one subfolder per class, or a list file of 'path label', "
            f"found {'a file of arrays' if suffix in ARRAY_SUFFIXES else 'a container'}"
        )
    index = options.read_list(source)
    names = read_class_names(options.names, int(index.labels.max()) + 1) if options.names else ()
    return index, names


def check_outside(out: Path, source: Path | None) -> None:
    """Checks that an output folder is not in a folder of images, where it would become a class.

    Args:
        source: Folder of images, or a file; None without one.

    Raises:
        UserError: The output folder is in the folder of images.
    """
    from ppcls.files import real_path

    if source is not None and source.is_dir() and real_path(out).is_relative_to(real_path(source)):
        raise UserError(
            f"--out {out}: is inside the images {source}, where it would become a class; choose a folder "
            "outside of them"
        )


def progress_bars() -> Progress:
    """Returns progress bars that count images on standard error."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    return Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))


@dataset_command("resize", ResizeOptions, _CONTINUE)
def resize(options: ResizeOptions) -> None:
    """Copies a folder, and shrinks large images."""
    from ppcls.data.bad_images.lists import BadImage, bad_image_error
    from ppcls.dataset_tools.resize import plan_resize, resize_tree
    from ppcls.runtime.hardware import usable_cores

    source = options.source
    out = options.out
    job = plan_resize(source, out, options.max_size, options.quality, follow_links=options.follow_links)
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
        raise UserError(
            f"{counted(len(bad), 'bad image was', 'bad images were')} not copied to "
            f"{out}\n{bad_image_error(bad)}"
        )


def _report_resize(job: ResizeJob, results: dict[Path, ResizeResult]) -> None:
    counts = Counter(result.done for result in results.values())
    images = [path for path, result in results.items() if result.done in ("shrunk", "copied", "there")]
    write_output(
        f"{job.target}: {counted(counts['shrunk'], 'image')} shrunk, {counts['copied']} copied unchanged, "
        f"{counts['there']} existed already; {counted(counts['other'], 'other file')} copied\n"
    )
    if not images:
        return
    before, after = (sum(getattr(results[path], side) for path in images) for side in ("before", "after"))
    before = before / 1e6
    after = after / 1e6
    write_output(
        f"images: {before:.1f} MB before, {after:.1f} MB after, {before / after:.2f} times smaller\n"
    )


@dataset_command("split", SplitOptions)
def split(options: SplitOptions) -> None:
    """Writes the lists."""
    import numpy as np

    from ppcls.data.index.split import choose_validation, write_split

    check_outside(options.out, options.source)
    index, names = read_source(options.source, options)
    groups = _find_duplicate_groups(index, names, options) if options.group_duplicates else []
    validation = choose_validation(index, options.val, options.seed, groups=groups)
    write_split(index, validation, options.out, names, options.delimiter)
    training = int((~validation).sum())
    write_output(
        f"{options.out}: {counted(training, 'image')} for training, {int(validation.sum())} for validation\n"
    )
    missing = np.setdiff1d(index.labels, index.labels[validation])
    if len(missing):
        classes = [f"{label} ({names[label]})" if names else str(label) for label in missing[:10]]
        more = ", …" if len(missing) > 10 else ""
        write_output(f"classes without validation images: {', '.join(classes)}{more}\n")


def _find_duplicate_groups(index: FileIndex, names: Sequence[str], options: SplitOptions) -> list[list[int]]:
    """Returns the positions of images that are duplicates of each other, and reports their number."""
    from ppcls.cli.dataset_audit import audit_progress, find_audit_model
    from ppcls.dataset_tools.audit import AuditSource, find_duplicate_groups
    from ppcls.files.temporary import temporary_folder
    from ppcls.runtime.hardware import usable_cores

    if index.labels.ndim > 1:
        raise UserError(f"{options.source}: --group-duplicates needs one label per image")
    source = AuditSource(index, tuple(names), [""] * len(index))
    model = find_audit_model(options.model, index, trust=options.trust)
    with temporary_folder("duplicates") as folder, audit_progress() as stages:
        groups = find_duplicate_groups(source, model, folder, usable_cores(), stages)
    images = sum(map(len, groups))
    write_output(
        f"{counted(len(groups), 'group')} of duplicates with {counted(images, 'image stays', 'images stay')} "
        "in the same list\n"
    )
    return groups


@dataset_command("stats", StatsOptions)
def stats(options: StatsOptions) -> None:
    """Computes and writes the statistics."""
    import json

    import numpy as np

    from ppcls.data.bad_images.lists import to_bad_images
    from ppcls.dataset_tools.mean_std import compute_mean_std
    from ppcls.dataset_tools.stats import collect_stats
    from ppcls.dataset_tools.stats_picture import draw_stats
    from ppcls.files import check_writable, write_text
    from ppcls.runtime.hardware import usable_cores

    out = options.out
    check_outside(out, options.source)
    name, index, names, decoder = _dataset_to_describe(options)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: expected a folder, found a file")
    check_writable(out)
    with progress_bars() as bars, _advice_on_bad_images(options):
        task = bars.add_task(name, total=len(index))
        mean_std = compute_mean_std(index, decoder, usable_cores(), lambda images: bars.advance(task, images))
    good = np.delete(index.labels, list(mean_std.bad), axis=0)
    bad = to_bad_images(index, mean_std.bad)
    stats = collect_stats(name, good, names, mean_std, decoder)
    values = {**stats.as_dict(), "bad_images": [asdict(image) for image in bad]}
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "stats.json", json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    draw_stats(stats, out / "stats.png")
    write_output(f"{stats.describe()}\ndetails: {out}/stats.json and stats.png\n")
    if bad:
        shown = "\n".join(f"  {image}" for image in bad[:_SHOWN_BAD_IMAGES])
        more = f"\n  and {len(bad) - _SHOWN_BAD_IMAGES} more" if len(bad) > _SHOWN_BAD_IMAGES else ""
        print_error(
            f"warning: skipped {counted(len(bad), 'bad image')}, which the statistics do not include; "
            f"{out}/stats.json lists all of "
            f"them:\n{shown}{more}"
        )


@contextmanager
def _advice_on_bad_images(options: StatsOptions) -> Iterator[None]:
    """Adds advice to the error about a bad image, such as the ``--channels`` to use."""
    from ppcls.data.bad_images.lists import BadImageError

    try:
        yield
    except BadImageError as error:
        match = re.search(r": expected \d+ channels?, found (\d+) channel", str(error))
        if not options.source or match is None:
            settings = ["-o", *options.override] if options.override else []
            place = [options.source] if options.source is not None else ["-c", options.config, *settings]
            advice = f"fix or remove it; `{command_line('dataset', 'check', *place)}` lists all bad images"
        else:
            images = f"images with {match[1]} channels" if match[1] != "1" else "grey images"
            advice = f"for {images} add --channels {match[1]}"
        raise UserError(f"{error}\n{advice}") from None


def _dataset_to_describe(options: StatsOptions) -> tuple[str, Index, tuple[str, ...], DecodeImage]:
    """Returns the name, the samples, the class names (empty if unknown) and the decoder of a data set."""
    from ppcls.data.transforms.specs import DecodeImage
    from ppcls.recipe.load import load_config

    if (options.source is None) == (options.config is None):
        raise UserError("expected either a folder or list file, or -c CONFIG")
    if options.source is not None:
        index, names = read_source(options.source, options)
        decoder = DecodeImage(channels=options.channels, dtype=options.dtype)
        return str(options.source), index, names, decoder
    assert options.config is not None  # checked above
    config = load_config(options.config, options.override)
    splits = config.DataLoader.splits
    if (split := splits.get(options.split)) is None:
        known = f"; known: {', '.join(splits)}" if splits else ""
        raise UserError(f"{options.config}: no data set DataLoader.{options.split}{known}")
    first = split.dataset.transform_ops[0]
    if not isinstance(first, DecodeImage):
        raise UserError(
            f"{options.config}: expected DecodeImage as the first transform, found {first.kind}; "
            "stats describes images only"
        )
    classes = config.class_count(training=options.split == "Train")
    return split.dataset.place, split.dataset.read(classes), (), first


@dataset_command("index", IndexOptions, "the index files listed above are complete")
def index_containers(options: IndexOptions) -> None:
    """Writes the index files."""
    from ppcls.data.records.formats import detect_format
    from ppcls.data.records.shard import default_index_path
    from ppcls.files import write_text

    for path in options.files:
        container = detect_format(path, options.format)
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


@dataset_command("convert", ConvertOptions, _CONTINUE)
def convert(options: ConvertOptions) -> None:
    """Writes the containers."""
    from ppcls.data.index.class_names import LABEL_LIST, write_class_names
    from ppcls.dataset_tools.convert import convert, file_sizes, plan_conversion, split_by_size, split_evenly

    out = options.out
    check_outside(out, options.source)
    index, names = read_source(options.source, options)

    def ends() -> tuple[int, ...]:
        if options.shards:
            return split_evenly(len(index), options.shards)
        return split_by_size(file_sizes(index), options.shard_size * 10**6)

    split = {"shards": options.shards} if options.shards else {"shard_size": options.shard_size}
    conversion = plan_conversion(index, _record_format(options.format, index), out, split, ends)
    if names:
        write_class_names(out / LABEL_LIST, names)
    with progress_bars() as bars:
        task = bars.add_task(f"{out}", total=len(index))
        existing = convert(conversion, lambda images: bars.advance(task, images))
    note = f", {existing} of which existed already" if existing else ""
    write_output(
        f"{out}: {counted(len(index), 'image')} in {counted(len(conversion.ends), 'shard')}{note}; all "
        "verified\n"
    )


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


COMMANDS = (resize, split, stats, index_containers, convert)
