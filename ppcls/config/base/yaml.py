"""Reads and writes YAML.

Decisions, which plain PyYAML takes differently:
- ``1e-3`` is a number, as in YAML 1.2 and in PaddleClas's files; PyYAML reads it as text. Dates stay text.
- The size of a file, the length of a value, and the number and depth of values are limited, because a few
  lines of aliases could otherwise exhaust the memory.
- Octal (``010``) and sexagesimal numbers (``1:30``) are errors; YAML 1.2 would read 10, and text.
- A duplicate key is an error, because one of its values would be lost without notice.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.problems import show
from ppcls.config.base.section import Section
from ppcls.config.base.tree import Tree, copy_tree
from ppcls.errors import UserError
from ppcls.files import expand_home, open_regular

MAX_BYTES = 1 << 20  # of a file, or of one value on the command line
# A description has the names of all classes: those of ImageNet-21k have 1.6 MB if a name has 60 characters.
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_LENGTH = 10_000  # characters of one value
MAX_DEPTH = 50  # nested mappings and lists
TOO_LONG = f"expected a value of at most {MAX_LENGTH:,} characters, found more"


class _Loader(yaml.SafeLoader):
    """Loads safe YAML. Reads ``1e-3`` as a number, as in YAML 1.2, and dates as text. Rejects duplicate keys.

    The number and depth of values, with expanded aliases, are checked before any value is created, because a
    few lines of aliases could otherwise exhaust the memory.
    """

    max_values = 100_000

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._extents: dict[yaml.Node, tuple[int, int]] = {}  # number and depth of values
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_LENGTH:
            self._reject(TOO_LONG, event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._reject(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
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
        if values > self.max_values:
            self._reject(f"more than {self.max_values} values after expanding aliases", node.start_mark)
        if depth > MAX_DEPTH:
            text = f"nested more than {MAX_DEPTH} levels deep after expanding aliases"
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


class _DescriptionLoader(_Loader):
    """Loads a file that ppcls wrote. It may list the names of many classes, and ``~/`` is part of a name."""

    max_values = 1_000_000


class _Dumper(yaml.SafeDumper):
    """Writes YAML, and quotes text that `_Loader` would read as something else."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Writes line breaks as escapes in double quotes.

    In single quotes, PyYAML would read Unicode line breaks as blanks, and write others as several lines.
    """
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if _LINE_BREAKS.intersection(text) else None
    )


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return expand_home(str(loader.construct_scalar(node)))


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Returns a number. Rejects octal and sexagesimal numbers, which hardly anybody means."""
    kind = node.tag.rpartition(":")[2]
    construct = loader.construct_yaml_int if kind == "int" else loader.construct_yaml_float
    value = construct(node)
    if _OLD_NUMBER.fullmatch(node.value):
        raise yaml.constructor.ConstructorError(
            None,
            None,
            f"{node.value}: expected a decimal number, or text in quotes; YAML 1.1 reads this as {value}: "
            f"write {value} or '{node.value}'",
            node.start_mark,
        )
    return value


def _exact_text(loader: _DescriptionLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


# An octal number such as 010, or a sexagesimal number such as 1:30 or 1:30.5.
_OLD_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029")
_TIME = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] != _TIME]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:str", _text)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)
_DescriptionLoader.add_constructor("tag:yaml.org,2002:str", _exact_text)
_Dumper.add_representer(str, _represent_text)
for _class in (_Loader, _DescriptionLoader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


def parse_yaml(text: str, source: Path | str) -> Any:
    """Returns the value of YAML text.

    Args:
        text: YAML.
        source: Name of the text for error messages.

    Raises:
        ConfigError: The text is not YAML, or has too many, too long or too deep values.
    """
    return _parse(text, source, _Loader)


def _parse(text: str, source: Path | str, loader: type[_Loader]) -> Any:
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(source, [f"{where}{error.problem}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError(source, [f"not YAML: {error}"]) from None


def read_yaml(path: Path) -> Tree:
    """Reads a YAML file with a mapping, and returns it as plain dicts and lists.

    Raises:
        FileNotFoundError: The file does not exist.
        UserError: The file is not a regular file or can't be read.
        ConfigError: The file is not YAML, has a duplicate key, or is not a mapping.
    """
    return _read_mapping(path, MAX_BYTES, _Loader)


def read_description_yaml(path: Path) -> Tree:
    """Reads the description of an exported model, like `read_yaml`, but exactly as `dump_yaml` wrote it.

    Text that starts with ``~/`` does not change, and the limits allow the names of many classes.

    Raises:
        FileNotFoundError: The file does not exist.
        UserError: The file is not a regular file or can't be read.
        ConfigError: The file is not YAML, has a duplicate key, or is not a mapping.
    """
    return _read_mapping(path, MAX_DESCRIPTION_BYTES, _DescriptionLoader)


def _read_mapping(path: Path, max_bytes: int, loader: type[_Loader]) -> Tree:
    try:
        with open_regular(path) as file:
            data = file.read(max_bytes + 1)
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, IsADirectoryError):
            reason = "it is a folder; name a YAML file, or the folder of a run or model with --model"
        raise UserError(f"{path}: can't read this config: {reason}") from None
    if len(data) > max_bytes:
        raise ConfigError(path, [f"larger than {max_bytes} bytes; is it a config?"])
    tree = _parse(text, path, loader)
    if tree is None:
        raise ConfigError(path, ["the file is empty; expected sections such as Global and Arch"])
    if not isinstance(tree, dict):
        raise ConfigError(path, [f"expected sections such as Global and Arch, got {show(tree)}"])
    # PyYAML returns one object for an anchor and its aliases; an override must change only one place.
    return cast(Tree, copy_tree(tree))


def dump_section(section: Section, *, ascii_only: bool = False) -> str:
    """Returns a section, including all defaults, as YAML text; see `dump_yaml`."""
    return dump_yaml(section.model_dump(mode="json"), ascii_only=ascii_only)


def dump_yaml(value: Any, *, in_one_line: bool = False, ascii_only: bool = False) -> str:
    """Returns plain data as YAML text, which `parse_yaml` reads as equal data.

    Args:
        value: Plain data.
        in_one_line: Whether to write mappings and lists as ``{a: [1, 2]}``, without a line break at the end.
        ascii_only: Whether to escape all characters other than ASCII.
    """
    width = sys.maxsize if in_one_line else None
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=not ascii_only,
        default_flow_style=in_one_line,
        width=width,
    )
    # PyYAML marks the end of a document that is only a plain scalar.
    return text.removesuffix("...\n").rstrip("\n") if in_one_line else text
