"""The commands of ``tools/dataset.py`` on containers: ``index`` and ``convert``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.dataset_source import add_source, read_source
from ppcls.cli.options import Commands, add_command, positive
from ppcls.errors import UserError

if TYPE_CHECKING:  # else every command would import what one needs
    from ppcls.data.index.files import FileIndex
    from ppcls.data.records.shard import RecordFormat

_FORMATS = ("webdataset", "tfrecord", "recordio", "lmdb")


def add_commands(commands: Commands) -> None:
    """Adds the commands; ``make`` of what is parsed runs one, ``interrupted`` says what Ctrl-C leaves."""
    index = add_command(commands, "index", "DALI's index files of containers, beside them")
    index.add_argument("files", type=Path, nargs="+", help=".tar, .tfrecord or .rec")
    index.add_argument("--format", choices=_FORMATS, help="where the ending does not tell it")
    index.set_defaults(make=_index, interrupted="the index files named are whole")
    convert = add_command(commands, "convert", "image files into a container; goes on where it was stopped")
    convert.add_argument("format", choices=_FORMATS)
    add_source(convert)
    convert.add_argument("--out", type=Path, required=True, help="folder of the shards")
    split = convert.add_mutually_exclusive_group()
    split.add_argument("--shards", type=positive, help="how many")
    split.add_argument("--shard-size", type=positive, default=1000, help="MB of images (%(default)s)")
    convert.set_defaults(make=_convert, interrupted="the same command goes on from the last whole shard")


def _index(args: argparse.Namespace) -> None:
    from ppcls.data.records.formats import detect_format
    from ppcls.data.records.shard import default_index_path
    from ppcls.files import write_text

    for path in args.files:
        container = detect_format(path, args.format)
        text, index_path = container.index(path), default_index_path(path)
        if text is None:
            raise UserError(f"{path}: {container.name} needs no index file")
        if not index_path.exists():
            write_text(index_path, text)
            _say(f"{index_path}: written")
        elif index_path.read_bytes() == text.encode():
            _say(f"{index_path}: there already")
        else:
            raise UserError(f"{index_path} is there and is another index; remove it to have it made anew")


def _convert(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ppcls.data.index.class_names import LABEL_LIST, write_class_names
    from ppcls.dataset_tools.convert import convert, file_sizes, plan_conversion, split_by_size, split_evenly

    index, names = read_source(args)

    def ends() -> tuple[int, ...]:
        if args.shards:
            return split_evenly(len(index), args.shards)
        return split_by_size(file_sizes(index), args.shard_size * 10**6)

    split = {"shards": args.shards} if args.shards else {"shard_size": args.shard_size}
    conversion = plan_conversion(index, _container(args.format, index), args.out, split, ends)
    if names:
        write_class_names(args.out / LABEL_LIST, names)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{args.out}", total=len(index))
        there = convert(conversion, lambda images: progress.advance(task, images))
    already = f", {there} of them there already" if there else ""
    _say(f"{args.out}: {len(index)} images in {len(conversion.ends)} shards{already}; all read back")


def _container(name: str, index: FileIndex) -> RecordFormat:
    """Returns the format to write; a WebDataset knows images by their endings, so it is told them."""
    from ppcls.data.records.formats import FORMATS
    from ppcls.data.records.webdataset import WebDatasetFormat

    if name != "webdataset":
        return FORMATS[name]
    endings = {Path(index.name(position)).suffix.lower() for position in range(len(index))}
    if "" in endings:
        raise UserError(f"{index.source}: has files without an ending, such as .jpg; WebDataset needs one")
    return WebDatasetFormat(tuple(sorted(endings)))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
