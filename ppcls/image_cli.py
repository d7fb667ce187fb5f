"""The commands of ``tools/dataset.py`` on image files: ``split``."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

from ppcls.source_cli import add_source, read_source

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_commands(commands: Commands) -> None:
    """Adds the commands; ``make`` of what is parsed runs one, ``interrupted`` says what Ctrl-C leaves."""
    split = commands.add_parser("split", help="lists to train and to validate on, of each class alike")
    add_source(split)
    split.add_argument(
        "--val", type=_share_or_count, default=Fraction(1, 5), help="share (0.2) or number (5000) to validate"
    )
    split.add_argument("--seed", type=_natural, default=0, help="another one gives another choice")
    split.add_argument("--out", type=Path, required=True, help="new folder of the lists")
    split.set_defaults(make=_split)


def _split(args: argparse.Namespace) -> None:
    import numpy as np

    from ppcls.data.split import choose, write_split

    index, names = read_source(args)
    validates = choose(index, args.val, args.seed)
    write_split(index, validates, args.out, names, args.delimiter)
    _say(f"{args.out}: {int((~validates).sum())} images to train, {int(validates.sum())} to validate")
    missing = np.setdiff1d(index.labels, index.labels[validates])
    if len(missing):
        some = ", ".join(str(each) for each in missing[:10]) + (", …" if len(missing) > 10 else "")
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


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected an integer from 0, got {text!r}")
    return int(text)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
