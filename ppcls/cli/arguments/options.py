"""Declares the options of a command as a frozen dataclass, from which its parser follows.

Each command has one class of options in its file. A field is one option: its annotation is the type of the
value, its default is the default of the command, and `option`, `required` or `argument` adds the help. Thus
a new option is one field, and mypy and editors know its type wherever it is used::

    @dataclass(frozen=True, kw_only=True)
    class InferOptions:
        \"\"\"Predict the classes of images.\"\"\"  # the description in --help

        examples: ClassVar[Sequence[str]] = ("ppcls infer photo.jpg",)  # the end of --help

        images: tuple[Path, ...] = argument("image files and folders", default=())
        topk: int | None = option(None, "number of classes per image", gt=0, key="Infer.PostProcess.topk")

The module imports neither pydantic nor PyYAML, so that ``--help`` appears at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import numbers
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)
from typing import get_type_hints as resolve_annotations

from ppcls.config.base.bounds import Bounds
from ppcls.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ppcls.config.base.tree import Tree

_KEY = "argument"  # in the metadata of a field
_BOUNDS = ("gt", "ge", "lt", "le")
_SHORT_OPTIONS = "short options for keys of the config"
T = TypeVar("T")
Number = TypeVar("Number", int, float)


class OptionsError(ValueError):
    """Raised by an options class whose values contradict each other. The command prints it as a usage error.

    Args:
        text: The message.
        written: Words of the command line, such as ``epochs=3``, for which options are suggested.
    """

    def __init__(self, text: str, written: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.written = tuple(written)


@dataclass(frozen=True, eq=False)
class Exclusive:
    """A group of options of which only one can be used.

    Attributes:
        required: Whether one of them must be used.
    """

    required: bool = False


class Settings(TypedDict, total=False):
    """Optional settings of an option.

    Attributes:
        names: Further names, such as ``-c``.
        metavar: Name of the value in the help; by default ``N`` for an integer.
        choices: Accepted texts, if a registry has them. Otherwise, they are in a `Literal` type.
        gt: Lower bound of a number, which it must exceed.
        ge: Smallest number.
        lt: Upper bound of a number, which must be smaller.
        le: Largest number.
        without_value: Value of the option if it is written without one.
        repeated: Whether each use of the option adds one value to the tuple. Otherwise each adds one or more.
        read: Function that converts the text, for types other than numbers, text and paths.
        key: Key of the config that the option sets, or a description of several keys.
        sets: Function that returns the keys to set and their values, given the config as plain data and the
            value of the option. Without it, the option sets ``key``.
        exclusive: Group of options of which only one can be used.
        group: Title of a group in the help.
    """

    names: Sequence[str]
    metavar: str
    choices: Sequence[str]
    gt: float
    ge: float
    lt: float
    le: float
    without_value: Any
    repeated: bool
    read: Callable[[str], Any]
    key: str
    sets: Callable[[Tree, Any], dict[str, Any]]
    exclusive: Exclusive
    group: str


@dataclass(frozen=True)
class Declaration:
    """What the parser knows about a field, besides its name, type and default.

    Attributes:
        help: Description of the value.
        positional: Whether the value is written without the name of the option.
        settings: Further settings.
    """

    help: str
    positional: bool
    settings: Settings


def option(default: T, help: str, **settings: Unpack[Settings]) -> T:
    """Returns the field of an option ``--name``. For settings, see `Settings`."""
    return field(default=default, metadata={_KEY: Declaration(help, False, settings)})


def required(help: str, **settings: Unpack[Settings]) -> Any:
    """Returns the field of an option that must be used."""
    return field(metadata={_KEY: Declaration(help, False, settings)})


def argument(help: str, *, default: Any = dataclasses.MISSING, **settings: Unpack[Settings]) -> Any:
    """Returns the field of a positional argument. Without a default, it must be used."""
    return field(default=default, metadata={_KEY: Declaration(help, True, settings)})


@dataclass(frozen=True)
class Option:
    """An option of a command, or a positional argument.

    Attributes:
        field: Name of the field.
        kind: Type of a value: ``int``, ``float``, ``str``, ``Path`` or ``bool``.
        choices: Accepted values; empty if any value of the type is accepted.
        many: Whether the field is a tuple.
        default: Default value; `dataclasses.MISSING` if the option must be used.
        argument: Description and settings.
    """

    field: str
    kind: Callable[[str], Any]
    choices: tuple[Any, ...]
    many: bool
    default: Any
    argument: Declaration

    @property
    def name(self) -> str:
        """Name on the command line, such as ``--batch-size``."""
        return self.field if self.argument.positional else f"--{self.field.replace('_', '-')}"

    @property
    def names(self) -> list[str]:
        """All names on the command line, the short ones first."""
        names = sorted(
            (*self.argument.settings.get("names", ()), self.name), key=lambda name: name[:2] == "--"
        )
        return names

    @property
    def key(self) -> str | None:
        """Key of the config that the option sets; None for other options."""
        return self.argument.settings.get("key")

    def help(self) -> str:
        """Returns the text in ``--help``: the description, the key, and the default."""
        text = self.argument.help
        if self.key is not None:
            text += f" ({self.key})"
        constant = self.argument.settings.get("without_value")
        if isinstance(constant, str) and constant and "without a value" not in text:
            text += f" (without a value: {constant})"
        if shown := _show_default(self.default):
            text += f" (default: {shown})"
        return text.replace("%", "%%")  # argparse replaces %(default)s and similar texts

    def keywords(self) -> dict[str, Any]:
        """Returns the keyword arguments of ``add_argument``."""
        settings = self.argument.settings
        # The dataclass has the defaults, so the parser returns only the values on the command line. For a
        # positional argument without a value it returns None: argparse would convert SUPPRESS to the type.
        keywords: dict[str, Any] = {"help": self.help()}
        is_required = self.default is dataclasses.MISSING
        if not self.argument.positional:
            keywords["default"] = argparse.SUPPRESS
            keywords["dest"] = self.field
            keywords["required"] = is_required
        if self.kind is bool:
            return {**keywords, "action": "store_true"}
        if "metavar" in settings or self.kind is int:
            keywords["metavar"] = settings.get("metavar", "N")
        if self.choices:
            keywords["choices"] = self.choices
        keywords["type"] = self._converter()
        if self.many and self.argument.positional:
            keywords["nargs"] = "+" if is_required else "*"
        elif self.many:
            keywords |= (
                {"action": "append"} if settings.get("repeated") else {"action": "extend", "nargs": "+"}
            )
        elif "without_value" in settings:
            keywords |= {"nargs": "?", "const": settings["without_value"]}
        elif self.argument.positional and not is_required:
            keywords["nargs"] = "?"
        return keywords

    def reject(self, text: str) -> str:
        """Returns why the option does not accept a value; "" if it does."""
        try:
            value = self._converter()(text)
        except argparse.ArgumentTypeError as error:
            return str(error)
        choices = ", ".join(map(str, self.choices))
        return (
            f"expected one of {choices}; got '{text}'" if self.choices and value not in self.choices else ""
        )

    def convert(self, value: Any) -> Any:
        """Returns the value of an argument of the Python API as the command line would set it.

        True stands for the option without a value, and False for its absence.

        Raises:
            UserError: The option does not accept the value.
        """
        if value is False or value is None:
            return None
        if value is True:
            return self.argument.settings.get("without_value", True)
        if self.kind is bool:
            raise UserError(f"{self.field}: expected True or False, got {value!r}")
        if isinstance(value, str) and self.kind is str:
            if problem := self.reject(value):
                raise UserError(f"{self.field}: {problem}")
            return self._converter()(value)
        if not self._is_number(value):
            expected = "an integer" if self.kind is int else "a number"
            from ppcls.config.base.problems import show

            raise UserError(f"{self.field}: expected {expected}, got {show(value)}")
        return value

    def _is_number(self, value: Any) -> bool:
        """Returns whether a value is a number, or the option accepts other values, too."""
        if "read" in self.argument.settings or self.kind not in (int, float):
            return True
        # Numbers of NumPy are registered as such.
        return isinstance(value, numbers.Integral if self.kind is int else numbers.Real)

    def _converter(self) -> Callable[[str], Any]:
        settings = self.argument.settings
        if "read" in settings:
            return settings["read"]
        if self.choices and self.kind is str:
            return self._read_choice
        if self.kind in (int, float):
            bounds = {name: limit for name, limit in settings.items() if name in _BOUNDS}
            return within(cast(type[int], self.kind), **cast(dict[str, float], bounds))
        return read_path if self.kind is Path else self.kind

    def _read_choice(self, text: str) -> str:
        """Returns the choice that a text names, in upper or lower case; the text itself if there is none."""
        same = [choice for choice in self.choices if str(choice).lower() == text.lower()]
        return str(same[0]) if len(same) == 1 else text


def _show_default(default: Any) -> str:
    """Returns a default for the help; "" for one that needs no mention, such as None and False."""
    if default is dataclasses.MISSING or default is None or default is False or default in ("", (), " "):
        return ""
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return f"{float(default):g}" if isinstance(default, (float, Fraction)) else str(default)


def read_path(text: str) -> Path:
    """Returns the path of an argument, which may not be an address in object storage."""
    from ppcls.files.outputs import explain_address  # slow, and only for options with a path
    from ppcls.files.urls import is_url

    if is_url(text):
        raise argparse.ArgumentTypeError(explain_address(text))
    return Path(text)


def within(kind: type[Number], **bounds: float) -> Callable[[str], Number]:
    """Returns a function that converts an argument to a number, and rejects it if it is out of bounds.

    Args:
        kind: ``int`` or ``float``.
        **bounds: See `ppcls.config.base.bounds.Bounds`.
    """
    bound = Bounds(**bounds)

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not bound.holds(value):
            raise argparse.ArgumentTypeError(f"expected {bound.describe(kind)}, got '{text}'")
        return value

    return read


def read_options(cls: type[Any]) -> tuple[Option, ...]:
    """Returns the options that the fields of a class declare, in order."""
    annotations = resolve_annotations(cls)
    return tuple(_read_option(each, annotations[each.name]) for each in dataclasses.fields(cls))


def _read_option(declared: dataclasses.Field[Any], annotation: Any) -> Option:
    described: Declaration = declared.metadata[_KEY]
    many = get_origin(annotation) is tuple
    kind = get_args(annotation)[0] if many else annotation
    if get_origin(kind) in (Union, types.UnionType):
        # None is the absence of the option, and True its use without a value: text never becomes a bool.
        members = [member for member in get_args(kind) if member not in (bool, types.NoneType)]
        kind = members[0]
    choices: tuple[Any, ...] = tuple(described.settings.get("choices", ()))
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        kind = str
    return Option(declared.name, kind, choices, many, declared.default, described)


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Adds options to a parser, in order, but all options of an exclusive group together."""
    titled: dict[str, argparse._ArgumentGroup] = {}
    added = set[Exclusive]()
    for each in options:
        settings = each.argument.settings
        title = settings.get("group", _SHORT_OPTIONS if each.key is not None else None)
        target: argparse._ActionsContainer = parser
        if title is not None:
            if title not in titled:
                titled[title] = parser.add_argument_group(title)
            target = titled[title]
        group = settings.get("exclusive")
        if group is None:
            target.add_argument(*each.names, **each.keywords())
        elif group not in added:
            added.add(group)
            exclusive = target.add_mutually_exclusive_group(required=group.required)
            for member in options:
                if member.argument.settings.get("exclusive") is group:
                    exclusive.add_argument(*member.names, **member.keywords())


def describe(cls: type[Any]) -> str:
    """Returns the description of a command: the docstring of its options class."""
    return inspect.cleandoc(cls.__doc__ or "")


def summarize(cls: type[Any]) -> str:
    """Returns the first line of a command's description for a list of commands."""
    line = describe(cls).splitlines()[0].rstrip(".")
    return f"{line[:1].lower()}{line[1:]}"


def parsed_options(cls: type[T], parsed: argparse.Namespace) -> T:
    """Returns the options with the values on the command line.

    Raises:
        OptionsError: The values contradict each other.
    """
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parsed).items()
        if value is not None  # a positional argument without a value, whose default the class has
    }
    return cls(**values)
