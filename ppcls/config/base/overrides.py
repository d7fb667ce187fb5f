"""Overrides: values that are set after a config file is read, such as those of ``-o`` and ``--epochs``.

An override holds a value, not text. Only ``-o KEY=VALUE`` is parsed, once; the value of a short option or of
the Python API keeps its type. A folder named ``1e5`` or a class named ``on`` must stay text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from typing_extensions import Self

from ppcls.config.base.errors import ConfigError, split_path
from ppcls.config.base.problems import show
from ppcls.config.base.tree import Tree, copy_tree
from ppcls.config.base.yaml import MAX_BYTES, MAX_DEPTH, parse_yaml
from ppcls.files import expand_home

_SHOWN_LENGTH = 100  # characters of an override in messages
_FORM = "expected path=value, such as Global.epochs=10; put images before -o"


@dataclass(frozen=True)
class Override:
    """One value of a config that does not come from its file.

    Attributes:
        path: Keys such as ``DataLoader.Train.sampler.batch_size``. A number is a position in a list, as in
            ``ops.2`` or ``ops[2]``.
        value: Plain data.
        origin: Where the value comes from, for error messages, such as ``-o Global.epochs=10``.
    """

    path: str
    value: Any
    origin: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the override of ``-o path=value``, whose value is YAML.

        Raises:
            ConfigError: The text does not have this form, or the value is not YAML.
        """
        origin = _shorten(f"-o {text}")
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            is_folder = "." not in path.strip(".") and not equals
            note = "; -o sets keys of the config, not the output folder" if is_folder else ""
            raise ConfigError(origin, [f"{_FORM}{note}"])
        if len(value) > MAX_BYTES:
            raise ConfigError(origin, [f"expected a value of at most {MAX_BYTES} bytes"])
        return cls(path, parse_yaml(value, origin), origin)

    @classmethod
    def of_value(cls, path: str, value: Any, origin: str = "") -> Self:
        """Returns an override with a Python value, such as that of a short option.

        Args:
            path: See `Override`.
            value: Plain data; tuples, paths and subclasses of plain types are converted.
            origin: See `Override`; by default ``override`` and the path.

        Raises:
            ConfigError: The value has keys that are not text, or is nested too deep.
        """
        return cls(path, plain(value, path), _shorten(origin) or f"override {path}")

    def apply(self, tree: Tree) -> None:
        """Sets the value in ``tree``, in place. Missing keys are created; validation reports unknown keys.

        Raises:
            ConfigError: A part of the path is neither a mapping nor a list, or a list has no such position.
        """
        keys = split_path(self.path)
        if not all(keys):
            raise ConfigError(self.origin, [_FORM])
        if len(keys) > MAX_DEPTH:
            raise ConfigError(self.origin, [f"nested more than {MAX_DEPTH} levels deep"])
        node: Any = tree
        for depth, key in enumerate(keys[:-1]):
            node = self._child(node, key, ".".join(keys[:depth]))
        parent = ".".join(keys[:-1])
        # A copy, because the tree is translated in place, and one override may be applied to several trees.
        if isinstance(node, list):
            node[self._position(keys[-1], node, parent)] = copy_tree(self.value)
        else:
            self._need_mapping(node, keys[-1], parent)[keys[-1]] = copy_tree(self.value)

    def _child(self, node: Any, key: str, parent: str) -> Any:
        """Returns the value of a key or position in a node. If it is missing, it becomes an empty mapping."""
        if isinstance(node, list):
            return node[self._position(key, node, parent)]
        mapping = self._need_mapping(node, key, parent)
        if mapping.get(key) is None:
            mapping[key] = {}
        return mapping[key]

    def _need_mapping(self, node: Any, key: str, parent: str) -> Tree:
        if not isinstance(node, dict):
            raise ConfigError(
                self.origin, [f"{parent or 'the config'} is {show(node)}, so it has no '{key}'"]
            )
        return node

    def _position(self, key: str, items: list[Any], parent: str) -> int:
        if not items:
            raise ConfigError(self.origin, [f"{parent} is an empty list, so it has no '{key}'"])
        if key not in map(str, range(len(items))):
            last = len(items) - 1
            text = f"{parent} is a list: expected a number from 0 to {last}, got '{key}'"
            raise ConfigError(self.origin, [text])
        return int(key)


Overrides = Sequence[str | Override] | Mapping[str, Any]


def read_overrides(overrides: Overrides) -> list[Override]:
    """Returns overrides in any accepted form as a list.

    Args:
        overrides: Texts ``path=value`` as after ``-o``, overrides, or a mapping of paths to values.

    Raises:
        ConfigError: An override is invalid.
    """
    if isinstance(overrides, Mapping):
        return [Override.of_value(str(path), value) for path, value in overrides.items()]
    listed = [overrides] if isinstance(overrides, str) else overrides
    return [item if isinstance(item, Override) else Override.parse(item) for item in listed]


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Returns a copy with plain dicts, lists and strings instead of subclasses and similar types.

    Args:
        value: Value that a Python program sets.
        where: Key or name of the value, for error messages.
        depth: Number of mappings and lists around the value.

    Raises:
        ConfigError: A key is not text, or the value is nested too deep, for example because it contains
            itself.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(where, [f"nested more than {MAX_DEPTH} levels deep"])
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(where, [f"expected text as a key, got {show(key)}"])
        return {str(key): plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    return expand_home(str(value)) if isinstance(value, (str, PurePath)) else value


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
