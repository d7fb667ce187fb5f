"""``tools/dataset.py``: makes the data sets that the quick start and the benchmarks use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ppcls.errors import UserError


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _digits(args: argparse.Namespace) -> None:
    from ppcls.data.digits import make_digits

    made = make_digits(args.out)
    _say(f"{args.out}: 1797 digits of 32×32" if made else f"{args.out}: the digits are there already")


def _photos(args: argparse.Namespace) -> None:
    from ppcls.bench.photos import make_photos

    if make_photos(args.out, args.images, args.classes, args.seed):
        sizes = [path.stat().st_size for path in args.out.glob("images/*/*.jpg")]
        _say(f"{args.out}: {len(sizes)} photographs, {sum(sizes) / len(sizes) / 1000:.0f} KB on average")
    else:
        _say(f"{args.out}: the photographs are there already")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/dataset.py", description="Makes a data set, without download."
    )
    commands = parser.add_subparsers(required=True, metavar="digits|photos")
    digits = commands.add_parser("digits", help="1,797 handwritten digits, for the quick start")
    digits.add_argument("--out", type=Path, default=Path("dataset/digits"), help="folder (%(default)s)")
    digits.set_defaults(make=_digits)
    photos = commands.add_parser("photos", help="photographs like ImageNet's, for benchmarks")
    photos.add_argument("images", type=int, metavar="N", help="how many")
    photos.add_argument("--out", type=Path, default=Path("dataset/photos"), help="folder (%(default)s)")
    photos.add_argument("--classes", type=int, default=8, help="2 to 32 (%(default)s)")
    photos.add_argument("--seed", type=int, default=0, help="of the random crops (%(default)s)")
    photos.set_defaults(make=_photos)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool with ``argv`` (the command line's where it is None); returns its exit code.

    An error of the user's, or of the disk, is one line on standard error and exit code 1; Ctrl-C gives 130.
    """
    args = _parser().parse_args(argv)
    try:
        args.make(args)
    except (UserError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was written\n")
        return 130
    return 0
