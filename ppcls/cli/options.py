"""Builds the parsers of all commands from ``commands.yaml``, and applies short options to a config."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ppcls.cli.command import CommandParser
from ppcls.config.base.fields import Bound
from ppcls.config.base.overrides import Override
from ppcls.config.base.tree import Tree, node_at
from ppcls.errors import UserError
from ppcls.zoo import architecture, read_table

if TYPE_CHECKING:  # not needed for --help
    from ppcls.config.load import ConfigSource
    from ppcls.config.schema import Config

_BOUNDS = ("gt", "ge", "lt", "le")
_FILE = Path(__file__).with_name("commands.yaml")
Number = TypeVar("Number", int, float)
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "Path": Path}


class HelpFormatter(argparse.HelpFormatter):
    """Wraps each paragraph of a description, but keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            is_list = "\n  " in paragraph
            paragraphs.append(paragraph if is_list else super()._fill_text(paragraph, width, indent))
        return "\n\n".join(paragraphs)


def build_parser(
    command: str, types: Mapping[str, Callable[[str], Any]] = MappingProxyType({})
) -> argparse.ArgumentParser:
    """Returns the parser of a command, as described in ``commands.yaml``.

    Args:
        command: Name of the command, such as ``dataset``.
        types: Further types of arguments, by the names in the file.
    """
    parser = argparse.ArgumentParser()
    _describe(parser, _read_commands()[command], {**_TYPES, **types})
    return parser


def config_parser(command: str) -> CommandParser:
    """Returns the parser of a command that reads a config, as described in ``commands.yaml``."""
    parser = CommandParser()
    described = _read_commands()[command]
    _describe(parser, described, _TYPES)
    others = described.get("other_tools", {})
    parser.other_tools = {name: option for option, names in others.items() for name in names.split()}
    return parser


