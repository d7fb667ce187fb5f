"""Writes a copy of a config in which some values are changed and all comments are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from ppcls.commands import set_keys
from ppcls.config.base.overrides import Override
from ppcls.config.base.yaml import read_yaml
from ppcls.errors import UserError
from ppcls.files import atomic_path
from ppcls.files.outputs import check_suffix

_WIDTH = 1 << 16  # characters, so that no line is wrapped


def check_new_file(path: Path) -> Path:
    """Returns the path of a file that can be created.

    Raises:
        UserError: The file exists, or its folder does not.
    """
    check_suffix("--write-config", path, ".yaml", ".yml")
    if path.exists():
        raise UserError(f"--write-config {path}: already exists and is not overwritten; choose a new file")
    if not path.parent.is_dir():
        raise UserError(f"--write-config {path}: no such folder: {path.parent}")
    return path


def write_config(source: Path, target: Path, values: Mapping[str, Any]) -> None:
    """Writes a copy of a YAML file with changed values. Comments, order and quotes do not change.

    Raises:
        UserError: ``target`` exists or cannot be written, or the copy would not have the expected values.
    """
    yaml: Any = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    yaml.boolean_representation = ["False", "True"]
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load(source.read_text(encoding="utf-8"))
    expected = read_yaml(source)
    for path, value in values.items():
        *parents, name = path.split(".")
        section = tree
        for key in parents:
            if section.get(key) is None:
                section[key] = CommentedMap()
            section = section[key]
        section[name] = value
        Override.of_value(path, value).apply(expected)
    with atomic_path(check_new_file(target)) as temporary:
        with temporary.open("x", encoding="utf-8") as file:
            yaml.dump(tree, file)
        if read_yaml(temporary) != expected:
            raise UserError(
                f"{source}: cannot write a copy with the new settings and the original comments; use "
                f"{source} with {set_keys(values)} instead"
            )
