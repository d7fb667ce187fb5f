"""The source argument of ``tools/dataset.py`` commands: class folders, or a list of labelled images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.errors import UserError

if TYPE_CHECKING:  # else every command would import what one needs
    from ppcls.data.index.files import FileIndex


def add_source(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Adds the source and what is to be known of it; `read_source` reads it."""
    parser.add_argument(
        "source", type=Path, nargs=nargs, help="folder with a sub-folder a class, or list of 'path label'"
    )
    parser.add_argument("--image-root", type=Path, help="of a list (the list's folder)")
    parser.add_argument("--follow-links", action="store_true", help="take images that are links elsewhere")
    parser.add_argument("--delimiter", default=" ", help="of a list (a blank)")
    parser.add_argument("--names", type=Path, help="of a list's classes, lines of 'id name'")


def read_source(args: argparse.Namespace) -> tuple[FileIndex, tuple[str, ...]]:
    """Returns the images and the names of their classes, where something tells them.

    Raises:
        ppcls.errors.UserError: No such folder or list, nothing in it, or wrong lines.
    """
    from ppcls.config.sections.dataset import IMAGE_EXTENSIONS
    from ppcls.data.index.class_names import list_class_folders, read_class_names
    from ppcls.data.index.files import read_folder, read_list
    from ppcls.data.records.shard import SHARD_SUFFIXES

    if args.source.is_dir():
        index = read_folder(args.source, IMAGE_EXTENSIONS, follow_links=args.follow_links)
        return index, list_class_folders(args.source)
    if args.source.suffix in SHARD_SUFFIXES:
        raise UserError(
            f"{args.source}: is a container; expected a folder with a sub-folder a class, or a list of "
            "'path label'"
        )
    root = args.image_root or args.source.parent
    index = read_list(root, args.source, args.delimiter, follow_links=args.follow_links)
    names = read_class_names(args.names, int(index.labels.max()) + 1) if args.names else ()
    return index, names
