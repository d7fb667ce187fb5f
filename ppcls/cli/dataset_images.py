"""The commands of ``tools/dataset.py`` on image files: ``resize``, ``split`` and ``stats``."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.dataset_source import add_source, read_source
from ppcls.cli.options import Commands, add_command, add_override, positive, whole, within
from ppcls.errors import UserError

if TYPE_CHECKING:  # else every command would import what one needs
    from ppcls.data.index.read import Index
    from ppcls.data.transforms.specs import DecodeImage
    from ppcls.dataset_tools.resize_tree import ResizeJob, ResizeResult


def add_commands(commands: Commands) -> None:
    """Adds the commands; ``make`` of what is parsed runs one, ``interrupted`` says what Ctrl-C leaves."""
    resize = add_command(commands, "resize", "a copy of a folder whose large images are smaller")
    resize.add_argument("source", type=Path, help="folder; nothing in it is changed")
    resize.add_argument("--max-size", type=positive, required=True, metavar="N", help="short side in pixels")
    resize.add_argument(
        "--quality", type=within(int, ge=1, le=100), default=90, help="of JPEG and WebP (%(default)s)"
    )
    resize.add_argument("--out", type=Path, required=True, help="folder of the copy")
    resize.add_argument("--follow-links", action="store_true", help="take what links elsewhere lead to")
    resize.set_defaults(make=_resize, interrupted="the same command goes on with what is missing")
    split = add_command(commands, "split", "lists to train and to validate on, of each class alike")
    add_source(split)
    split.add_argument(
        "--val", type=_share_or_count, default=Fraction(1, 5), help="share (0.2) or number (5000) to validate"
    )
    split.add_argument("--seed", type=whole, default=0, help="another one gives another choice")
    split.add_argument("--out", type=Path, required=True, help="new folder of the lists")
    split.set_defaults(make=_split)
    stats = add_command(commands, "stats", "classes, sizes, mean and standard deviation; as JSON and PNG")
    add_source(stats, nargs="?")
    stats.add_argument("-c", "--config", help="whose data set to describe instead, as it decodes it")
    add_override(stats, "set values of it")
    places = ["Train", "Eval", "Eval.Query", "Eval.Gallery"]
    stats.add_argument("--split", choices=places, default="Train", help="of it (%(default)s)")
    stats.add_argument("--channels", type=positive, default=3, help="of a source's images (%(default)s)")
    stats.add_argument("--dtype", choices=["uint8", "uint16"], default="uint8", help="likewise (%(default)s)")
    stats.add_argument("--out", type=Path, default=Path("stats"), help="folder of the results (%(default)s)")
    stats.set_defaults(make=_stats)


def _resize(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ppcls.data.bad_images.lists import BadImage, bad_image_error
    from ppcls.dataset_tools.resize_tree import plan_resize, resize_tree
    from ppcls.runtime.hardware import usable_cores

    resizing = plan_resize(args.source, args.out, args.max_size, args.quality, follow_links=args.follow_links)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{args.out}", total=len(resizing.files))
        outcomes = resize_tree(resizing, usable_cores(), lambda files: progress.advance(task, files))
    _say_what_was_gained(resizing, outcomes)
    bad = [
        BadImage(str(args.source / path), str(args.source), each.reason)
        for path, each in outcomes.items()
        if each.done == "bad"
    ]
    if bad:
        raise UserError(f"{len(bad)} images are bad, and are not in {args.out}\n{bad_image_error(bad)}")


def _say_what_was_gained(resizing: ResizeJob, outcomes: dict[Path, ResizeResult]) -> None:
    from ppcls.dataset_tools.decode_time import time_decoding

    counts = Counter(each.done for each in outcomes.values())
    images = [path for path, each in outcomes.items() if each.done in ("shrunk", "copied", "there")]
    _say(
        f"{resizing.target}: {counts['shrunk']} images made smaller, {counts['copied']} copied as they are, "
        f"{counts['there']} there already; {counts['other']} other files copied"
    )
    if not images:
        return
    before, after = (sum(getattr(outcomes[path], side) for path in images) for side in ("before", "after"))
    _say(
        f"images: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after, {before / after:.2f} times fewer"
    )
    times = time_decoding([(resizing.source / path, resizing.target / path) for path in images])
    if times is None:
        _say("expected speed-up of training: not known, none of the images tried is of a kind it decodes")
        return
    faster = times.before / times.after
    _say(
        f"decoding: {times.before * 1e3:.2f} ms an image before, {times.after * 1e3:.2f} ms after, "
        f"{faster:.2f} times as fast (mean of {times.images} images spread evenly, OpenCV, one thread)"
    )
    _say(
        f"expected speed-up of training: {faster:.2f} at most where it waits for decoding, "
        f"{before / after:.2f} at most where it waits for the disk, none where it waits for the model"
    )


def _split(args: argparse.Namespace) -> None:
    import numpy as np

    from ppcls.data.index.split import choose_validation, write_split

    index, names = read_source(args)
    validates = choose_validation(index, args.val, args.seed)
    write_split(index, validates, args.out, names, args.delimiter)
    _say(f"{args.out}: {int((~validates).sum())} images to train, {int(validates.sum())} to validate")
    missing = np.setdiff1d(index.labels, index.labels[validates])
    if len(missing):
        some = ", ".join(f"{each} ({names[each]})" if names else str(each) for each in missing[:10]) + (
            ", …" if len(missing) > 10 else ""
        )
        _say(f"too small for an image to validate: class {some}")


def _share_or_count(text: str) -> Fraction | int:
    if text.isascii() and text.isdecimal() and int(text):
        return int(text)
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"expected a share such as 0.2, or an integer > 0, got {text!r}")
    return share


def _stats(args: argparse.Namespace) -> None:
    import json

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from ppcls.dataset_tools.mean_std import compute_mean_std
    from ppcls.dataset_tools.stats import collect_stats
    from ppcls.dataset_tools.stats_picture import draw_stats
    from ppcls.files import check_writable, write_text
    from ppcls.runtime.hardware import usable_cores

    name, index, names, decoder = _to_describe(args)
    if args.out.exists() and not args.out.is_dir():
        raise UserError(f"--out {args.out}: is a file, expected a folder")
    check_writable(args.out)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=len(index))
        with _advised(args):
            moments = compute_mean_std(
                index, decoder, usable_cores(), lambda images: bar.advance(task, images)
            )
    stats = collect_stats(name, index.labels, names, moments, decoder)
    _say(stats.describe())
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(args.out / "stats.json", json.dumps(stats.as_dict(), indent=1, ensure_ascii=False) + "\n")
    draw_stats(stats, args.out / "stats.png")
    _say(f"{args.out}/stats.json and stats.png have the rest")


@contextmanager
def _advised(args: argparse.Namespace) -> Iterator[None]:
    """Has the error of a bad image say what to do: a source's may only have other channels."""
    from ppcls.data.bad_images.lists import BadImageError

    try:
        yield
    except BadImageError as error:
        found = re.search(r": expected \d+ channels?, found (\d+) channel", str(error))
        if not args.source or found is None:
            advice = "mend or remove it; tools/dataset.py check lists them all"
        else:
            images = f"images of {found[1]} channels" if found[1] != "1" else "grey images"
            advice = f"for {images} add --channels {found[1]}"
        raise UserError(f"{error}\n{advice}") from None


def _to_describe(args: argparse.Namespace) -> tuple[str, Index, tuple[str, ...], DecodeImage]:
    """Returns a data set's name, samples, classes where they have names, and decoder."""
    from ppcls.config.load import load_config
    from ppcls.data.index.read import read_index
    from ppcls.data.transforms.specs import DecodeImage

    if bool(args.source) == bool(args.config):
        raise UserError("expected either a folder or list, or -c CONFIG")
    if args.source:
        index, names = read_source(args)
        return str(args.source), index, names, DecodeImage(channels=args.channels, dtype=args.dtype)
    config = load_config(args.config, args.override)
    splits = config.DataLoader.splits
    if (split := splits.get(args.split)) is None:
        there = f"; there is {', '.join(splits)}" if splits else ""
        raise UserError(f"{args.config}: DataLoader.{args.split} is no data set{there}")
    decoder = split.dataset.transform_ops[0]
    if not isinstance(decoder, DecodeImage):
        raise UserError(
            f"{args.config}: expected DecodeImage first, found {decoder.kind}; stats are of images"
        )
    classes = config.class_count(training=args.split == "Train")
    return split.dataset.place, read_index(split.dataset, classes), (), decoder


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
