"""YAML text or plain dicts, and what overrides them, to a validated `Config`."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NoReturn, cast

import yaml
from pydantic import ValidationError

from ppcls.config.base.errors import ConfigError, describe
from ppcls.config.base.fields import show
from ppcls.config.class_folders import fill_from_class_folders
from ppcls.config.compat import translate_old_keys
from ppcls.config.schema import Config
from ppcls.errors import UserError

_MOST_BYTES = 1 << 20
_MOST_VALUES = 100_000
_SHOWN = 80  # characters of what can't be right
_DEEPEST = 50  # mappings and lists within each other


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses duplicate keys; ``1e-3`` is a number, as in YAML 1.2, and a date is text.

    How many values a node has, and how deep they are, is known before any is made, aliases expanded: else a
    few lines could ask for more than there is memory.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._extents: dict[yaml.Node, tuple[int, int]] = {}  # values and depth
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"nested too deeply: more than {_DEEPEST} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if isinstance(event, yaml.AliasEvent) and node not in self._extents:
            self._refuse("an alias within what it stands for", event.start_mark)
        if node not in self._extents:
            self._extents[node] = self._extent(node)
        return node

    def _extent(self, node: yaml.Node) -> tuple[int, int]:
        """Returns how many values a node has and how deep they are, its parts being known."""
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        values = 1 + sum(self._extents[part][0] for part in parts)
        depth = 1 + max((self._extents[part][1] for part in parts), default=0)
        if values > _MOST_VALUES:
            self._refuse(f"more than {_MOST_VALUES} values, aliases expanded", node.start_mark)
        if depth > _DEEPEST:
            self._refuse(f"nested too deeply: more than {_DEEPEST} levels, aliases expanded", node.start_mark)
        return values, depth

    def _refuse(self, text: str, mark: Any) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, text, mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "expected a plain key", key.start_mark)
            name = (key.tag, key.value)
            if name in lines:
                text = f"duplicate key '{key.value}', first given in line {lines[name]}"
                raise yaml.composer.ComposerError(None, None, text, key.start_mark)
            lines[name] = key.start_mark.line + 1
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # PyYAML lets these escape for scalars such as `0x_` and `!!bool maybe`.
            text = f"can't read this value: {error}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number."""


_TIME = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != _TIME]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _at_home(text: str) -> str:
    """Writes out a path in the home folder: no shell does it in ``-o KEY=~/…``, nor anybody in YAML."""
    return str(Path(text).expanduser()) if text.startswith("~/") else text


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return _at_home(str(loader.construct_scalar(node)))


_Loader.add_constructor("tag:yaml.org,2002:str", _text)
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


