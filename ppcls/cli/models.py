"""``ppcls models``: lists architectures, measures their cost and downloads their published weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ppcls.cli.arguments.options import argument, option
from ppcls.cli.command import CommandGroup, command, write_output
from ppcls.errors import UserError
from ppcls.registry import suggest
from ppcls.runtime.start import start_on_cpu
from ppcls.zoo import ZOO, Architecture, published_file

_PATTERNS = "architectures to select, such as 'ResNet*' (default: all)"


@dataclass(frozen=True, kw_only=True)
class ListModelsOptions:
    """Print the name, parameters, multiply-adds, input size and published top-1 accuracy of architectures."""

    examples: ClassVar[Sequence[str]] = ("ppcls models list", "ppcls models list 'ResNet*' 'Swin*' --json")

    patterns: tuple[str, ...] = argument(
        "names or parts of names, or patterns such as 'ResNet*' (default: all)", default=(), metavar="PATTERN"
    )
    json: bool = option(False, "print the result as a JSON list")


@dataclass(frozen=True, kw_only=True)
class MeasureModelsOptions:
    """Build the models, and count their parameters and multiply-adds."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls models measure ResNet50",
        "ppcls models measure 'MobileNet*' --json",
    )

    patterns: tuple[str, ...] = argument(_PATTERNS, default=(), metavar="PATTERN")
    speed: bool = option(
        False,
        "also measure how many images per second one CPU core predicts, with batches of one image in float32",
    )
    json: bool = option(False, "print the result as a JSON list")


@dataclass(frozen=True, kw_only=True)
class FetchModelsOptions:
    """Download published weights to ~/.paddleclas/weights, or to $PPCLS_HOME/weights."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls models fetch ResNet50",
        "ppcls models fetch ResNet50_vd_ssld MobileNetV3_small_x1_0",
    )

    names: tuple[str, ...] = argument(
        "architecture, such as ResNet50, or variant of its weights, such as ResNet50_vd_ssld", metavar="NAME"
    )


@command("list", ListModelsOptions)
def _list(options: ListModelsOptions) -> None:
    """Prints the figures of the table of architectures."""
    _print_rows(_list_rows(_select([_widen(each) for each in options.patterns])), options.json)


@command("measure", MeasureModelsOptions)
def _measure(options: MeasureModelsOptions) -> None:
    """Prints the cost of models, which it builds."""
    selected = _select(options.patterns)
    rows = _speed_rows(selected) if options.speed else _measure_rows(selected)
    _print_rows(rows, options.json)


@command("fetch", FetchModelsOptions)
def _fetch(options: FetchModelsOptions) -> None:
    """Downloads the published weights that are not on this machine yet, and prints the paths of all."""
    start_on_cpu()

    from ppcls.weights.files import fetch_weights

    for name in options.names:
        if published_file(name) is None:
            raise UserError(f"{name}: no published weights with this name{suggest(name, list(ZOO))}")
        write_output(f"{fetch_weights(Path(name))}\n")


def _select(patterns: Sequence[str]) -> list[Architecture]:
    """Returns the architectures whose names match any pattern; without patterns, all architectures.

    Upper and lower case are equal, because names of architectures mix them.
    """
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in ZOO):
            hint = suggest(pattern, list(ZOO), "`list` without a pattern prints all names")
            raise UserError(f"no architecture matches '{pattern}'{hint}")
    return [
        architecture
        for name, architecture in ZOO.items()
        if not patterns or any(_matches(name, pattern) for pattern in patterns)
    ]


def _widen(text: str) -> str:
    """Returns a pattern for all names that contain a text, unless it is a name or a pattern."""
    is_pattern = any(character in text for character in "*?[")
    if is_pattern or any(_matches(name, text) for name in ZOO):
        return text
    wide = f"*{text}*"
    return wide if any(_matches(name, wide) for name in ZOO) else text


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


def _list_rows(selected: list[Architecture]) -> list[dict[str, Any]]:
    """Returns the rows of a table. Architectures with published weights come first."""
    ordered = sorted(selected, key=lambda each: not (each.top1 or each.package))
    return [_row(architecture, architecture.parameters, architecture.flops) for architecture in ordered]


def _measure_rows(selected: list[Architecture]) -> list[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import track

    start_on_cpu()

    from ppcls.arch.build import build_model
    from ppcls.arch.cost import measure

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for architecture in track(selected, "Measuring", console=Console(stderr=True), transient=True):
            build = partial(build_model, architecture.name, input_image_channel=architecture.channels)
            rows.append(_row(architecture, *measure(build, architecture.input_shape)))
    return rows


def _speed_rows(selected: list[Architecture]) -> list[dict[str, Any]]:
    rows = _measure_rows(selected)

    from ppcls.arch.build import build_model
    from ppcls.arch.cost import measure_speed

    for row, architecture in zip(rows, selected, strict=True):
        model = build_model(architecture.name, input_image_channel=architecture.channels)
        row["cpu_images_per_second"] = round(measure_speed(model, architecture.input_shape), 2)
    return rows


def _row(architecture: Architecture, parameters: int, flops: int) -> dict[str, Any]:
    return {
        "name": architecture.name,
        "parameters": parameters,
        "flops": flops,
        "input_shape": list(architecture.input_shape),
        "top1": dict(architecture.top1),
    }


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_output(json.dumps(rows, indent=1) + "\n")
    else:
        _print_table(rows)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", caption="FLOPs: multiply-adds of one image. top-1: published by PaddleClas, in %")
    for title in ("parameters", "FLOPs", "input", "top-1"):
        table.add_column(title, justify="right")
    measured = any("cpu_images_per_second" in row for row in rows)
    if measured:
        table.add_column("images/s per core", justify="right")
    for row in rows:
        _, height, width = row["input_shape"]
        published = [
            f"{'' if kind == 'plain' else f'{kind} '}{top1:.2f}"
            for kind, top1 in row["top1"].items()
            if top1 is not None
        ]
        table.add_row(
            row["name"],
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['flops'] / 1e9:.2f} G",
            f"{height}×{width}",
            ", ".join(published),
            *([f"{row['cpu_images_per_second']:.1f}"] if measured else []),
        )
    Console().print(table)


main = CommandGroup(
    "models",
    "List or measure architectures, or download their weights.",
    ("ppcls models list 'ResNet*'", "ppcls models fetch ResNet50"),
    (_list, _measure, _fetch),
    other_names={
        **dict.fromkeys(("show", "info", "search", "find", "names", "ls", "pretrained"), "list"),
        **dict.fromkeys(("download", "pull", "get", "weights"), "fetch"),
        **dict.fromkeys(("benchmark", "speed", "flops", "profile", "summary"), "measure"),
    },
)
