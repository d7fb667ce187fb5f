"""``ppcls dataset`` and ``tools/dataset.py``: create demo data sets, and check and convert the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ppcls.cli import dataset_files
from ppcls.cli.arguments.options import argument, option
from ppcls.cli.command import CommandGroup, write_output
from ppcls.cli.dataset_audit import audit
from ppcls.cli.dataset_files import dataset_command, progress_bars
from ppcls.commands import command_line
from ppcls.errors import UserError, counted
from ppcls.files import print_error

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from ppcls.data.index.protocol import Index
    from ppcls.data.section import Split
    from ppcls.data.transforms.base import Transform
    from ppcls.recipe.schema import Config

_LISTS = (".txt", ".csv", ".tsv", ".lst")  # suffixes of list files


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """Create the 1,797 handwritten digits of the quick start."""

    examples: ClassVar[Sequence[str]] = ("ppcls dataset digits", "ppcls dataset digits --out data/digits")

    out: Path = option(Path("dataset/digits"), "output folder")


@dataclass(frozen=True, kw_only=True)
class PhotosOptions:
    """Create JPEG photographs similar to ImageNet's in size and decoding time, for benchmarks."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset photos 4096",
        "ppcls dataset photos 20000 --classes 32 --out data/photos",
    )

    images: int = argument("number of images")
    classes: int = option(8, "number of classes, 2 to 32")
    seed: int = option(0, "seed of the random crops")
    out: Path = option(Path("dataset/photos"), "output folder")


@dataclass(frozen=True, kw_only=True)
class CellsOptions:
    """Create images of drawn cells: 16-bit TIFF files with five channels."""

    examples: ClassVar[Sequence[str]] = ("ppcls dataset cells", "ppcls dataset cells 200 --out data/cells")

    images: int = argument("number of images", default=800, gt=0)
    seed: int = option(0, "random seed for the pictures", ge=0)
    out: Path = option(Path("dataset/cells"), "output folder")


@dataclass(frozen=True, kw_only=True)
class FashionMnistOptions:
    """Copy Fashion-MNIST, 70,000 pictures of clothes, from Debian's package or from a folder."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset fashion-mnist",
        "ppcls dataset fashion-mnist --source downloads/fashion-mnist",
    )

    source: Path = option(
        Path("/usr/share/datasets/fashion-mnist"),
        "folder with the four files of https://github.com/zalandoresearch/fashion-mnist, compressed or not "
        "(default: the folder of Debian's package dataset-fashion-mnist)",
    )
    out: Path = option(Path("dataset/fashion-mnist"), "output folder")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(dataset_files.ListOptions):
    """Decode all images and list the bad ones; exit code 2 if there are any."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset check pictures/",
        "ppcls dataset check list.txt --image-root pictures/",
        "ppcls dataset check -c configs/ResNet50.yaml --out bad_images.txt",
    )

    paths: tuple[Path, ...] = argument(
        "files, folders and lists (.txt, .csv, .tsv, .lst) to check, instead of the data sets of a config",
        default=(),
    )
    config: str | None = option(
        None, "config with the data sets to check; its DecodeImage is used", names=["-c"]
    )
    override: tuple[str, ...] = option((), "set values of the config", names=["-o"], metavar="KEY=VALUE")
    split: Literal["Train", "Eval"] | None = option(None, "check only this data set of the config")
    out: Path = option(Path("bad_images.txt"), "file for the list of bad images")


