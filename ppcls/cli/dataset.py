"""``tools/dataset.py``: makes the data sets of quick start and benchmarks, and checks those of users."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli import dataset_containers as container_cli
from ppcls.cli import dataset_images as image_cli
from ppcls.cli.options import add_command, add_override, positive, whole
from ppcls.errors import UserError

if TYPE_CHECKING:  # else every command would import what one needs
    from ppcls.config.sections.transform import Transform
    from ppcls.data.index.read import Index


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _digits(args: argparse.Namespace) -> None:
    from ppcls.dataset_tools.digits import make_digits

    made = make_digits(args.out)
    _say(f"{args.out}: 1797 digits of 32×32" if made else f"{args.out}: the digits are there already")


def _photos(args: argparse.Namespace) -> None:
    from ppcls.dataset_tools.photos import make_photos

    if make_photos(args.out, args.images, args.classes, args.seed):
        sizes = [path.stat().st_size for path in args.out.glob("images/*/*.jpg")]
        _say(f"{args.out}: {len(sizes)} photographs, {sum(sizes) / len(sizes) / 1000:.0f} KB on average")
    else:
        _say(f"{args.out}: the photographs are there already")


def _cells(args: argparse.Namespace) -> None:
    from ppcls.dataset_tools.cells import make_cells

    made = make_cells(args.out, args.images, args.seed)
    what = f"{args.images} cells of five channels" if made else "the cells are there already"
    _say(f"{args.out}: {what}")


def _check(args: argparse.Namespace) -> None:
    """Decodes all images; lists the bad ones in ``args.out`` and raises where there are any."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from ppcls.data.bad_images.lists import BadImage, bad_image_error, write_bad_images
    from ppcls.dataset_tools.check import find_bad_images
    from ppcls.files import check_writable
    from ppcls.runtime.hardware import usable_cores

    if args.out.is_dir():
        raise UserError(f"--out {args.out}: is a folder, expected a file for the list")
    check_writable(args.out)
    checked, bad = 0, list[BadImage]()
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as bar:
            for name, index, decoder in _to_check(args):
                task = bar.add_task(name, total=len(index))
                for images, found in find_bad_images(index, decoder, usable_cores()):
                    bar.advance(task, images)
                    checked, bad = checked + images, bad + found
    except KeyboardInterrupt:
        if bad and not args.out.exists():  # a whole list is worth more
            write_bad_images(args.out, bad)
            args.interrupted = f"{args.out} lists {len(bad)} bad of the first {checked} images"
        raise
    write_bad_images(args.out, bad)
    if bad:
        heading = f"{len(bad)} of {checked} images are bad; {args.out} lists them"
        raise UserError(f"{heading}\n{bad_image_error(bad)}")
    _say(f"all {checked} images decode")


def _to_check(args: argparse.Namespace) -> Iterator[tuple[str, Index, Transform]]:
    """Yields what each bar is about: its name, samples and decoder."""
    from ppcls.config.load import load_config
    from ppcls.data.image_files import find_images
    from ppcls.data.index.files import list_files
    from ppcls.data.index.read import read_index
    from ppcls.data.records.shard import SHARD_SUFFIXES
    from ppcls.data.transforms.specs import DecodeImage

    if bool(args.paths) == bool(args.config):
        raise UserError("expected either files and folders, or -c CONFIG")
    if containers := [path for path in args.paths if path.suffix in SHARD_SUFFIXES]:
        raise UserError(f"{containers[0]}: is a container; check its images by -c, with a config that has it")
    if args.paths:
        yield "images", list_files(find_images(args.paths)), DecodeImage()
        return
    config = load_config(args.config, args.override)
    splits = config.DataLoader.splits
    chosen = [name for name in splits if args.split is None or name.split(".")[0] == args.split]
    if args.split and not chosen:
        raise UserError(f"{args.config}: DataLoader.{args.split} is not set; there is nothing to check")
    for name in chosen:
        dataset, classes = splits[name].dataset, config.class_count(training=name == "Train")
        yield name, read_index(dataset, classes), dataset.transform_ops[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/dataset.py",
        description="Makes a data set without download; checks, describes, splits, shrinks or converts one.",
    )
    parser.set_defaults(interrupted="nothing was written")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    digits = add_command(commands, "digits", "1,797 handwritten digits, for the quick start")
    digits.add_argument("--out", type=Path, default=Path("dataset/digits"), help="folder (%(default)s)")
    digits.set_defaults(make=_digits)
    photos = add_command(commands, "photos", "photographs like ImageNet's, for benchmarks")
    photos.add_argument("images", type=int, metavar="N", help="how many")
    photos.add_argument("--out", type=Path, default=Path("dataset/photos"), help="folder (%(default)s)")
    photos.add_argument("--classes", type=int, default=8, help="2 to 32 (%(default)s)")
    photos.add_argument("--seed", type=int, default=0, help="of the random crops (%(default)s)")
    photos.set_defaults(make=_photos)
    cells = add_command(commands, "cells", "drawn cells, 16-bit TIFFs of five channels")
    cells.add_argument("images", type=positive, nargs="?", default=800, help="how many (%(default)s)")
    cells.add_argument("--out", type=Path, default=Path("dataset/cells"), help="folder (%(default)s)")
    cells.add_argument("--seed", type=whole, default=0, help="of the cells (%(default)s)")
    cells.set_defaults(make=_cells)
    check = add_command(commands, "check", "decode all images and list the bad ones; exit code 1 if any")
    check.add_argument("paths", nargs="*", type=Path, help="files and folders, instead of a config")
    check.add_argument("-c", "--config", help="whose data sets to check, as it decodes them")
    add_override(check, "set values of it")
    check.add_argument("--split", choices=["Train", "Eval"], help="only this one")
    check.add_argument("--out", type=Path, default=Path("bad_images.txt"), help="the list (%(default)s)")
    check.set_defaults(make=_check)
    image_cli.add_commands(commands)
    container_cli.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool with ``argv`` (the command line's where it is None); returns its exit code.

    An error of the user's, or of the disk, is one line on standard error and exit code 1; Ctrl-C gives 130.
    """
    args = _parser().parse_args(argv)
    try:
        args.make(args)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except OSError as error:
        if error.strerror is None:
            sys.stderr.write(f"error: {error}\n")
            return 1
        place = error.filename or getattr(args, "out", None)  # a write to a full disk names no file
        full = f"; {args.interrupted}" if error.errno == errno.ENOSPC else ""
        sys.stderr.write(f"error: {f'{place}: ' if place else ''}{error.strerror}{full}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; {args.interrupted}\n")
        return 130
    return 0


if TYPE_CHECKING:  # else every command would import what one needs
    pass
