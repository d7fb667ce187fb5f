"""Options that several commands share: the config, short options for its keys, and numbers within bounds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ppcls.cli.command import CommandParser
from ppcls.config.base.fields import Bound
from ppcls.config.base.tree import Tree, node_at
from ppcls.config.load import set_value
from ppcls.errors import UserError
from ppcls.zoo import architecture

if TYPE_CHECKING:  # not needed for --help
    from ppcls.config.schema import Config

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Number = TypeVar("Number", int, float)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps each paragraph of a description, but keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            is_list = "\n  " in paragraph
            paragraphs.append(paragraph if is_list else super()._fill_text(paragraph, width, indent))
        return "\n\n".join(paragraphs)


def add_examples(parser: argparse.ArgumentParser, *examples: str) -> None:
    """Adds examples, which are complete command lines, to the end of a parser's help."""
    parser.formatter_class = HelpFormatter
    lines = "\n  ".join(("examples:", *examples))
    parser.epilog = f"{parser.epilog}\n\n{lines}" if parser.epilog else lines


def add_subcommand(
    subcommands: Subcommands, name: str, summary: str, examples: Sequence[str], description: str = ""
) -> argparse.ArgumentParser:
    """Adds a subcommand.

    Args:
        summary: Summary in the list of all subcommands.
        examples: Command lines at the end of the subcommand's help.
        description: Description in the subcommand's help; empty to use the summary.
    """
    parser = subcommands.add_parser(
        name, help=summary, description=description or f"{summary[0].upper()}{summary[1:]}."
    )
    add_examples(parser, *examples)
    return parser


def config_parser(
    description: str,
    examples: Sequence[str],
    model: str | None = None,
    required: bool = True,
    several: bool = False,
) -> CommandParser:
    """Returns a parser with the options of `add_config_options` and with examples at the end of its help."""
    parser = CommandParser(
        description=description, epilog="docs/config.md describes every key of the config."
    )
    add_examples(parser, *examples)
    add_config_options(parser, model, required, several)
    return parser


def add_config_options(
    parser: argparse.ArgumentParser, model: str | None = None, required: bool = True, several: bool = False
) -> None:
    """Adds ``-c``, ``-o`` and ``--print-config``, which `read_config` reads.

    Args:
        model: Help of ``--model``, which can be used instead of ``-c``; None for a command without
            ``--model``.
        required: Whether the command needs ``-c`` or ``--model``.
        several: Whether ``--model`` can be repeated.
    """
    group = parser.add_mutually_exclusive_group(required=required) if model is not None else parser
    group.add_argument("-c", "--config", required=required and model is None, help="config file (YAML)")
    if model is not None:
        group.add_argument("--model", metavar="PATH", help=model, action="append" if several else "store")
    add_override(parser, "set values of the config, such as Global.epochs=10")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the complete config, with defaults and options, and exit",
    )