@dataclass(frozen=True, kw_only=True)
class LabelsOptions:
    """Write metadata.csv from a table of other tools, so that all commands know the classes of a folder.

    The table has one row per image, as those of Kaggle, Roboflow (_classes.csv) and Label Studio (CSV, JSON).
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls dataset labels labels.csv --images scanned/",
        "ppcls dataset labels breeds.csv --images breeds/ --file-column id --label-column breed",
    )

    table: Path = argument("table: .csv, .tsv, .txt, .json or .jsonl")
    images: Path | None = option(None, "folder of the images (default: the folder of the table)")
    file_column: str | None = option(
        None, "title of the column with the images (default: the column with names of existing images)"
    )
    label_column: str | None = option(
        None,
        "title of the column with the classes (default: a usual title such as label, the only other column, "
        "or one column per class with 0 or 1)",
    )
    on_error: Literal["raise", "skip"] = option(
        "raise", "action if the table names missing images: skip ignores these rows"
    )


@dataset_command("labels", LabelsOptions)
def labels(options: LabelsOptions) -> None:
    """Writes ``metadata.csv``."""
    from ppcls.data.images.paths import explain_file
    from ppcls.data.index.class_names import join_first
    from ppcls.dataset_tools.labels import LabelColumns, read_labels, write_metadata

    images = options.images or options.table.parent
    if images.is_file():
        raise UserError(f"--images {images}: {explain_file(images)}")
    if not images.is_dir():
        raise UserError(f"--images {images}: no such folder")
    files = read_labels(options.table, images, LabelColumns(options.file_column, options.label_column))
    if files.missing:
        count = counted(len(files.missing), "row has", "rows have")
        shown = "; ".join(files.missing[:3])
        more = "; …" if files.missing[3:] else ""
        problem = f"{options.table}: {count} no image, or several, in {images}: {shown}{more}"
        if options.on_error == "raise":
            raise UserError(f"{problem}; add these images, or set --on-error skip to ignore these rows")
        print_error(f"warning: {problem}")
    written = write_metadata(images, files)
    names = join_first(files.classes)
    write_output(
        f"{written}: {counted(len(files.labels), 'image')} of {counted(len(files.classes), 'class')} "
        f"({names}), from the columns {', '.join(map(repr, files.columns))}\n"
        f"train: {command_line('train', images)}\n"
    )


@dataset_command("digits", DigitsOptions)
def digits(options: DigitsOptions) -> None:
    """Creates the digits."""
    from ppcls.dataset_tools.digits import make_digits

    created = make_digits(options.out)
    write_output(f"{options.out}: {'1797 digits of 32×32' if created else 'the digits exist already'}\n")


@dataset_command("photos", PhotosOptions)
def photos(options: PhotosOptions) -> None:
    """Creates the photographs."""
    from ppcls.dataset_tools.photos import make_photos

    result = "the photographs exist already"
    if make_photos(options.out, options.images, options.classes, options.seed):
        sizes = [path.stat().st_size for path in options.out.glob("images/*/*.jpg")]
        result = f"{counted(len(sizes), 'photograph')}, {sum(sizes) / len(sizes) / 1000:.0f} KB on average"
    write_output(f"{options.out}: {result}\n")


@dataset_command("cells", CellsOptions)
def cells(options: CellsOptions) -> None:
    """Creates the images of cells."""
    from ppcls.dataset_tools.cells import make_cells

    created = make_cells(options.out, options.images, options.seed)
    result = f"{options.images} cells of five channels" if created else "the cells exist already"
    write_output(f"{options.out}: {result}\n")


@dataset_command("fashion-mnist", FashionMnistOptions)
def fashion_mnist(options: FashionMnistOptions) -> None:
    """Copies Fashion-MNIST."""
    from ppcls.dataset_tools.fashion_mnist import make_fashion_mnist

    created = make_fashion_mnist(options.out, options.source)
    result = "60,000 training and 10,000 test images of 28×28" if created else "Fashion-MNIST exists already"
    write_output(f"{options.out}: {result}\n")


@dataset_command("check", CheckOptions)
def check(options: CheckOptions) -> None:
    """Decodes all images; writes a list of the bad ones and raises `UserError` if there are any."""
    from ppcls.data.bad_images.lists import BadImage, bad_image_error, write_bad_images
    from ppcls.data.images.skipped import describe_skipped
    from ppcls.data.index.consistency import describe_labels
    from ppcls.data.index.files import FileIndex
    from ppcls.dataset_tools.check import describe_unused, find_bad_images
    from ppcls.files import check_writable
    from ppcls.runtime.hardware import usable_cores

    out = options.out
    if out.is_dir():
        raise UserError(f"--out {out}: expected a file for the list, found a folder")
    check_writable(out)
    checked = 0
    bad = list[BadImage]()
    notes = [line for path in options.paths if path.is_dir() for line in describe_unused(path)]
    config = _read_config(options)
    sources = _images_to_check(options)
    if config is not None:
        classes = {name: config.class_count(training=name == "Train") for name in config.DataLoader.splits}
        sources = _splits_to_check(options, config.DataLoader.splits, classes)
    indexes: dict[str, Index] = {}
    try:
        with progress_bars() as bars:
            for name, index, decoder in sources:
                indexes[name] = index
                if isinstance(index, FileIndex) and config is not None:
                    notes.append(describe_skipped(index.root, index.skipped))
                task = bars.add_task(name, total=len(index))
                for bad_images in find_bad_images(index, decoder, usable_cores()):
                    bars.advance(task)
                    checked = checked + 1
                    bad = bad + bad_images
    except KeyboardInterrupt:
        if bad and not out.exists():  # an existing list may be complete
            write_bad_images(out, bad)
            kept = f"{out} lists the {counted(len(bad), 'bad image')} among the first {checked}"
            raise KeyboardInterrupt(kept) from None
        raise
    write_bad_images(out, bad)
    if config is not None:
        splits = config.DataLoader.splits
        names = next((listed for split in splits.values() if (listed := split.dataset.folder_classes)), ())
        by_class = config.Global.eval_mode == "classification"
        notes += describe_labels(indexes, names, config.labelled_classes, by_class=by_class)
    write_output("".join(f"{line}\n" for line in dict.fromkeys(notes) if line))
    if bad:
        raise UserError(
            f"{len(bad)} of {counted(checked, 'image is', 'images are')} bad; {out} lists "
            f"them\n{bad_image_error(bad)}"
        )
    write_output(f"all {counted(checked, 'image')} can be decoded\n")


def _read_config(options: CheckOptions) -> Config | None:
    """Returns the config whose data sets are checked; None to check files and folders."""
    from ppcls.data.records.shard import SHARD_SUFFIXES
    from ppcls.recipe.load import load_config

    if bool(options.paths) == (options.config is not None):
        raise UserError("expected either files and folders to check, or -c CONFIG")
    if containers := [path for path in options.paths if path.suffix in SHARD_SUFFIXES]:
        raise UserError(
            f"{containers[0]}: expected an image file or a folder, found a container; to check the images in "
            "it, use -c CONFIG"
        )
    return None if options.config is None else load_config(options.config, options.override)


def _images_to_check(options: CheckOptions) -> Iterator[tuple[str, Index, Transform]]:
    """Yields the name, the samples and the decoder of each list, and of all files and folders."""
    from ppcls.data.images.paths import find_images
    from ppcls.data.index.files import list_files
    from ppcls.data.transforms.specs import DecodeImage

    lists = [path for path in options.paths if path.suffix.lower() in _LISTS and path.is_file()]
    for listing in lists:
        yield listing.name, options.read_list(listing), DecodeImage()
    if others := [path for path in options.paths if path not in lists]:
        yield "images", list_files(find_images(others)), DecodeImage()


def _splits_to_check(
    options: CheckOptions, splits: Mapping[str, Split], classes: Mapping[str, int | None]
) -> Iterator[tuple[str, Index, Transform]]:
    """Yields the name, the samples and the decoder of each data set to check.

    Args:
        options: Options of the command, with the data sets to check.
        splits: Data sets of the config, by their keys in ``DataLoader``.
        classes: Number of classes of each data set; None if its labels are identities.
    """
    chosen = [name for name in splits if options.split in (None, name.split(".")[0])]
    if options.split and not chosen:
        raise UserError(f"{options.config}: DataLoader.{options.split} is not set; nothing to check")
    for name in chosen:
        dataset = splits[name].dataset
        yield name, dataset.read(classes[name]), dataset.transform_ops[0]


main = CommandGroup(
    "dataset",
    "Create a demo data set without a download, or check, audit, describe, split, shrink or convert data.",
    ("ppcls dataset digits", "ppcls dataset check pictures/", "ppcls dataset stats pictures/ --out stats"),
    (digits, photos, cells, fashion_mnist, labels, check, audit, *dataset_files.COMMANDS),
    other_names={
        **dict.fromkeys(("info", "describe", "summary", "count", "show", "mean"), "stats"),
        **dict.fromkeys(("validate", "verify", "test"), "check"),
        **dict.fromkeys(("duplicates", "dedup", "deduplicate", "clean", "analyze"), "audit"),
        **dict.fromkeys(("download", "get", "example", "demo", "mnist"), "digits"),
        **dict.fromkeys(("shrink", "scale"), "resize"),
        **dict.fromkeys(("metadata", "import", "csv", "table", "from_csv", "from-csv"), "labels"),
    },
)
