"""What many command lines have: commands that say what they do, numbers within bounds, and ``-o``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ppcls.config.base.fields import Bound

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Number = TypeVar("Number", int, float)


def add_command(commands: Commands, name: str, about: str) -> argparse.ArgumentParser:
    """Adds a command, which says ``about`` of itself in the list of all and in its own ``--help``."""
    return commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")


def within(kind: type[Number], **bounds: float) -> Callable[[str], Number]:
    """Returns what reads a number for argparse; others are refused in the words that a config is refused in.

    Args:
        kind: ``int`` or ``float``.
        **bounds: See `ppcls.config.base.fields.Bound`.
    """
    bound = Bound(**bounds)

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not bound.holds(value):
            raise argparse.ArgumentTypeError(f"expected {bound.describe(kind)}, got '{text}'")
        return value

    return read


positive = within(int, gt=0)
whole = within(int, ge=0)
above_zero = within(float, gt=0)


def add_override(made: argparse.ArgumentParser, text: str) -> None:
    """Adds ``-o KEY=VALUE …``, which may come several times.

    Args:
        made: Gets the option.
        text: What it says of itself.
    """
    made.add_argument(
        "-o", "--override", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=text
    )