def _parse(text: str, source: Path | str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(source, [f"{where}{error.problem}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError(source, [f"not YAML: {error}"]) from None


def read_tree(path: Path) -> dict[str, Any]:
    """Reads a YAML file as plain dicts and lists.

    Raises:
        UserError: No such file, or it can't be read.
        ConfigError: Not YAML, a duplicate key, or not a mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except FileNotFoundError:
        near = sorted(path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; there are: {', '.join(map(str, near))}" if near else ""
        raise UserError(f"{path}: no such config file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't read this config: {error}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(path, [f"larger than {_MOST_BYTES} bytes; is it a config?"])
    tree = _parse(text, path)
    if tree is None:
        raise ConfigError(path, ["the file is empty; expected sections such as Global and Arch"])
    if not isinstance(tree, dict):
        raise ConfigError(path, [f"expected sections such as Global and Arch, got {show(tree)}"])
    return cast(dict[str, Any], _unshare(tree))


def _unshare(node: Any) -> Any:
    """Copies what YAML aliases share, so that ``-o`` changes one place and not its twins."""
    if isinstance(node, dict):
        return {key: _unshare(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_unshare(value) for value in node]
    return node


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Sets one value in ``tree``, in place: ``"DataLoader.Train.sampler.batch_size=8"``.

    A number in the path counts list items, as ``ops.2`` or ``ops[2]``; the value is read as YAML. A
    key that is not there is made; validation then says whether it exists.

    Raises:
        ConfigError: Not of the form ``path=value``, or the path leads through something that is
            neither mapping nor list, or past a list's end.
    """
    source = f"-o {override}"
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(source, ["expected path=value, such as Global.epochs=10"])
    if len(text) > _MOST_BYTES:
        raise ConfigError(source[:_SHOWN], ["longer than any value of a config"])
    set_value(tree, path, _parse(text, source), source)


def set_value(tree: dict[str, Any], path: str, value: Any, source: str) -> None:
    """Sets one value in ``tree``, in place, as `apply_override` does.

    Args:
        tree: Of mappings and lists.
        path: Such as ``"DataLoader.Train.sampler.batch_size"``.
        value: Plain data.
        source: Names the override in errors.

    Raises:
        ConfigError: The path leads through something that is neither mapping nor list, or past a list's end.
    """
    keys = re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")
    if not all(keys):
        raise ConfigError(source, ["expected path=value, such as Global.epochs=10"])
    if len(keys) > _DEEPEST:
        raise ConfigError(source[:_SHOWN], ["longer than any value of a config"])
    node: Any = tree
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        here = ".".join(keys[:depth]) or "the config"
        if isinstance(node, list):
            position = _position(key, node, here, source)
            if last:
                node[position] = value
            node = node[position]
        elif isinstance(node, dict):
            if last:
                node[key] = value
            elif node.get(key) is None:
                node[key] = {}
            node = node[key]
        else:
            raise ConfigError(source, [f"{here} is {show(node)}, so it has no '{key}'"])


def _position(key: str, items: list[Any], here: str, source: str) -> int:
    if not items:
        raise ConfigError(source, [f"{here} is an empty list, so it has no '{key}'"])
    if key not in map(str, range(len(items))):
        last = len(items) - 1
        raise ConfigError(source, [f"{here} is a list: expected a number from 0 to {last}, got '{key}'"])
    return int(key)


def validate(tree: dict[str, Any], source: Path | str) -> Config:
    """Checks a tree.

    Raises:
        ConfigError: All that is wrong with it.
    """
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(source, describe(tree, error)) from None


def load_config(
    source: Path | str | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Config:
    """Reads, edits and checks a config.

    Args:
        source: The YAML file, or what one would hold as plain data; a dict is not changed.
        overrides: ``path=value`` each, as after ``-o``; or path to value, such as
            ``{"Global.epochs": 2}`` (``{"Global": {…}}`` would be the whole section). Applied in order before
            validation.

    Raises:
        UserError: The file can't be read, or the folder that is to say which classes there are.
        ConfigError: All that is wrong with the YAML, the overrides or the config.
    """
    if isinstance(source, Mapping):
        tree, name = _plain(source, "the config"), "the config"
    else:
        tree, name = read_tree(Path(source)), str(source)
    if isinstance(overrides, Mapping):
        for path, value in overrides.items():
            set_value(tree, str(path), _plain(value, str(path)), f"override {path}")
    else:
        for override in [overrides] if isinstance(overrides, str) else overrides:
            apply_override(tree, override)
    translate_old_keys(tree)
    fill_from_class_folders(tree)
    return validate(tree, name)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Copies what a program hands over, with dicts, lists and text in the place of their kin.

    Raises:
        ConfigError: A key is no text, or it is nested without end.
    """
    if depth > _DEEPEST:
        raise ConfigError(where, [f"nested too deeply: more than {_DEEPEST} levels"])
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(where, [f"expected text as a key, got {show(key)}"])
        return {str(key): _plain(each, where, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, where, depth + 1) for each in value]
    return _at_home(str(value)) if isinstance(value, (str, PurePath)) else value


def dump_config(config: Config) -> str:
    """Returns the config with every default filled in, as YAML that `load_config` reads back."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