def add_override(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds ``-o KEY=VALUE …``, which can be repeated, with ``text`` as its help."""
    parser.add_argument(
        "-o", "--override", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=text
    )


def add_tta(parser: argparse.ArgumentParser) -> None:
    """Adds ``--tta``, test-time augmentation."""
    parser.add_argument(
        "--tta",
        choices=["flip", "five-crop"],
        help="average the probabilities of several views of each image. flip: the image and its mirror "
        "image; five-crop: its centre and its four corners (default: only the image)",
    )


def read_config(arguments: argparse.Namespace, overrides: Sequence[str] = ()) -> Config | None:
    """Returns the config; None after printing it for ``--print-config``.

    Args:
        overrides: Settings ``KEY=VALUE``, which are applied before those of ``-o``.
    """
    from ppcls.config.compat import config_warnings
    from ppcls.config.load import dump_config, load_config

    config = load_config(arguments.config, [*overrides, *arguments.override])
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


positive_int = within(int, gt=0)
non_negative_int = within(int, ge=0)
positive_float = within(float, gt=0)


@dataclass(frozen=True)
class Flag:
    """A short option for one or more keys of the config, such as ``--epochs 20``.

    Attributes:
        key: Key, or pattern of several keys, that ``--help`` shows.
        help: Meaning of the value.
        options: Keyword arguments of ``add_argument``.
        overrides: Function that returns the keys to set and their values, given the config and the flag's
            value. None if the flag sets only ``key``.
    """

    key: str
    help: str
    options: Mapping[str, Any] = field(default_factory=dict)
    overrides: Callable[[Tree, Any], dict[str, Any]] | None = None


def add_flags(parser: argparse.ArgumentParser, flags: Mapping[str, Flag]) -> None:
    """Adds flags to a parser. The help of each flag shows the keys that it sets."""
    group = parser.add_argument_group("short options for keys of the config")
    for name, flag in flags.items():
        group.add_argument(f"--{name}", help=f"{flag.help} ({flag.key})", **flag.options)


def flag_overrides(flags: Mapping[str, Flag], arguments: argparse.Namespace, tree: Tree) -> list[str]:
    """Returns the overrides ``KEY=VALUE`` for the flags on the command line.

    Args:
        tree: Config file as plain data. It is changed: the overrides are applied to it.
    """
    overrides: list[str] = []
    for name, flag in flags.items():
        value = getattr(arguments, name.replace("-", "_"))
        if value is None:
            continue
        values = flag.overrides(tree, value) if flag.overrides is not None else {flag.key: value}
        for key, setting in values.items():
            set_value(tree, key, setting, f"--{name}")  # the next flag may depend on it
            overrides.append(f"{key}={json.dumps(setting, ensure_ascii=False)}")
    return overrides


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
    before, after = architecture(str(node_at(tree, "Arch.name"))), architecture(model)
    for path in _transform_lists(tree):
        for position, transform in enumerate(node_at(tree, path) or []):
            for kind, parameters in transform.items() if isinstance(transform, dict) else ():
                settings, key = (
                    parameters if isinstance(parameters, dict) else {},
                    f"{path}.{position}.{kind}",
                )
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
    before, exported = node_at(tree, "Global.output_dir"), node_at(tree, "Global.save_inference_dir")
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


_ALL_SPLITS = "DataLoader.*"
_DEVICE = Flag(
    "Global.device",
    "device that runs the model; auto: a GPU if there is one, otherwise the CPU",
    {"choices": ["auto", "gpu", "cpu"]},
)
_AMP = Flag(
    "AMP.level",
    "train in mixed precision, at this level (without a value: O1)",
    {"nargs": "?", "const": "O1", "choices": ["O1", "O2"]},
    _set_amp,
)
_WORKERS = Flag(
    f"{_ALL_SPLITS}.loader.num_workers and dali.num_threads",
    "number of worker processes of paddle.io and of threads of DALI",
    {"type": non_negative_int, "metavar": "N"},
    _set_workers,
)
_IMAGE_SIZE = Flag(
    "Global.image_shape, and every size in the transforms",
    "side of the model's square input images in pixels; all crops and resizes are scaled accordingly",
    {"type": positive_int, "metavar": "N"},
    _set_image_size,
)
TRAIN_FLAGS = {
    "data": Flag(
        "DataLoader.Train.dataset.image_root",
        "folder of the images; with the default config, one subfolder per class",
        {"metavar": "FOLDER"},
        _set_train_data,
    ),
    "model": Flag(
        "Arch.name, NormalizeImage.mean and std, ResizeImage.interpolation",
        "architecture, such as ResNet50, and the preprocessing of its published weights",
        {"metavar": "NAME"},
        _set_model,
    ),
    "pretrained": Flag(
        "Global.pretrained_model; Arch.pretrained without a value",
        "initial weights: a file or a checkpoint folder; without a value: the published weights. Without "
        "this option, the default config uses the published weights for small data sets if they can be "
        "downloaded; -o Arch.pretrained=False trains from scratch",
        {"nargs": "?", "const": True, "metavar": "PATH"},
        _set_pretrained,
    ),
    "epochs": Flag("Global.epochs", "number of epochs", {"type": positive_int, "metavar": "N"}),
    "batch-size": Flag(
        "DataLoader.Train.sampler.batch_size",
        "number of images per training batch, on each process",
        {"type": positive_int, "metavar": "N"},
    ),
    "lr": Flag("Optimizer.lr.learning_rate", "learning rate", {"type": positive_float, "metavar": "RATE"}),
    "image-size": _IMAGE_SIZE,
    "output": Flag("Global.output_dir", "output folder of the run", {"metavar": "FOLDER"}, _set_output),
    "resume": Flag(
        "Global.checkpoints",
        "resume training from the checkpoint PATH; without a value: from the latest checkpoint in the output "
        "folder, if there is one",
        {"nargs": "?", "const": "auto", "metavar": "PATH"},
    ),
    "device": _DEVICE,
    "amp": _AMP,
    "workers": _WORKERS,
    "seed": Flag("Global.seed", "seed of all random choices", {"type": non_negative_int, "metavar": "N"}),
}
EVAL_FLAGS = {
    "data": Flag(
        "DataLoader.Eval.dataset.image_root",
        "folder of the images",
        {"metavar": "FOLDER"},
        _set_eval_splits("dataset.image_root"),
    ),
    "batch-size": Flag(
        "DataLoader.Eval.sampler.batch_size",
        "number of images per batch, on each process",
        {"type": positive_int, "metavar": "N"},
        _set_eval_splits("sampler.batch_size"),
    ),
    "image-size": _IMAGE_SIZE,
    "device": _DEVICE,
    "amp": replace(_AMP, help="evaluate in mixed precision, at this level (without a value: O1)"),
    "workers": _WORKERS,
}
