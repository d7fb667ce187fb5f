"""Every command that ppcls prints is valid.

Commands with values are calls of `ppcls.commands`, which the first tests find in the code. Other messages
name commands and options as constant text. The last test, which is slow, runs printed commands.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from paths import ROOT

from ppcls.cli.command import Command, CommandGroup
from ppcls.cli.main import _COMMANDS
from ppcls.commands import command_line, set_keys
from ppcls.config.base.overrides import Override
from ppcls.recipe.load import load_config

SOURCES = sorted((ROOT / "ppcls").rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
# Values for words that are known only when a message is printed, by the option before them or the command.
SAMPLES = {"--model": "runs/pets", "-c": "configs/quickstart.yaml", "--resume": "runs/pets"}
LAUNCHER = ROOT / "ppcls" / "cli" / "launch.py"  # lists the options of Paddle's launcher
# Options of other programs, and placeholders.
OTHER_OPTIONS = {
    *("--std", "--gpu-architecture"),  # nvcc
    *(
        "--log_dir",
        "--devices",
        "--nnodes",
        "--master",
        "--rank",
        "--nproc_per_node",
        "--gpus",
    ),  # the launcher
    *("--logdir", "--shm-size", "--headless", "--no-sandbox"),  # TensorBoard, Docker, Chromium
    *("--version", "--name", "--option", "--lr0", "--gpu"),  # of `ppcls`, and typed by mistake
    *("--torch", "--torch-compile"),  # of benchmarks/run.py
}


def calls(function: str) -> Iterator[tuple[Path, ast.Call]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                yield path, node


def resolve(name: str) -> Command[Any] | CommandGroup | Any:
    module, function = _COMMANDS[name][0].split(":")
    return getattr(importlib.import_module(module), function)


def parse(words: Sequence[str]) -> Any:
    """Returns the options of a command line without ``ppcls``."""
    command = resolve(words[0])
    rest = list(words[1:])
    if words[0] == "launch":  # passes a command on, behind options of Paddle's launcher
        return parse(list(itertools.dropwhile(lambda word: word not in _COMMANDS, rest)))
    if isinstance(command, CommandGroup):
        command = command.commands[rest.pop(0)]
    return command.parse(rest)


def words_of(call: ast.Call) -> list[str]:
    words: list[str] = []
    for argument in call.args:
        if isinstance(argument, ast.Constant):
            words.append(str(argument.value))
        elif not isinstance(argument, ast.Starred):
            words.append(SAMPLES.get(words[-1] if words else "", "pictures"))
    return words


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=f"{path.name}:{call.lineno}") for path, call in calls("command_line")]
)
def test_commands_in_messages_are_valid(call: ast.Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = words_of(call)
    if words[0] not in _COMMANDS:  # the command that the user has typed
        return
    options = parse(words)
    if getattr(options, "config", None) is not None:
        load_config(options.config, options.override)


GROUPS = {name: command for name in _COMMANDS if isinstance(command := resolve(name), CommandGroup)}


@pytest.mark.parametrize(
    "path", [*SOURCES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_groups_have_the_commands_that_texts_name(path: Path) -> None:
    for group, name in re.findall(rf"`ppcls ({'|'.join(GROUPS)}) ([a-z][a-z-]*)", path.read_text("utf-8")):
        assert name in GROUPS[group].commands, f"ppcls {group} {name}"


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=f"{path.name}:{call.lineno}") for path, call in calls("set_keys")]
)
def test_keys_in_messages_exist(call: ast.Call) -> None:
    (values,) = call.args
    if not isinstance(values, ast.Dict):
        return
    for key in values.keys:
        if isinstance(key, ast.Constant):
            load_config(ROOT / "configs" / "ResNet50_fp16.yaml", [f"{key.value}=1"])


MENTION = rf"\bppcls ({'|'.join(_COMMANDS)})\b((?: (?:--?[\w-]+|[\w./*'=-]+))*)"


def mentions() -> Iterator[tuple[str, str]]:
    """Yields place and text of each command in constant text, docstrings included."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for match in re.finditer(MENTION, " ".join(node.value.split())):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", match[0]


