"""Options that several commands share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from ppcls.cli.arguments.options import option, required
from ppcls.cli.command import write_output
from ppcls.cli.short_options import set_amp, set_image_size, set_on_error, set_workers
from ppcls.commands import command_line
from ppcls.files import print_error

if TYPE_CHECKING:  # not needed for --help
    from ppcls.config.base.section import Section
    from ppcls.recipe.load import ConfigSource
    from ppcls.recipe.schema import Config

Device = Literal["auto", "gpu", "cpu"]
Views = Literal["flip", "five-crop"]


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Options of a command that reads a config."""

    epilog: ClassVar[str] = "docs/config.md describes every key of the config."
    examples: ClassVar[Sequence[str]]

    config: str | None = option(None, "config file (YAML)", names=["-c"])
    override: tuple[str, ...] = option(
        (), "set values of the config, such as Global.epochs=10", names=["-o"], metavar="KEY=VALUE"
    )
    print_config: bool = option(False, "print the complete config, with defaults and options, and exit")


@dataclass(frozen=True, kw_only=True)
class RequiredConfigOptions(ConfigOptions):
    """Options of a command that needs a config."""

    config: str = required("config file (YAML)", names=["-c"])


def override_option(example: str) -> tuple[str, ...]:
    """Returns the field of ``-o``, with an example in its help."""
    return option((), f"set values of the config, such as {example}", names=["-o"], metavar="KEY=VALUE")


def image_size_option() -> int | None:
    """Returns the field of ``--image-size``."""
    return option(
        None,
        "side of the model's square input images in pixels; all crops and resizes are scaled accordingly",
        gt=0,
        key="Global.image_shape, and every size in the transforms",
        sets=set_image_size,
    )


def device_option() -> Device | None:
    """Returns the field of ``--device``."""
    return option(
        None,
        "device that runs the model; auto: a GPU if there is one, otherwise the CPU",
        read=_read_device,
        key="Global.device",
    )


def _read_device(text: str) -> str:
    """Returns the device, and explains numbers and names of other tools, such as ``0`` and ``cuda:1``."""
    choices = get_args(Device)
    if text in choices:
        return text
    problem = f"expected {', '.join(choices[:-1])} or {choices[-1]}, got '{text}'"
    if gpus := re.fullmatch(r"(?:cuda|gpu):?|(?:(?:cuda|gpu):)?(\d+(?:,\d+)*)", text.lower()):
        where = f"; CUDA_VISIBLE_DEVICES={gpus[1]} in front of the command chooses it"
        if gpus[1] is not None and "," in gpus[1]:
            command = command_line("launch", f"--gpus={gpus[1]}", "train", "FOLDER")
            where = f"; `{command}` starts one process per GPU"
        problem += f"; use gpu{'' if gpus[1] is None else where}"
    raise argparse.ArgumentTypeError(problem)


def on_error_option() -> Literal["raise", "skip"] | None:
    """Returns the field of ``--on-error``."""
    return option(
        None,
        "action if an image can't be read: skip continues without it, and lists it in bad_images.txt",
        key="DataLoader.*.dataset.on_error",
        sets=set_on_error,
    )


def workers_option() -> int | None:
    """Returns the field of ``--workers``."""
    return option(
        None,
        "number of worker processes of paddle.io and of threads of DALI",
        ge=0,
        key="DataLoader.*.loader.num_workers and dali.num_threads",
        sets=set_workers,
    )


def amp_option(verb: str) -> Literal["O1", "O2"] | None:
    """Returns the field of ``--amp``. The verb in its help says what is done in mixed precision."""
    return option(
        None,
        f"{verb} in mixed precision, at this level",
        without_value="O1",
        key="AMP.level",
        sets=set_amp,
    )


def trust_option() -> bool:
    """Returns the field of ``--trust``."""
    return option(
        False,
        "let a model that is given by its folder import Python modules, and read and write the paths in its "
        "config, such as its data sets; use it only for models whose source you trust",
    )


def views_option() -> Views | None:
    """Returns the field of ``--tta``."""
    return option(
        None,
        "average the probabilities of several views of each image. flip: the image and its mirror image; "
        "five-crop: its centre and its four corners (default: only the image)",
    )


def read_config(options: RequiredConfigOptions) -> Config | None:
    """Returns the config of a command without short options; see `load_or_print`."""
    from ppcls.recipe.load import ConfigSource

    return load_or_print(ConfigSource.read(options.config), options)


def load_or_print(source: ConfigSource, options: ConfigOptions) -> Config | None:
    """Returns a config; None after printing it for ``--print-config``.

    Args:
        source: Config file to which all short options are applied, but not ``-o``, which is applied here.
        options: Options of the command.
    """
    from ppcls.config.base.overrides import Override

    source.apply(map(Override.parse, options.override))
    config = source.load()
    if options.print_config:
        for line in (*config.notes, *config.key_warnings):
            print_error(line)
        write_config(config)
        return None
    return config


def write_config(config: Section) -> None:
    """Writes a config, or a section, to standard output as YAML, in ASCII if the terminal has no Unicode."""
    from ppcls.config.base.yaml import dump_section

    text = dump_section(config)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        text = dump_section(config, ascii_only=True)
    write_output(text)
