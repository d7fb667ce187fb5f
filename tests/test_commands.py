"""Every command that ppcls prints is valid.

Commands with values are calls of `ppcls.commands`, which the first tests find in the code. Other messages
name commands and options as constant text. `test_printed_commands.py` runs the commands.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parsed_commands import NAMES, parse, resolve
from paths import ROOT
from printed import SOURCES, nodes

from ppcls.cli.command import Command, CommandGroup
from ppcls.commands import command_line, set_keys
from ppcls.config.base.overrides import Override
from ppcls.recipe.load import load_config

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
    for path, inner in nodes().items():
        for node in inner:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                yield path, node


def words_of(call: ast.Call) -> list[str]:
    words: list[str] = []
    for argument in call.args:
        if isinstance(argument, ast.Constant):
            words.append(str(argument.value))
        elif not isinstance(argument, ast.Starred):
            words.append(SAMPLES.get(words[-1] if words else "", "pictures"))
    return words


def test_commands_in_messages_are_valid(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    checked = 0
    for path, call in calls("command_line"):
        words = words_of(call)
        if words[0] not in NAMES:  # the command that the user has typed
            continue
        checked += 1
        with subtests.test(f"{path.name}:{call.lineno}"):
            options = parse(words)
            if getattr(options, "config", None) is not None:
                load_config(options.config, options.override)
    assert checked > 20


GROUPS = {name: command for name in NAMES if isinstance(command := resolve(name), CommandGroup)}


def test_groups_have_the_commands_that_texts_name() -> None:
    wrong = []
    pattern = rf"`ppcls ({'|'.join(GROUPS)}) ([a-z][a-z-]*)"
    for path in [*SOURCES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for group, name in re.findall(pattern, path.read_text("utf-8")):
            if name not in GROUPS[group].commands:
                wrong.append(f"{path.relative_to(ROOT)}: ppcls {group} {name}")
    assert not wrong, "\n".join(wrong)


def test_keys_in_messages_exist(subtests: pytest.Subtests) -> None:
    keys = {
        str(key.value): f"{path.name}:{call.lineno}"
        for path, call in calls("set_keys")
        if isinstance(call.args[0], ast.Dict)
        for key in call.args[0].keys
        if isinstance(key, ast.Constant)
    }
    assert keys
    for key, place in keys.items():
        with subtests.test(place):
            load_config(ROOT / "configs" / "ResNet50_fp16.yaml", [f"{key}=1"])


MENTION = rf"\bppcls ({'|'.join(NAMES)})\b((?: (?:--?[\w-]+|[\w./*'=-]+))*)"


def mentions() -> Iterator[tuple[str, str]]:
    """Yields place and text of each command in constant text, docstrings included."""
    for path, inner in nodes().items():
        for node in inner:
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


def test_options_in_messages_exist() -> None:
    known = set(OTHER_OPTIONS)
    for name in NAMES:
        command = resolve(name)
        for each in command.commands.values() if isinstance(command, CommandGroup) else [command]:
            if isinstance(each, Command):
                known |= set(re.findall(r"--[\w-]+", each.parser().format_help()))
    wrong = []
    for path, inner in nodes().items():
        if path == LAUNCHER:
            continue
        for node in inner:
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
