"""Options that several commands share: the config, its overrides, numbers within bounds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

from ppcls.config.base.fields import Bound
from ppcls.errors import UserError
from ppcls.registry import suggest

if TYPE_CHECKING:  # not needed for --help
    from ppcls.config.schema import Config
    from ppcls.runtime.start import Runtime

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Number = TypeVar("Number", int, float)


def add_subcommand(subcommands: Subcommands, name: str, summary: str) -> argparse.ArgumentParser:
    """Adds a subcommand with a summary for the list of all subcommands and for its own ``--help``."""
    return subcommands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests an option for an unknown one.

    Attributes:
        elsewhere: Options of other commands, each with the command.
    """

    elsewhere: Mapping[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Exits with code 2 and the message."""
        title, _, unknown = message.partition("unrecognized arguments: ")
        super().error(message if title or not unknown else f"{message}{self._suggest(unknown.split())}")

    def _suggest(self, unknown: Sequence[str]) -> str:
        name = next((text.partition("=")[0] for text in unknown if text.startswith("-")), None)
        if name is None:
            return ""
        if "." in name:
            return f"; to set a key of the config, use -o {name.lstrip('-')}=VALUE"
        if name in self.elsewhere:
            return f"; {name} is an option of {self.elsewhere[name]}"
        return suggest(name, list(self._option_string_actions), "--help lists all options")


def config_parser(description: str, model: str | None = None, required: bool = True) -> CommandParser:
    """Returns a parser with the options of `add_config_options`."""
    parser = CommandParser(
        description=description, epilog="docs/config.md describes every key of the config."
    )
    add_config_options(parser, model, required)
    return parser


def add_config_options(
    parser: argparse.ArgumentParser, model: str | None = None, required: bool = True
) -> None:
    """Adds ``-c``, ``-o`` and ``--print-config``, which `read_config` reads.

    Args:
        parser: The parser to extend.
        model: Help of ``--model``, which replaces ``-c``; None for a command without it.
        required: Whether the command needs ``-c`` or ``--model``.
    """
    group = parser.add_mutually_exclusive_group(required=required) if model is not None else parser
    group.add_argument("-c", "--config", required=required and model is None, help="YAML file")
    if model is not None:
        group.add_argument("--model", metavar="PATH", help=model)
    add_override(parser, "set values of the config, such as Global.epochs=10")
    parser.add_argument("--print-config", action="store_true", help="print the resolved config and exit")


def add_override(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds ``-o KEY=VALUE …``, which can be repeated, with ``text`` as its help."""
    parser.add_argument(
        "-o", "--override", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=text
    )


def read_config(arguments: argparse.Namespace, overrides: Sequence[str] = ()) -> Config | None:
    """Returns the config; None after printing it for ``--print-config``.

    Args:
        arguments: The parsed command line.
        overrides: ``KEY=VALUE`` each, applied before ``-o``.
    """
    from ppcls.config.compat import config_warnings
    from ppcls.config.load import dump_config, load_config

    config = load_config(arguments.config, [*overrides, *arguments.override])
    if arguments.print_config:
        for line in config_warnings(config):
            print(line, file=sys.stderr)  # noqa: T201
        sys.stdout.write(dump_config(config))
        return None
    return config


def require_single_process(runtime: Runtime) -> None:
    """Checks that the command was not started by the launcher as one of several processes.

    Raises:
        UserError: It was.
    """
    if runtime.world_size > 1:
        raise UserError("this command runs as one process; start it without paddle.distributed.launch")


def within(kind: type[Number], **bounds: float) -> Callable[[str], Number]:
    """Returns a function for argparse that reads a number and rejects one out of bounds, as the config does.

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


positive_int = within(int, gt=0)
non_negative_int = within(int, ge=0)
positive_float = within(float, gt=0)
