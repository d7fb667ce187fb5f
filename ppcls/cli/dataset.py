"""``ppcls dataset`` and ``tools/dataset.py``: create demo data sets, and check and convert the user's."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli import dataset_files
from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.dataset_files import progress_bars
from ppcls.cli.options import build_parser
from ppcls.errors import UserError

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from ppcls.config.sections.transform import Transform
    from ppcls.data.index.protocol import Index


@command
def main(argv: Arguments = None) -> None:
    """Creates, checks, describes, splits, shrinks or converts a data set."""
    commands = {"digits": _digits, "photos": _photos, "cells": _cells, "check": _check}
    arguments = build_parser("dataset", types={"share": dataset_files.share_or_count}).parse_args(argv)
    try:
        (commands | dataset_files.COMMANDS)[arguments.command](arguments)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(arguments.interrupted) from None
    except OSError as error:
        if error.errno is None:
            raise UserError(str(error)) from None
        place = error.filename or getattr(arguments, "out", None)  # the error of a full disk has no file name
        hint = f"; {arguments.interrupted}" if error.errno == errno.ENOSPC else ""
        raise UserError(f"{f'{place}: ' if place else ''}{error.strerror}{hint}") from None


def _digits(arguments: argparse.Namespace) -> None:
    from ppcls.dataset_tools.digits import make_digits

    created = make_digits(arguments.out)
    write_output(f"{arguments.out}: {'1797 digits of 32×32' if created else 'the digits exist already'}\n")


def _photos(arguments: argparse.Namespace) -> None:
    from ppcls.dataset_tools.photos import make_photos

    result = "the photographs exist already"
    if make_photos(arguments.out, arguments.images, arguments.classes, arguments.seed):
        sizes = [path.stat().st_size for path in arguments.out.glob("images/*/*.jpg")]
        result = f"{len(sizes)} photographs, {sum(sizes) / len(sizes) / 1000:.0f} KB on average"
    write_output(f"{arguments.out}: {result}\n")


def _cells(arguments: argparse.Namespace) -> None:
    from ppcls.dataset_tools.cells import make_cells

    created = make_cells(arguments.out, arguments.images, arguments.seed)
    result = f"{arguments.images} cells of five channels" if created else "the cells exist already"
    write_output(f"{arguments.out}: {result}\n")


def _check(arguments: argparse.Namespace) -> None:
    """Decodes all images; writes a list of the bad ones and raises `UserError` if there are any."""
    from ppcls.data.bad_images.lists import BadImage, bad_image_error, write_bad_images
    from ppcls.data.index.files import FileIndex, describe_skipped
    from ppcls.dataset_tools.check import describe_unused, find_bad_images
    from ppcls.files import check_writable
    from ppcls.runtime.hardware import usable_cores

    out: Path = arguments.out
    if out.is_dir():
        raise UserError(f"--out {out}: expected a file for the list, found a folder")
    check_writable(out)
    checked = 0
    bad = list[BadImage]()
    notes = [line for path in arguments.paths if path.is_dir() for line in describe_unused(path)]
    try:
        with progress_bars() as bars:
            for name, index, decoder in _splits_to_check(arguments):
                if isinstance(index, FileIndex) and arguments.config:
                    notes.append(describe_skipped(index.root, index.skipped))
                task = bars.add_task(name, total=len(index))
                for bad_images in find_bad_images(index, decoder, usable_cores()):
                    bars.advance(task)
                    checked = checked + 1
                    bad = bad + bad_images
    except KeyboardInterrupt:
        if bad and not out.exists():  # an existing list may be complete
            write_bad_images(out, bad)
            arguments.interrupted = f"{out} lists the {len(bad)} bad images among the first {checked}"
        raise
    write_bad_images(out, bad)
    write_output("".join(f"{line}\n" for line in dict.fromkeys(notes) if line))
    if bad:
        raise UserError(f"{len(bad)} of {checked} images are bad; {out} lists them\n{bad_image_error(bad)}")
    write_output(f"all {checked} images can be decoded\n")


def _splits_to_check(arguments: argparse.Namespace) -> Iterator[tuple[str, Index, Transform]]:
    """Yields the name, the samples and the decoder of each data set to check."""
    from ppcls.config.load import load_config
    from ppcls.data.images.paths import find_images
    from ppcls.data.index.files import list_files
    from ppcls.data.index.read import read_index
    from ppcls.data.records.shard import SHARD_SUFFIXES
    from ppcls.data.transforms.specs import DecodeImage

    if bool(arguments.paths) == bool(arguments.config):
        raise UserError("expected either files and folders to check, or -c CONFIG")
    if containers := [path for path in arguments.paths if path.suffix in SHARD_SUFFIXES]:
        raise UserError(
            f"{containers[0]}: expected an image file or a folder, found a container; to check the images in "
            "it, use -c CONFIG"
        )
    if arguments.paths:
        yield "images", list_files(find_images(arguments.paths)), DecodeImage()
        return
    config = load_config(arguments.config, arguments.override)
    splits = config.DataLoader.splits
    chosen = [name for name in splits if arguments.split in (None, name.split(".")[0])]
    if arguments.split and not chosen:
        raise UserError(f"{arguments.config}: DataLoader.{arguments.split} is not set; nothing to check")
    for name in chosen:
        dataset = splits[name].dataset
        classes = config.class_count(training=name == "Train")
        yield name, read_index(dataset, classes), dataset.transform_ops[0]
