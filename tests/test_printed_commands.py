"""Every command that ppcls prints with values is printed by a run here, and then runs as printed.

`built_commands` finds the calls that write such commands. A new call needs a scenario in `printed_scenarios`:
a command that prints it, and what turns the printed text into a complete command.

Messages also mention commands, options and settings in constant text. Each of them must be in a command that
a test runs: in the documents, in `--help`, in a comment, in a scenario, or in `MORE`.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from documents import WRITTEN, comment_examples, examples, help_examples
from parsed_commands import all_commands, parse, resolve
from paths import ROOT
from printed import built_commands, mentions
from printed_scenarios import BUNDLE, MORE, NOT_RUN, SCENARIOS, SERVED, TRAIN
from running import running

from ppcls.cli.arguments.options import read_options
from ppcls.cli.command import CommandGroup


def test_each_printed_command_has_a_scenario() -> None:
    """A call without a scenario needs one; a scenario without a call can be removed."""
    assert sorted(SCENARIOS) == sorted(each.place for each in built_commands())


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a finished run, and configs."""
    folder = tmp_path_factory.mktemp("prepared") / "work"
    rng = np.random.default_rng(0)
    for kind in ("cats", "dogs"):
        (folder / "my pets" / kind).mkdir(parents=True)
        for number in range(8):
            image = rng.integers(0, 256, (40, 48, 3)).astype(np.uint8)
            cv2.imwrite(str(folder / "my pets" / kind / f"{number}.jpg"), image)
    done = run(f"{TRAIN} --output 'my run' && {TRAIN} --print-config > mine.yaml", folder)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((folder / "mine.yaml").read_text())
    text = yaml.safe_dump(config)
    shared = config["DataLoader"]["Train"]["loader"]
    config["DataLoader"]["Train"]["loader"] = config["DataLoader"]["Eval"]["loader"] = shared
    (folder / "aliased.yaml").write_text(yaml.safe_dump(config))  # with an anchor and an alias
    assert "*id" in (folder / "aliased.yaml").read_text()
    tars = yaml.safe_load(text)
    for split in ("Train", "Eval"):
        dataset = tars["DataLoader"][split]["dataset"]
        tars["DataLoader"][split]["dataset"] = {
            "name": "WebDataset",
            "paths": ["my tars/*.tar"],
            "transform_ops": dataset["transform_ops"],
        }
    (folder / "tars.yaml").write_text(yaml.safe_dump(tars))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("place", SCENARIOS)
def test_printed_command_runs(place: str, prepared: Path, tmp_path: Path) -> None:
    scenario = SCENARIOS[place]
    built = next(each for each in built_commands() if each.place == place)
    if "ppcls tune" in scenario.command:
        pytest.importorskip("optuna")  # an extra
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder, symlinks=True)
    done = run(scenario.command, folder)
    output = html.unescape(done.stdout + done.stderr)
    printed = [match[0] for match in re.finditer(built.pattern, " ".join(output.split()))]
    assert printed, f"{scenario.command}\n{built.pattern}\n{output}"
    text = printed[-1]  # an error quotes what was typed before
    for word, value in scenario.values.items():
        text = re.sub(rf"\b{word}\b", value, text)
    if scenario.needs:
        parse(shlex.split(text)[1:])
    elif text.startswith("ppcls serve"):
        with running(folder, *shlex.split(text)[2:]) as server, server.client() as client:
            assert client.get("/live").status_code == 200
    else:
        command = scenario.run.replace("PRINTED", text)
        again = run(command, folder)
        assert again.returncode == scenario.code, f"{command}\n{again.stdout}\n{again.stderr}"


CHOICES = {
    name: option.choices
    for command in all_commands()
    for option in read_options(command.options)
    for name in option.names
    if option.choices
}
RUN = [
    *(command for document in WRITTEN for example in examples(document) for command in example.commands),
    *(command for example in [*help_examples(), *comment_examples()] for command in example.commands),
    *MORE,
    *SERVED,
    *(f"{command}; {each.run}" for place, each in SCENARIOS.items() for command in (place, each.command)),
]
ALL_RUN = "\n".join(command.replace("'", "").replace(",", "") for command in RUN)


def is_run(name: str, value: str) -> bool:
    """Returns whether a test runs a command with an option and, if the value is a choice, with this value."""
    if name in NOT_RUN:
        return True
    end = rf"[= ]{re.escape(value)}\b" if value in CHOICES.get(name, ()) else r"(?![\w-])"
    return re.search(re.escape(name) + end, ALL_RUN) is not None


def test_each_mentioned_command_is_run() -> None:
    """A new command, option or setting in a message must be in a command that a test runs."""
    problems = []
    for mention in mentions():
        pairs = re.findall(r"(?<![\w-])(--[a-z][\w-]*\w)(?:[= ]([\w.-]+))?", mention.text)
        missing = [name for name, value in pairs if not is_run(name, value.rstrip("."))]
        if mention.text.startswith("-o "):
            settings = mention.text.replace("'", "").split()[1:]
            missing += [each for each in settings if each not in ALL_RUN and each not in NOT_RUN]
        if named := re.match(r"ppcls (\w+(?: \w+)?)", mention.text):
            name, _, part = named[1].partition(" ")
            group = resolve(name)
            words = named[1] if isinstance(group, CommandGroup) and part in group.commands else name
            if not re.search(rf"(?:ppcls |tools/){words.replace(' ', r'(?:[.]py)? ')}\b", ALL_RUN):
                missing.append(f"ppcls {words}")
        problems += [f"{mention.place}: {mention.text}: no test runs {each}" for each in missing]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("command", MORE)
def test_mentioned_command_runs(command: str, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder, symlinks=True)
    done = run(command, folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_limits_of_the_server_are_accepted(prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder, symlinks=True)
    (folder / "keys.txt").write_text("0123456789abcdef" * 4 + "\n")
    assert run(BUNDLE, folder).returncode == 0
    for options in SERVED:
        with running(folder, *shlex.split(options)[2:]) as server, server.client() as client:
            assert client.get("/live").status_code == 200