def options_of(command: Command[Any]) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", command.parser().format_help()))


def test_commands_in_sentences_are_valid() -> None:
    """Their groups have these commands, and the commands have these options."""
    wrong = []
    for place, text in mentions():
        _, name, *rest = text.replace("'", "").split()
        command = resolve(name)
        if isinstance(command, CommandGroup) and rest and rest[0] in command.commands:
            command = command.commands[rest[0]]
        known = options_of(command) if isinstance(command, Command) else OTHER_OPTIONS
        if name in ("benchmark", "launch"):
            known = known | {"--out", "--gpus", "--nproc_per_node"}
        wrong += [f"{place}: {text}" for word in rest if word.startswith("-") and word not in known]
    assert not wrong, "\n".join(wrong)


def parses(words: Sequence[str]) -> bool:
    try:
        parse(words)
    except SystemExit as error:
        return error.code == 0
    return True


def test_options_in_messages_exist() -> None:
    known = set(OTHER_OPTIONS)
    for name in _COMMANDS:
        command = resolve(name)
        for each in command.commands.values() if isinstance(command, CommandGroup) else [command]:
            if isinstance(each, Command):
                known |= set(re.findall(r"--[\w-]+", each.parser().format_help()))
    wrong = []
    for path, tree in TREES.items():
        if path == LAUNCHER:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for option in re.findall(r"(?<![\w-])--[a-z][\w-]*\w", node.value):
                    if option not in known:
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {option}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["my pets", "it's", "a;b", "$HOME", "été"])
def test_commands_are_quoted_for_a_shell(name: str) -> None:
    words = shlex.split(command_line("infer", "--model", Path(name), "IMAGE"))
    assert words == ["ppcls", "infer", "--model", name, "IMAGE"]
    option, text = shlex.split(set_keys({"Global.output_dir": name}))
    assert option == "-o"
    assert Override.parse(text).path == "Global.output_dir"


TRAIN = "ppcls train 'my pets' --model ShuffleNetV2_x0_25 --epochs 1 --image-size 32 --batch-size 4 "
REPLACED = {"IMAGE": "'my pets/cats/0.jpg'", "FOLDER": "extracted", "RUN": "'my run'"}
PRINTED = re.compile(rf"(?<![\w/.-])ppcls (?:{'|'.join(_COMMANDS)}) [^;:,\n`]*")
# Commands of which each prints at least this number of commands.
PRINTING = {
    TRAIN + "--output 'my run'": 3,
    "ppcls train 'my run'": 1,
    "ppcls train --resume 'my pets'": 2,
    "ppcls dataset audit 'my pets' --model 'my run' --image-size 32 --out audit": 1,
    "ppcls infer --model nowhere 'my pets'": 0,
}


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder with the pictures ``my pets``."""

    folder: Path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run_well(self, command: str) -> str:
        """Runs a command that must succeed, and returns its output."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(0)
    for kind in ("cats", "dogs"):
        (folder / "my pets" / kind).mkdir(parents=True)
        for number in range(8):
            cv2.imwrite(
                str(folder / "my pets" / kind / f"{number}.jpg"),
                rng.integers(0, 256, (40, 48, 3), np.uint8),
            )
    return Shell(folder)


@pytest.mark.slow
def test_printed_commands_run(shell: Shell) -> None:
    for command, expected in PRINTING.items():
        done = shell.run(command)
        printed = PRINTED.findall(done.stdout + done.stderr)
        assert len(printed) >= expected, done.stdout + done.stderr
        for text in printed:
            for word, value in REPLACED.items():
                text = re.sub(rf"\b{word}\b", value, text)
            text = text.strip()
            if text == "ppcls dataset audit":  # named in a sentence
                continue
            if text.startswith("ppcls serve"):  # starts a server: only its options are checked
                assert parses(shlex.split(text)[1:]), text
                continue
            if "--resume" in text and "my pets" in text:
                text += " --model ShuffleNetV2_x0_25 --epochs 1 --image-size 32 --batch-size 4"
                shutil.rmtree(shell.folder / "my run")
            shell.run_well(text)