def parse_model_arguments(command: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the arguments of a command that accepts models. ``override`` includes its short options."""
    arguments = config_parser(command).parse_args(argv)
    flags = _read_flags(command)
    values = {name: getattr(arguments, name.replace("-", "_")) for name in flags}
    short = [
        Override.of_value(flags[name].key, value, f"--{name} {value}")
        for name, value in values.items()
        if value is not None
    ]
    arguments.override = [*short, *map(Override.parse, arguments.override)]
    return arguments


@cache
def _read_commands() -> dict[str, Any]:
    return read_table(_FILE)


def _describe(parser: argparse.ArgumentParser, command: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    summary = command.get("summary", "")
    parser.formatter_class = HelpFormatter
    parser.description = command.get("description", f"{summary[:1].upper()}{summary[1:]}.")
    examples = "\n  ".join(("examples:", *command["examples"]))
    parser.epilog = "\n\n".join([*([command["epilog"]] if "epilog" in command else ()), examples])
    parser.set_defaults(**command.get("defaults", {}))
    _add_arguments(parser, command.get("arguments", ()), types)
    if "commands" in command:
        commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
        for name, described in command["commands"].items():
            _describe(commands.add_parser(name, help=described["summary"]), described, types)


def _add_arguments(
    parser: argparse._ActionsContainer, groups: Sequence[Mapping[str, Any]], types: Mapping[str, Any]
) -> None:
    for group in groups:
        if "exclusive" in group:
            exclusive = parser.add_mutually_exclusive_group(required=group.get("required", False))
            _add_arguments(exclusive, group["exclusive"], types)
        elif "group" in group:
            _add_arguments(parser.add_argument_group(group["group"]), group["arguments"], types)
        else:
            for names, settings in group.items():
                parser.add_argument(*names.split(), **_argument(settings, types))


def _argument(settings: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments of ``add_argument``."""
    keywords = {name: value for name, value in settings.items() if name not in (*_BOUNDS, "key")}
    bounds = {name: settings[name] for name in _BOUNDS if name in settings}
    if "type" in settings:
        kind = types[settings["type"]]
        keywords["type"] = within(kind, **bounds) if bounds else kind
    if "key" in settings:
        keywords["help"] += f" ({settings['key']})"
    return keywords


def read_config(arguments: argparse.Namespace, source: ConfigSource | None = None) -> Config | None:
    """Returns the config; None after printing it for ``--print-config``.

    Args:
        source: Config file to which all short options are applied, but not ``-o``. None to read it here.
    """
    from ppcls.config.compat import config_warnings
    from ppcls.config.load import ConfigSource, dump_config

    if source is None:
        source = ConfigSource.read(arguments.config)
    source.apply(map(Override.parse, arguments.override))
    config = source.load()
    if arguments.print_config:
        for line in config_warnings(config):
            print(line, file=sys.stderr)  # noqa: T201
        sys.stdout.write(dump_config(config))
        return None
    return config


def within(kind: type[Number], **bounds: float) -> Callable[[str], Number]:
    """Returns a function that converts an argument to a number, and rejects it if it is out of bounds.

    Args:
        kind: ``int`` or ``float``.
        **bounds: See `ppcls.config.base.fields.Bound`.
    """
    bound = Bound(**bounds)

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not bound.holds(value):
            raise argparse.ArgumentTypeError(f"expected {bound.describe(kind)}, got '{text}'")
        return value

    return read


@dataclass(frozen=True)
class Flag:
    """A short option for one or more keys of the config, such as ``--epochs 20``.

    Attributes:
        key: Key, or pattern of several keys, that ``--help`` shows.
        overrides: Function that returns the keys to set and their values, given the config and the flag's
            value. None if the flag sets only ``key``.
    """

    key: str
    overrides: Callable[[Tree, Any], dict[str, Any]] | None = None


def apply_flags(flags: Mapping[str, Flag], arguments: argparse.Namespace, source: ConfigSource) -> None:
    """Sets the values of the flags on the command line in a config.

    Raises:
        UserError: A flag does not fit the config.
    """
    for name, flag in flags.items():
        value = getattr(arguments, name.replace("-", "_"))
        if value is None:
            continue
        values = flag.overrides(source.tree, value) if flag.overrides is not None else {flag.key: value}
        origin = f"--{name}" if value is True else f"--{name} {value}"
        # One flag after the other, because --image-size looks at the model that --model sets.
        source.apply(Override.of_value(key, setting, origin) for key, setting in values.items())


def splits(tree: Tree) -> list[str]:
    """Returns the paths of the data sets in a config, such as ``DataLoader.Train``."""
    paths = [f"DataLoader.{name}" for name in ("Train", "Eval", "Eval.Query", "Eval.Gallery")]
    return [path for path in paths if isinstance(node_at(tree, f"{path}.dataset"), dict)]


def _set_train_data(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the new ``image_root`` of ``DataLoader.Train``, and of every other data set that has one."""
    key = "dataset.image_root"
    paths = [
        "DataLoader.Train",
        *(path for path in splits(tree) if node_at(tree, f"{path}.{key}") is not None),
    ]
    return {f"{path}.{key}": folder for path in paths}


def _set_model(tree: Tree, model: str) -> dict[str, Any]:
    """Returns the settings of an architecture and of the preprocessing for its published weights.

    A mean, standard deviation or interpolation in the config is not changed if it differs from that of the
    config's architecture.
    """
    overrides: dict[str, Any] = {"Arch.name": model}
    before = architecture(str(node_at(tree, "Arch.name")))
    after = architecture(model)
    for path in _transform_lists(tree):
        for position, transform in enumerate(node_at(tree, path) or []):
            for kind, parameters in transform.items() if isinstance(transform, dict) else ():
                settings = parameters if isinstance(parameters, dict) else {}
                key = f"{path}.{position}.{kind}"
                for name in ("mean", "std") if kind == "NormalizeImage" else ():
                    if settings.get(name) == list(getattr(before, name)) != list(getattr(after, name)):
                        overrides[f"{key}.{name}"] = list(getattr(after, name))
                used = settings.get("interpolation", "bilinear")
                if kind == "ResizeImage" and used == before.interpolation != after.interpolation:
                    backend = "cv2" if after.interpolation == "bilinear" else "pil"
                    overrides |= {f"{key}.interpolation": after.interpolation, f"{key}.backend": backend}
    return overrides


def _transform_lists(tree: Tree) -> list[str]:
    """Returns the paths of the lists of transforms in a config. Those of ``DataLoader.Train`` are last."""
    return ["Infer.transforms", *(f"{path}.dataset.transform_ops" for path in reversed(splits(tree)))]


def _set_eval_splits(key: str) -> Callable[[Tree, Any], dict[str, Any]]:
    return lambda tree, value: {
        f"{path}.{key}": value for path in splits(tree) if path.startswith("DataLoader.Eval")
    }


def _set_pretrained(_tree: Tree, weights: str | bool) -> dict[str, Any]:
    if weights is True:
        return {"Arch.pretrained": True, "Global.pretrained_model": None}
    return {"Global.pretrained_model": weights}


def _set_output(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the keys to change for a new output folder.

    If the folder of exported models is in the old output folder, it moves to the new one.
    """
    overrides = {"Global.output_dir": folder}
    before = node_at(tree, "Global.output_dir")
    exported = node_at(tree, "Global.save_inference_dir")
    if isinstance(before, str) and isinstance(exported, str) and exported.startswith(f"{before}/"):
        overrides["Global.save_inference_dir"] = folder + exported.removeprefix(before)
    return overrides


def _set_workers(tree: Tree, workers: int) -> dict[str, Any]:
    keys = ["num_workers", "dali.num_threads"] if workers else ["num_workers"]
    return {f"{path}.loader.{key}": workers for path in splits(tree) for key in keys}


def _set_amp(_tree: Tree, level: str) -> dict[str, Any]:
    return {"AMP.use_amp": True, "AMP.level": level}


def _set_image_size(tree: Tree, side: int) -> dict[str, Any]:
    """Returns the keys of all sizes in the transforms, scaled for square images of ``side`` pixels."""
    for path in splits(tree):
        for key in ("sampler.scales", "input_size"):
            if node_at(tree, f"{path}.{key}") is not None:
                raise UserError(f"--image-size {side}: {path}.{key} sets the image sizes; change them there")
    sizes = {path: dict(_sizes(path, node_at(tree, path))) for path in _transform_lists(tree)}
    channels, height, width = node_at(tree, "Global.image_shape") or (3, 224, 224)
    for chain_sizes in sizes.values():  # the last size in a list of transforms is the model's input size
        if final := [size for key, size in chain_sizes.items() if key.endswith(".size")]:
            width, height = final[-1]
            break
    overrides: dict[str, Any] = {"Global.image_shape": [channels, side, side]}
    for key, size in (item for chain_sizes in sizes.values() for item in chain_sizes.items()):
        if key.endswith(".resize_short"):
            overrides[key] = round(size[0] * side / min(width, height))
        else:
            scaled = [round(size[0] * side / width), round(size[1] * side / height)]
            overrides[key] = scaled[0] if scaled[0] == scaled[1] else scaled
    if architecture(str(node_at(tree, "Arch.name"))).patch:
        overrides["Arch.img_size"] = side
    return overrides


def _sizes(path: str, transforms: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the key, width and height of each valid size in a list of transforms."""
    for position, transform in enumerate(transforms if isinstance(transforms, list) else []):
        for name, settings in transform.items() if isinstance(transform, dict) else ():
            for key in ("size", "resize_short") if isinstance(settings, dict) else ():
                size = settings.get(key)
                pair = size if isinstance(size, list) else [size, size]
                if len(pair) == 2 and all(isinstance(number, int) for number in pair):
                    yield f"{path}.{position}.{name}.{key}", (pair[0], pair[1])


def _read_flags(command: str, **overrides: Callable[[Tree, Any], dict[str, Any]]) -> dict[str, Flag]:
    """Returns the short options of a command by name. The keywords are their `Flag.overrides`."""
    groups = (group.get("arguments", ()) for group in _read_commands()[command]["arguments"])
    options = {name: settings for group in groups for part in group for name, settings in part.items()}
    return {
        name[2:]: Flag(settings["key"], overrides.get(name[2:].replace("-", "_")))
        for name, settings in options.items()
    }


TRAIN_FLAGS = _read_flags(
    "train",
    data=_set_train_data,
    model=_set_model,
    pretrained=_set_pretrained,
    output=_set_output,
    amp=_set_amp,
    workers=_set_workers,
    image_size=_set_image_size,
)
EVAL_FLAGS = _read_flags(
    "eval",
    data=_set_eval_splits("dataset.image_root"),
    batch_size=_set_eval_splits("sampler.batch_size"),
    amp=_set_amp,
    workers=_set_workers,
    image_size=_set_image_size,
)
