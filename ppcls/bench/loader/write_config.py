"""A copy of a config with other values, and all its comments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from ppcls.config.load import apply_override, read_tree
from ppcls.errors import UserError
from ppcls.files import atomic_path

_WIDTH = 1 << 16  # no line is broken


def claim(path: Path) -> Path:
    """Shows, before the work is done, that a copy can be written there.

    Raises:
        UserError: There is something already, or no folder to put it in.
    """
    if path.exists():
        raise UserError(f"--write-config {path}: is there already, and is not overwritten; name a new file")
    if not path.parent.is_dir():
        raise UserError(f"--write-config {path}: there is no folder {path.parent}")
    return path


def write_config(source: Path, target: Path, values: Mapping[str, Any]) -> None:
    """Writes a copy of a YAML with some values set; comments, order and quotes stay.

    Args:
        source: The YAML.
        target: A new file.
        values: Path, such as ``DataLoader.Train.loader.num_workers``, to value.

    Raises:
        UserError: ``target`` is there already, or can't be written; or the copy would not say the same, for
            ``source`` has something that is written otherwise than it was read.
    """
    yaml: Any = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    yaml.boolean_representation = ["False", "True"]
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree, expected = yaml.load(source.read_text(encoding="utf-8")), read_tree(source)
    for path, value in values.items():
        _set(tree, path, value)
        apply_override(expected, f"{path}={value}")
    with atomic_path(claim(target)) as temporary:
        with temporary.open("x", encoding="utf-8") as file:
            yaml.dump(tree, file)
        if read_tree(temporary) != expected:
            settings = " ".join(f"{path}={value}" for path, value in values.items())
            raise UserError(f"{source}: can't be copied with its comments; use it with -o {settings}")


def _set(tree: Any, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for key in parents:
        if tree.get(key) is None:
            tree[key] = CommentedMap()
        tree = tree[key]
    tree[name] = value