EVALUATE = "ppcls eval --model cut --trust --data others"
# States that a user rarely reaches: the commands that lead there, and the command that ppcls then prints.
RARE = {
    "a run that saved no checkpoint": (
        TRAIN + "--output cut && rm -r cut/checkpoints cut/latest cut/best_model* cut/epoch_*; "
        "ppcls train --resume cut",
        r"ppcls train -c cut/config\.yaml -o Global\.checkpoints=auto",
    ),
    "a folder with a run and images": (
        "cp -a cut both && cp -a 'my pets/cats' 'my pets/dogs' both && ppcls train both",
        r"ppcls train --output both --resume",
    ),
    "the folder of a run as images": ("ppcls train cut", r"ppcls train --resume cut"),
    "a head": (
        "ppcls train 'my pets' --head --model EfficientNet_lite0 --image-size 32 --output head "
        "-o LinearHead.views=1",
        r"ppcls train -c head/config\.yaml -o LinearHead=null .* --output head-tuned",
    ),
    "few images": (
        "ppcls train 'my pets' --pretrained --model EfficientNet_lite0 --image-size 32 --epochs 1 "
        "--output tuned",
        r"ppcls train -c tuned/config\.yaml --head .*--output tuned-head",
    ),
    "fixes of an audit": (
        "cp -a 'my pets' 'your pets' && "
        "ppcls dataset audit 'your pets' --model cut --image-size 32 --out a && "
        "ppcls dataset audit 'your pets' --fix a/fixes.csv --out a",
        r"ppcls dataset audit 'your pets' --undo \S+",
    ),
    "a container without an index": (
        "ppcls dataset convert webdataset 'my pets' --out 'my tars' && rm 'my tars'/*.idx && "
        "ppcls dataset stats -c tars.yaml --out s",
        r"ppcls dataset index 'my tars/\S+'",
    ),
    "a bundle": (
        "ppcls export --model cut --trust --format bundle --runners python --output bundle && "
        "grep -h 'ppcls infer' bundle/README.md | sed 's|--model [.] |--model bundle bundle/|'",
        r"ppcls infer --model bundle \S+",
    ),
    "bad images": (
        "cp -a 'my pets' broken && echo no > broken/cats/bad.jpg && "
        + TRAIN.replace("'my pets'", "broken")
        + "--output skipping",
        r"--on-error skip",
    ),
    "a part of another folder": (
        f"cp -a 'my pets' others; {EVALUATE} -o DataLoader.Eval.dataset.part=val",
        r"-o DataLoader\.Eval\.dataset\.part=null",
    ),
}
AFTER = {  # the command to which a printed option belongs
    "--on-error skip": TRAIN.replace("'my pets'", "broken") + "--output skipped ",
    "-o DataLoader.Eval.dataset.part=null": f"{EVALUATE} ",
}


@pytest.mark.slow
def test_printed_commands_of_rare_states_run(shell: Shell) -> None:
    config = yaml.safe_load((ROOT / "configs" / "finetune.yaml").read_text())
    train = config["DataLoader"]["Train"]["dataset"]
    chain = train["transform_ops"]
    config["DataLoader"]["Train"]["dataset"] = {
        "name": "WebDataset",
        "paths": ["my tars/*.tar"],
        "transform_ops": chain,
    }
    config["DataLoader"]["Eval"]["dataset"] = config["DataLoader"]["Train"]["dataset"]
    config["Arch"]["class_num"] = 2
    (shell.folder / "tars.yaml").write_text(yaml.safe_dump(config))
    for name, (command, pattern) in RARE.items():
        done = shell.run(command)
        printed = re.search(pattern, done.stdout + done.stderr)
        assert printed, f"{name}: {command}\n{done.stdout}\n{done.stderr}"
        text = AFTER.get(printed[0], "") + printed[0]
        shell.run_well(text.replace("--epochs 20", "--epochs 1"))
