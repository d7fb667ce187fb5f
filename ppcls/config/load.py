"""Loads a config from YAML or plain dicts, applies overrides, and validates it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NoReturn, cast

import yaml
from pydantic import ValidationError

from ppcls.config.base.errors import ConfigError, describe_problems, split_path
from ppcls.config.base.fields import show
from ppcls.config.base.tree import node_at
from ppcls.config.class_folders import fill_from_class_folders
from ppcls.config.compat import translate_old_keys
from ppcls.config.paddleclas import describe_other_file, translate_paddleclas
from ppcls.config.schema import Config
from ppcls.config.sections.run import MODULE_NAME
from ppcls.errors import UserError
from ppcls.files import expand_home, open_regular
from ppcls.registry import import_user_module, suggest

_MAX_BYTES = 1 << 20
_MAX_VALUES = 100_000
_MAX_LENGTH = 10_000  # characters of one value
_MAX_DEPTH = 50  # nested mappings and lists
_SHOWN_LENGTH = 100  # characters of an override in messages
_FORM = "expected path=value, such as Global.epochs=10; put images before -o"
_TOO_LONG = f"expected a value of at most {_MAX_LENGTH:,} characters, found more"
_INSTALLED = Path(__file__).parents[1] / "configs"  # in a checkout, this is a link to configs/
_UNUSABLE = re.compile("[\0\ud800-\udfff]")  # characters that file names can't contain


class _Loader(yaml.SafeLoader):
    """Loads safe YAML. Reads ``1e-3`` as a number, as in YAML 1.2, and dates as text. Rejects duplicate keys.

    The number and depth of values, with expanded aliases, are checked before any value is created, because a
    few lines of aliases could otherwise exhaust the memory.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._extents: dict[yaml.Node, tuple[int, int]] = {}  # number and depth of values
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_LENGTH:
            self._reject(_TOO_LONG, event.start_mark)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._reject(f"nested more than {_MAX_DEPTH} levels deep", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if isinstance(event, yaml.AliasEvent) and node not in self._extents:
            self._reject("an alias inside its own anchor", event.start_mark)
        if node not in self._extents:
            self._extents[node] = self._extent(node)
        return node

    def _extent(self, node: yaml.Node) -> tuple[int, int]:
        """Returns the number and depth of the values in a node. Its children must be in ``_extents``."""
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        values = 1 + sum(self._extents[child][0] for child in children)
        depth = 1 + max((self._extents[child][1] for child in children), default=0)
        if values > _MAX_VALUES:
            self._reject(f"more than {_MAX_VALUES} values after expanding aliases", node.start_mark)
        if depth > _MAX_DEPTH:
            text = f"nested more than {_MAX_DEPTH} levels deep after expanding aliases"
            self._reject(text, node.start_mark)
        return values, depth

    def _reject(self, text: str, mark: Any) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, text, mark)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                self._reject("expected a plain key", key.start_mark)
            name = (key.tag, key.value)
            if name in lines:
                self._reject(f"duplicate key '{key.value}', first set in line {lines[name]}", key.start_mark)
            lines[name] = key.start_mark.line + 1
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # PyYAML does not catch these errors for scalars such as `0x_` and `!!bool maybe`.
            text = f"can't read this value: {error}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    """Writes YAML, and quotes text that `_Loader` would read as a number."""


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return expand_home(str(loader.construct_scalar(node)))


_TIME = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] != _TIME]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:str", _text)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
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
    """Reads a YAML file and returns it as plain dicts and lists.

    If the file does not exist, a config of the package with this name is read, such as
    ``configs/ResNet50.yaml`` or ``ResNet50``.

    Raises:
        UserError: The file does not exist, is not a regular file or can't be read.
        ConfigError: The file is not YAML, has a duplicate key, or is not a mapping.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except FileNotFoundError:
        installed = _INSTALLED / path.with_suffix(".yaml").name if path.name else path
        if str(path.parent) in (".", "configs") and installed.is_file():
            return read_tree(installed)
        raise UserError(f"{path}: no such config file{_suggest_config(path)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: can't read this config: {reason}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(path, [f"larger than {_MAX_BYTES} bytes; is it a config?"])
    tree = _parse(text, path)
    if tree is None:
        raise ConfigError(path, ["the file is empty; expected sections such as Global and Arch"])
    if not isinstance(tree, dict):
        raise ConfigError(path, [f"expected sections such as Global and Arch, got {show(tree)}"])
    return cast(dict[str, Any], _unshare(tree))


def _suggest_config(path: Path) -> str:
    """Returns the hint for a missing file: similar configs in its folder or in ppcls."""
    here = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    if here and path.parent != Path():
        return suggest(path.name, here)
    installed = {file.stem for file in _INSTALLED.glob("*.yaml")}
    # ResNet50_fp16 is suggested for ResNet50_fp16_dygraph.
    shorter = [name for name in installed if path.stem.startswith(name)]
    if shorter:
        hint = f"; ppcls has -c {max(shorter, key=len)}"
    else:
        hint = suggest(path.stem, [*here, *installed], f"ppcls has: {', '.join(sorted(installed))}")
    if "ppcls/configs/" in path.as_posix():
        hint += "; for a file of PaddleClas, give its path in a clone of PaddleClas"
    return hint


def _unshare(node: Any) -> Any:
    """Returns a deep copy without shared nodes, so that an override of an aliased value changes one place."""
    if isinstance(node, dict):
        return {key: _unshare(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_unshare(value) for value in node]
    return node


def apply_override(tree: dict[str, Any], override: str) -> tuple[str, str]:
    """Sets one value in ``tree``, in place.

    Args:
        tree: Nested dicts and lists.
        override: ``path=value``, such as ``"DataLoader.Train.sampler.batch_size=8"``. A number in the path is
            a position in a list, as in ``ops.2`` or ``ops[2]``. The value is read as YAML. Missing keys are
            created; validation reports unknown keys.

    Returns:
        The path, and the name of the override for error messages.

    Raises:
        ConfigError: The override does not have the form ``path=value``, or the path does not exist.
    """
    name = f"-o {override}"
    name = name if len(name) <= _SHOWN_LENGTH else f"{name[:_SHOWN_LENGTH]}…"
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(name, [_FORM])
    if len(text) > _MAX_BYTES:
        raise ConfigError(name, [f"expected a value of at most {_MAX_BYTES} bytes"])
    set_value(tree, path, _parse(text, name), name)
    return path, name


def set_value(tree: dict[str, Any], path: str, value: Any, name: str) -> None:
    """Sets one value in ``tree``, in place.

    Args:
        tree: Nested dicts and lists.
        path: Keys such as ``"DataLoader.Train.sampler.batch_size"``; see `apply_override`.
        value: Plain data.
        name: Name of the override for error messages.

    Raises:
        ConfigError: A part of the path is neither a mapping nor a list, or a list has no such position.
    """
    keys = split_path(path)
    if not all(keys):
        raise ConfigError(name, [_FORM])
    if len(keys) > _MAX_DEPTH:
        raise ConfigError(name, [f"nested more than {_MAX_DEPTH} levels deep"])
    node: Any = tree
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        parent = ".".join(keys[:depth]) or "the config"
        if isinstance(node, list):
            position = _position(key, node, parent, name)
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
            raise ConfigError(name, [f"{parent} is {show(node)}, so it has no '{key}'"])


def _position(key: str, items: list[Any], parent: str, name: str) -> int:
    if not items:
        raise ConfigError(name, [f"{parent} is an empty list, so it has no '{key}'"])
    if key not in map(str, range(len(items))):
        last = len(items) - 1
        raise ConfigError(name, [f"{parent} is a list: expected a number from 0 to {last}, got '{key}'"])
    return int(key)


def validate(tree: dict[str, Any], source: Path | str, overrides: Mapping[str, str] | None = None) -> Config:
    """Returns the validated config.

    Args:
        tree: Nested dicts and lists.
        source: File, or another name of the config, for error messages.
        overrides: Paths of values that were set outside the source, with their names for error messages.

    Raises:
        ConfigError: The config is invalid. The message lists all problems.
    """
    _check_texts(tree, source, overrides)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(source, describe_problems(tree, error), overrides) from None


def _check_texts(tree: Any, source: Path | str, overrides: Mapping[str, str] | None) -> None:
    """Checks all text for its length, and for characters that file names can't contain."""
    problems = []

    def visit(node: Any, path: str) -> None:
        if isinstance(node, dict):
            for key, child in node.items():
                visit(child, f"{path}.{key}" if path else str(key))
        elif isinstance(node, list):
            for position, child in enumerate(node):
                visit(child, f"{path}[{position}]")
        elif isinstance(node, str) and len(node) > _MAX_LENGTH:
            problems.append(f"{path}: {_TOO_LONG}")
        elif isinstance(node, str) and _UNUSABLE.search(node):
            problems.append(f"{path}: contains a NUL or surrogate character: {show(node)}")

    visit(tree, "")
    if problems:
        raise ConfigError(source, problems, overrides)


def load_config(
    source: Path | str | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Config:
    """Loads, overrides and validates a config.

    Args:
        source: A YAML file, or its content as nested dicts and lists, which are not changed.
        overrides: Strings ``path=value``, as after ``-o``; or a mapping of paths to values, such as
            ``{"Global.epochs": 2}``. A path such as ``Global`` would replace the whole section. Overrides are
            applied in order, before validation.

    Raises:
        UserError: The file can't be read, or an image folder whose classes must be counted can't be read.
        ConfigError: The YAML, an override or the config is invalid.
    """
    if isinstance(source, Mapping):
        tree = _plain(source, "the config")
        name = "the config"
    else:
        tree = read_tree(Path(source))
        name = str(source)
    applied: dict[str, str] = {}
    if isinstance(overrides, Mapping):
        for path, value in overrides.items():
            applied[str(path)] = f"override {path}"
            set_value(tree, str(path), _plain(value, str(path)), applied[str(path)])
    else:
        listed = [overrides] if isinstance(overrides, str) else overrides
        applied = dict(apply_override(tree, override) for override in listed)
    _check_texts(tree, name, applied)
    if reason := describe_other_file(tree):
        raise ConfigError(name, [reason], applied)
    _import_modules(tree)
    translate_old_keys(tree)
    translate_paddleclas(tree)
    try:
        fill_from_class_folders(tree)
    except UserError as error:
        try:
            validate(tree, name, applied)
        except ConfigError as invalid:
            raise UserError(f"{error}\n{invalid}") from None
        raise
    return validate(tree, name, applied)


def _import_modules(tree: dict[str, Any]) -> None:
    """Imports the modules of ``Global.import_modules``, which can register components."""
    names = node_at(tree, "Global.import_modules")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and MODULE_NAME.fullmatch(name):  # validation reports invalid names
            import_user_module(name, "Global.import_modules")


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Returns a copy with plain dicts, lists and strings instead of subclasses and similar types."""
    if depth > _MAX_DEPTH:
        raise ConfigError(where, [f"nested more than {_MAX_DEPTH} levels deep"])
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(where, [f"expected text as a key, got {show(key)}"])
        return {str(key): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where, depth + 1) for item in value]
    return expand_home(str(value)) if isinstance(value, (str, PurePath)) else value


def dump_config(config: Config) -> str:
    """Returns the config, including all defaults, as YAML text that `load_config` can read."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
