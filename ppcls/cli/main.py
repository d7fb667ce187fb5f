"""The program ``ppcls``. Each command runs the same function as its script in tools/."""

from __future__ import annotations

import difflib
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import ppcls
from ppcls.cli.command import exit_code, group_help, write_output
from ppcls.commands import command_line
from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.runtime.streams import prepare_streams

# Each command is imported when it runs.
_COMMANDS = {
    "train": ("ppcls.cli.train:train", "train a model"),
    "tune": ("ppcls.cli.train:tune", "search for the best settings of a config with Optuna"),
    "eval": ("ppcls.cli.eval:evaluate", "evaluate a model"),
    "launch": ("ppcls.cli.launch:launch", "start training or evaluation on several GPUs"),
    "calibrate": ("ppcls.cli.eval:calibrate", "make the probabilities of a model match its accuracy"),
    "infer": ("ppcls.cli.infer:infer", "run a model on image files"),
    "export": (
        "ppcls.cli.export:export",
        "export a model as a bundle, or for Paddle Inference, ppcls, ONNX, OpenVINO, PaddleClas or timm",
    ),
    "verify": ("ppcls.cli.export:verify", "check a bundle stage by stage on this machine"),
    "serve": ("ppcls.cli.serve:serve", "serve a model over HTTP"),
    "runs": ("ppcls.cli.results.runs:runs", "list the runs below a folder with their results"),
    "index": ("ppcls.cli.index:main", "build, search or change an index of images for similarity search"),
    "models": ("ppcls.cli.models:main", "list the architectures"),
    "dataset": ("ppcls.cli.dataset:main", "create, check, describe, split, shrink or convert a data set"),
    "benchmark": ("ppcls.cli.benchmark:main", "measure speed on this machine"),
    "doctor": ("ppcls.cli.doctor:doctor", "check the machine and the packages, and print what to install"),
}
# Maps commands of other trainers to the command of ppcls to use instead.
_OTHER_NAMES = {
    **dict.fromkeys(("predict", "classify", "inference"), "infer"),
    **dict.fromkeys(("val", "evaluate", "valid"), "eval"),
    **dict.fromkeys(("fit", "finetune", "cfg", "copy_cfg"), "train"),
    **dict.fromkeys(("list", "list_models", "zoo", "download", "summary"), "models"),
    **dict.fromkeys(("api", "web", "demo", "ui", "gradio", "server", "app", "streamlit"), "serve"),
    **dict.fromkeys(("search", "hpo", "sweep", "hyperparameters"), "tune"),
    **dict.fromkeys(("speed", "profile"), "benchmark"),
    **dict.fromkeys(("distributed", "torchrun", "spawn"), "launch"),
    **dict.fromkeys(("experiments", "history", "results"), "runs"),
    **dict.fromkeys(("checks", "env", "info", "settings"), "doctor"),
    **dict.fromkeys(("bundle", "package", "export_model", "onnx", "quantize"), "export"),
    "data": "dataset",
}
# Words that could mean several commands, or an option.
_ADVICE = {
    **dict.fromkeys(
        ("check", "validate", "lint", "config", "print-config"),
        "`ppcls train -c CONFIG --print-config` checks a config; `ppcls dataset check FOLDER` checks images; "
        "`ppcls eval --model RUN --trust` evaluates a model; `ppcls doctor` checks the machine",
    ),
    **dict.fromkeys(("resume", "continue"), "`ppcls train --resume RUN` continues a run"),
    "deploy": "`ppcls serve --model RUN` serves a model; `ppcls export --model RUN` writes it for other "
    "programs",
    "test": "`ppcls eval --model RUN --trust --data FOLDER` evaluates a model on labelled images; `ppcls "
    "infer --model RUN IMAGE` predicts",
    **dict.fromkeys(
        ("report", "logs", "log", "plot"),
        "report.html and train.log in the output folder of a run have its results; `ppcls runs FOLDER` lists "
        "runs",
    ),
    **dict.fromkeys(
        ("completion", "complete", "install-completion"),
        "commands and options are not completed; `ppcls COMMAND --help` lists them",
    ),
}
# Words of Ultralytics's commands that do not say what to do.
_ULTRALYTICS = ("yolo", "classify", "task=classify")
# Commands whose own commands are found if they are written without the first word, such as `ppcls stats`.
_GROUPS = ("dataset", "models", "index", "benchmark")
_EXAMPLES = (
    "ppcls train pictures/ --model ResNet50 --epochs 20 --output runs/pets",
    "ppcls eval --model runs/pets --trust",
    "ppcls infer --model runs/pets photo.jpg",
    "ppcls train -c configs/ResNet50.yaml -o Global.epochs=90",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that the first argument names; returns its exit code."""
    prepare_streams()
    name, *arguments = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if name == "help" and arguments and arguments[0] in _COMMANDS:
        name, arguments = arguments[0], [*arguments[1:], "--help"]
    if name in ("-h", "--help", "help"):
        return exit_code(lambda: write_output(_help()))
    if name in ("-V", "--version", "version"):
        return exit_code(lambda: write_output(f"ppcls {ppcls.__version__}\n"))
    if name not in _COMMANDS:
        print_error(f"error: {_unknown(name, arguments)}")
        return UserError.code
    sys.argv = [f"ppcls {name}", *arguments]  # for the usage line
    return run_command(name, arguments)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Runs a command, also as a script in tools/; returns its exit code. A missing package is an error."""
    module, function = _COMMANDS[name][0].split(":")
    try:
        code: int = getattr(importlib.import_module(module), function)(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ppcls.") and hasattr(ppcls, "__version__"):
            raise  # a bug in ppcls, not a missing package
        print_error(f"error: {_explain_missing(error)}")
        return UserError.code
    except KeyboardInterrupt:  # while the modules of the command are imported
        print_error("interrupted")
        return 130
    return code


def _explain_missing(error: ModuleNotFoundError) -> str:
    activate = Path(ppcls.__file__).resolve().parents[1] / ".venv" / "bin" / "activate"  # of make setup
    if activate.is_file() and Path(sys.prefix).resolve() != activate.parents[1].resolve():
        return (
            f"the Python package {error.name} is missing, because {sys.executable} is not the Python of "
            f"ppcls; first run `{shlex.join(['source', str(activate)])}`"
        )
    try:
        from ppcls.cli.doctor import explain_missing_module
    except ImportError:  # doctor itself needs some packages
        return (
            f"the Python package {error.name} is missing; install ppcls with its dependencies: pip install ."
        )
    return explain_missing_module(error)


def _help() -> str:
    summaries = {name: summary for name, (_, summary) in _COMMANDS.items()}
    return group_help("ppcls", ppcls.__doc__ or "", summaries, _EXAMPLES)


def _unknown(name: str, arguments: Sequence[str]) -> str:
    if name == "-v":
        return f"{name}: expected a command first; `ppcls version` prints the version"
    if name.startswith("-"):
        command = next((argument for argument in arguments if argument in _COMMANDS), "COMMAND")
        return f"{name}: expected a command first; put options after it: {command_line(command, name)}"
    if advice := _ADVICE.get(name.lower().replace("_", "-")):
        return f"unknown command '{name}'; {advice}"
    if inner := _inner_command(name):
        return f"unknown command '{name}'; did you mean '{inner}'?"
    words = [name, *arguments]
    if name in _ULTRALYTICS or "=" in name:  # yolo classify val model=…; yolo task=classify mode=val model=…
        words = [word.removeprefix("mode=") for word in words if word not in _ULTRALYTICS]
    known = [word if word in _COMMANDS else _other_name(word) for word in words[:2]]
    equivalent = next(filter(None, known), None) or _other_name(name)
    near = [equivalent] if equivalent else difflib.get_close_matches(name.lower(), _COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(_COMMANDS)}"
    return f"unknown command '{name}'; {hint}"


def _inner_command(name: str) -> str | None:
    """Returns the command or option that has a name, such as ``dataset stats``, or ``train --find-lr``."""
    from ppcls.cli.arguments.hints import find_hint
    from ppcls.cli.arguments.options import read_options
    from ppcls.cli.train import TrainOptions

    name = name.lower().replace("_", "-")
    if _other_name(name):
        return None
    for group in _GROUPS:
        module, function = _COMMANDS[group][0].split(":")
        if name in getattr(importlib.import_module(module), function).commands:
            return f"{group} {name}"
    if any(f"--{name}" in option.names for option in read_options(TrainOptions)):
        return f"train --{name}"
    hint = find_hint("train", name)
    return f"train {hint.words[0]}" if hint is not None and hint.words[:1] != ("-o",) and hint.words else None


def _other_name(word: str) -> str | None:
    """Returns the command that does what a word names in other trainers; None for an unknown word."""
    return _OTHER_NAMES.get(word.lower().replace("-", "_"))
