"""Files in which the versions of Paddle store exported models, and what other files in a folder are.

Does not import Paddle.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ppcls.commands import command_line
from ppcls.errors import UserError

PROGRAMS = ("inference.json", "inference.pdmodel")  # files of Paddle 3 and of Paddle 2.6
NETWORK = "inference.safetensors"  # weights of an architecture of ppcls, which the description names
_WRITERS = (
    "Paddle 3 writes inference.json, and inference.pdmodel if the environment variable "
    "FLAGS_enable_pir_api is 0; Paddle 2 writes inference.pdmodel; Paddle 1 writes __model__"
)


def installed_paddle() -> str | None:
    """Returns the version of the installed Paddle; None without one."""
    for package in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def check_version(program: Path) -> None:
    """Checks that the installed Paddle reads the format of a program.

    Raises:
        UserError: Only another version of Paddle reads it.
    """
    installed = installed_paddle()
    if program.suffix == ".json" and installed is not None and installed.startswith("2."):
        raise UserError(
            f"{program}: Paddle {installed} cannot read this format. {_WRITERS}. Install paddlepaddle>=3, or "
            "export the model in the format of Paddle 2"
        )


def explain_files(folder: Path) -> str:
    """Returns what the files in a folder without a known model are, as part of a message; "" if unknown.

    The path may also be one of these files.
    """
    if folder.suffix == ".zip":  # also beside a run, where export writes it
        command = command_line("verify", folder, "--extract", "FOLDER")
        return f": extract the zip file of a bundle with {command}, and name the folder"
    if folder.is_file() and (folder.parent / "config.yaml").is_file():
        return f": name its folder {folder.parent} instead"
    if folder.is_file() and (folder.parent / "bundle.json").is_file():
        return f": name the folder of the bundle, {folder.parent}, instead"
    if folder.name.endswith((".pdparams", ".safetensors", ".pth", ".pt", ".pth.tar", ".ckpt")):
        return ": this file contains only weights; pass a config with Global.pretrained_model"
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        return f": {error.strerror}"
    if NETWORK in names:
        return f": {NETWORK} needs the file inference.yml, which ppcls export writes into the same folder"
    if "__model__" in names:
        return f": __model__ is a format that this version of Paddle does not read ({_WRITERS})"
    for name in names:
        if name.endswith((".pdmodel", ".json")) and f"{Path(name).stem}.pdiparams" in names:
            return f": rename {name} and its .pdiparams file so that their names begin with inference"
        if name.endswith(".onnx"):
            return f": name the file {name} instead of its folder"
    if any(name.endswith(".pdparams") for name in names):
        return ": a .pdparams file contains only weights; pass a config with Global.pretrained_model"
    return ""
