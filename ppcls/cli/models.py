"""``tools/models.py``: the architectures that ``Arch.name`` knows, and what each costs."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from ppcls.cli.options import add_command
from ppcls.errors import UserError
from ppcls.registry import ARCHITECTURES, nearest
from ppcls.runtime.start import start_on_cpu


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/models.py", description="The architectures that Arch.name knows."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = add_command(commands, "list", "name, parameters, multiply-adds and input size of each")
    listing.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names, such as 'ResNet*'; all")
    listing.add_argument("--json", action="store_true", help="one JSON list")
    arguments = parser.parse_args(argv)
    try:
        rows = _measured(_chosen(arguments.patterns))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        _show(rows)
    return 0


def _chosen(patterns: Sequence[str]) -> list[str]:
    """Returns the names that match any of ``patterns``.

    Raises:
        UserError: One of them matches none.
    """
    known = list(ARCHITECTURES)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = nearest(pattern, known, "`list` without a pattern has all")
            raise UserError(f"no architecture matches '{pattern}'{hint}")
    return [name for name in known if not patterns or any(fnmatchcase(name, each) for each in patterns)]


def _measured(names: list[str]) -> list[dict[str, Any]]:
    from functools import partial

    from rich.console import Console
    from rich.progress import track

    start_on_cpu()

    from ppcls.arch.build import build_model, input_shape
    from ppcls.arch.cost import measure

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in track(names, "Measuring", console=Console(stderr=True), transient=True):
            shape = input_shape(name)
            cost = measure(partial(build_model, name, input_image_channel=shape[0]), shape)
            rows.append({"name": name, **cost._asdict(), "input_shape": list(shape)})
    return rows


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", caption="FLOPs: multiply-adds of one image")
    for title in ("parameters", "FLOPs", "input"):
        table.add_column(title, justify="right")
    for row in rows:
        _, height, width = row["input_shape"]
        table.add_row(
            row["name"],
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['flops'] / 1e9:.2f} G",
            f"{height}×{width}",
        )
    Console().print(table)
