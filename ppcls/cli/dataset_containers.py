"""The subcommands of ``ppcls dataset`` for containers: ``index`` and ``convert``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import write_output
from ppcls.cli.dataset_images import add_source, progress_bars, read_source
from ppcls.cli.options import Subcommands, add_subcommand, positive_int
from ppcls.errors import UserError

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from ppcls.data.index.files import FileIndex
    from ppcls.data.records.shard import RecordFormat

_FORMATS = ("webdataset", "tfrecord", "recordio", "lmdb")


def add_commands(subcommands: Subcommands) -> None:
    """Adds the subcommands; see `ppcls.cli.dataset`."""
    index = add_subcommand(subcommands, "index", "write DALI's index files beside containers")
    index.add_argument("files", type=Path, nargs="+", help=".tar, .tfrecord or .rec")
    index.add_argument("--format", choices=_FORMATS, help="needed if the file name does not show it")
    index.set_defaults(run=_index, interrupted="the printed index files are complete")
    convert = add_subcommand(
        subcommands, "convert", "write image files into a container; continues an interrupted conversion"
    )
    convert.add_argument("format", choices=_FORMATS)
    add_source(convert)
    convert.add_argument("--out", type=Path, required=True, help="folder of the shards")
    split = convert.add_mutually_exclusive_group()
    split.add_argument("--shards", type=positive_int, help="number of shards")
    split.add_argument(
        "--shard-size", type=positive_int, default=1000, help="size of a shard in MB (%(default)s)"
    )
    convert.set_defaults(run=_convert, interrupted="the same command continues after the last complete shard")


def _index(arguments: argparse.Namespace) -> None:
    from ppcls.data.records.formats import detect_format
    from ppcls.data.records.shard import default_index_path
    from ppcls.files import write_text

    for path in arguments.files:
        container = detect_format(path, arguments.format)
        text, index_path = container.build_index(path), default_index_path(path)
        if text is None:
            raise UserError(f"{path}: {container.name} needs no index file")
        if not index_path.exists():
            write_text(index_path, text)
            write_output(f"{index_path}: written\n")
        elif index_path.read_bytes() == text.encode():
            write_output(f"{index_path}: exists already\n")
        else:
            raise UserError(f"{index_path}: another index exists; remove it to write a new one")


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
    """Returns the format to write; WebDataset recognizes images by the suffixes of their names."""
    from ppcls.data.records.formats import FORMATS
    from ppcls.data.records.webdataset import WebDatasetFormat

    if name != "webdataset":
        return FORMATS[name]
    suffixes = {Path(index.name(position)).suffix.lower() for position in range(len(index))}
    if "" in suffixes:
        raise UserError(f"{index.source}: some files have no suffix such as .jpg, which WebDataset needs")
    return WebDatasetFormat(tuple(sorted(suffixes)))
