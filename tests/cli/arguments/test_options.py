"""A class of options declares a parser: types, defaults, bounds, groups, and the keys of the config."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from ppcls.cli import main as program
from ppcls.cli.arguments.options import Exclusive, OptionsError, argument, option, read_options, required
from ppcls.cli.command import Command, CommandGroup, command
from ppcls.cli.short_options import apply_options
from ppcls.config.base.tree import Tree
from ppcls.recipe.load import ConfigSource

EITHER = Exclusive(required=True)


def double(tree: Tree, value: int) -> dict[str, Any]:
    return {"Global.epochs": value, "Global.seed": 2 * tree["Global"]["epochs"]}


@dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """Do one thing.

    Then do 100 % of another thing.
    """

    examples: ClassVar[Sequence[str]] = ("ppcls example a.jpg",)

    files: tuple[Path, ...] = argument("files", default=())
    lengths: tuple[int, ...] = option((1, 8), "lengths", gt=0)
    kind: Literal["plain", "rich"] = option("plain", "kind of output")
    share: Fraction | int = option(Fraction("0.2"), "share of the images", read=Fraction)
    rate: float | None = option(None, "rate", gt=0, lt=1, key="Optimizer.lr.learning_rate")
    epochs: int | None = option(None, "epochs", key="Global.epochs and seed", sets=double)
    weights: str | bool | None = option(None, "weights; without a value: the best", without_value=True)
    quiet: bool = option(False, "print nothing")
    tags: tuple[str, ...] = option((), "tags", names=["-t"], repeated=True)
    first: str | None = option(None, "first way", exclusive=EITHER)
    second: str | None = option(None, "second way", exclusive=EITHER)

    def __post_init__(self) -> None:
        if self.quiet and self.tags:
            raise OptionsError("--tag: not allowed with --quiet", ["--qiet"])


@command("example", ExampleOptions)
def example(options: ExampleOptions) -> None:
    """Does nothing."""


def test_values_have_the_types_of_the_fields() -> None:
    words = "a.jpg b.jpg --first x --lengths 2 3 --kind rich --share 1/4 --rate 0.5 --epochs 7"
    words += " --weights w -t a -t b"
    options = example.parse(words.split())
    assert options == ExampleOptions(
        files=(Path("a.jpg"), Path("b.jpg")),
        lengths=(2, 3),
        kind="rich",
        share=Fraction(1, 4),
        rate=0.5,
        epochs=7,
        weights="w",
        tags=("a", "b"),
        first="x",
    )
    assert isinstance(options.share, Fraction)


def test_missing_options_have_the_defaults_of_the_class() -> None:
    assert example.parse(["--first", "x"]) == ExampleOptions(first="x")


def test_option_without_a_value_has_its_constant() -> None:
    assert example.parse(["--first", "x", "--weights"]).weights is True


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.parse(["--first", "x"]).kind = "rich"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "one of the arguments --first --second is required"),
        ("--first x --second y", "argument --second: not allowed with argument --first"),
        ("--first x --lengths 0", "argument --lengths: expected an integer > 0, got '0'"),
        ("--first x --rate 1", "argument --rate: expected a number > 0 and < 1, got '1'"),
        ("--first x --epochs 1.5", "argument --epochs: expected an integer, got '1.5'"),
        ("--first x --kind fancy", "argument --kind: invalid choice: 'fancy'"),
        ("--first x --quiet -t a", "--tag: not allowed with --quiet; did you mean '--quiet'?"),
        ("--first x --lenghts 1", "unrecognized arguments: --lenghts; did you mean '--lengths'?"),
    ],
)
def test_invalid_values_are_rejected(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        example(words.split(), "ppcls example")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("ppcls example: error: ")
    assert message in error
    assert error.endswith("\n`ppcls example --help` lists all options\n")


def test_help_contains_description_bounds_defaults_and_keys() -> None:
    text = " ".join(example.parser("ppcls example").format_help().split())
    for part in (
        "Do one thing. Then do 100 % of another thing.",
        "--lengths N [N ...] lengths (default: 1 8)",
        "--kind {plain,rich} kind of output (default: plain)",
        "share of the images (default: 0.2)",
        "--weights [WEIGHTS] weights; without a value: the best",
        "-t TAGS, --tags TAGS",
        "(--first FIRST | --second SECOND)",
        "short options for keys of the config: --rate RATE rate (Optimizer.lr.learning_rate)",
        "examples: ppcls example a.jpg",
    ):
        assert part in text


def test_short_options_set_typed_values_in_order() -> None:
    source = ConfigSource({"Global": {"epochs": 1}}, "file")
    apply_options(example.parse(["--first", "x", "--epochs", "7", "--rate", "0.5"]), source)
    assert source.tree == {"Optimizer": {"lr": {"learning_rate": 0.5}}, "Global": {"epochs": 7, "seed": 2}}
    assert source.origins == {
        "Optimizer.lr.learning_rate": "--rate 0.5",
        "Global.epochs": "--epochs 7",
        "Global.seed": "--epochs 7",
    }


def all_commands() -> Iterator[tuple[str, Command[Any]]]:
    for name, (place, _) in program._COMMANDS.items():
        module, attribute = place.split(":")
        called = getattr(importlib.import_module(module), attribute)
        if isinstance(called, CommandGroup):
            yield from ((f"{name} {each}", member) for each, member in called.commands.items())
        elif isinstance(called, Command):  # not `ppcls launch`, which passes options to Paddle's launcher
            yield name, called


COMMANDS = dict(all_commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_field_of_a_command_is_an_option_with_help(name: str) -> None:
    called = COMMANDS[name]
    options = read_options(called.options)
    assert [each.field for each in options] == [each.name for each in dataclasses.fields(called.options)]
    text = called.parser(f"ppcls {name}").format_help()
    for each in options:
        assert not each.argument.help.endswith(".")
        assert each.argument.positional or each.name in text


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_values_that_the_option_accepts(name: str) -> None:
    for each in read_options(COMMANDS[name].options):
        if each.default in (None, False, ()) or each.default is dataclasses.MISSING:
            continue
        values = each.default if each.many else (each.default,)
        assert not each.choices or set(values) <= set(each.choices)
        if not each.choices:
            convert = each.keywords()["type"]
            assert tuple(convert(str(value)) for value in values) == values


@pytest.mark.parametrize("name", COMMANDS)
def test_paths_are_no_addresses_in_object_storage(name: str) -> None:
    """A path of an address would be that of a folder named s3: in the current folder."""
    for each in read_options(COMMANDS[name].options):
        if each.kind is Path:
            assert "expected a path on this machine, got the address" in each.reject("s3://bucket/folder")
            assert not each.reject("folder")


def test_command_requires_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class NeedyOptions:
        """Need a file and a size."""

        examples: ClassVar[Sequence[str]] = ("ppcls needy a 1",)
        file: Path = argument("file")
        size: int = required("size", names=["-s"])

    with pytest.raises(SystemExit):
        Command("needy", NeedyOptions, lambda _: None)([])
    assert "the following arguments are required: file, -s/--size" in capsys.readouterr().err
