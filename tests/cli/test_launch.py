"""``ppcls launch`` checks the GPUs before Paddle's launcher, which reports a missing one by a traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from paddle.distributed.launch.context.args_envs import env_args_mapping
from paths import ROOT

from ppcls.cli.launch import (
    _VARIABLES,
    VisibleGpus,
    check_gpus,
    describe_overrides,
    find_gpus,
    launch,
    resolve_master,
    split_words,
    wait_for_master,
)
from ppcls.errors import TryAgainError, UserError

CPU_BUILD = VisibleGpus(0, None, has_cuda=False)
NONE = VisibleGpus(0, None, has_cuda=True)
TWO = VisibleGpus(2, None, has_cuda=True)
CHOSEN = VisibleGpus(2, "4,6", has_cuda=True)


@pytest.mark.parametrize(
    ("gpus", "processes", "found"),
    [
        (None, None, CPU_BUILD),
        (None, "2", CPU_BUILD),
        (None, "2", NONE),
        (None, None, TWO),
        ("0,1", None, TWO),
        (" 1 , 0", "2", TWO),
        ("1", "1", TWO),
        ("4,6", None, CHOSEN),
        ("6", None, CHOSEN),
        ("GPU-1a", None, VisibleGpus(1, "GPU-1a", has_cuda=True)),
    ],
)
def test_possible_launch_is_accepted(gpus: str | None, processes: str | None, found: VisibleGpus) -> None:
    check_gpus(gpus, processes, found)


@pytest.mark.parametrize(
    ("gpus", "processes", "found", "message"),
    [
        ("0,1", None, CPU_BUILD, "--gpus=0,1: the installed Paddle is a build for CPUs; `ppcls doctor`"),
        (
            "0,1",
            None,
            NONE,
            "the installed Paddle finds no GPU; .* --nproc_per_node=2 and -o Global.device=cpu",
        ),
        ("0,1", "4", NONE, "--nproc_per_node=4 and"),
        ("0,2,5", None, TWO, "--gpus=0,2,5: no GPU 2, 5; this machine has these GPUs: 0, 1"),
        ("0", None, CHOSEN, "no GPU 0; CUDA_VISIBLE_DEVICES=4,6 makes these GPUs visible: 4, 6"),
        ("0,0", None, TWO, "expected each GPU once"),
        ("", None, TWO, "--gpus=: expected numbers of GPUs"),
        ("0,", None, TWO, "--gpus=0,: expected numbers of GPUs separated by commas, such as --gpus=0,1"),
        ("all", None, TWO, "--gpus=all: expected numbers"),
        ("-1", None, TWO, "expected numbers"),
        (None, "3", TWO, "--nproc_per_node=3: expected at most one process per GPU, that is 2; this machine"),
        ("1", "2", TWO, "expected at most one process per GPU, that is 1"),
        (None, "0", CPU_BUILD, "--nproc_per_node=0: expected an integer > 0"),
        (None, "two", CPU_BUILD, "--nproc_per_node=two: expected an integer > 0"),
    ],
)
def test_impossible_launch_is_explained(
    gpus: str | None, processes: str | None, found: VisibleGpus, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_gpus(gpus, processes, found)


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        (["--gpus=0,1", "train", "-c", "x"], ["--gpus=0,1"], ["train", "-c", "x"]),
        (["--gpus", "0,1", "a.py", "--gpus", "5"], ["--gpus=0,1"], ["a.py", "--gpus", "5"]),
        (["--devices", "0,1", "--log_dir", "l", "a.py"], ["--devices=0,1", "--log_dir=l"], ["a.py"]),
        (["--gpu", "0,1", "a.py"], ["--gpu=0,1"], ["a.py"]),
    ],
)
def test_options_of_the_launcher_come_first(words: list[str], options: list[str], program: list[str]) -> None:
    split = split_words(words)
    assert (split.options, split.program, split.gpus) == (options, program, "0,1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: ppcls launch "),
        (["--help"], "usage: ppcls launch "),
        (["--gpus"], "error: --gpus: expected a value, such as ppcls launch --gpus=0,1 train"),
        (["--gpus=0,1"], "error: expected a command or a script after the options"),
        (["trian"], "error: trian: no such file; expected a script, or train or eval"),
    ],
)
def test_incomplete_command_is_explained(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(words) == (2 if "error" in message else 0)
    printed = capsys.readouterr()
    assert (printed.out + printed.err).startswith(message)


@pytest.mark.parametrize("visible", ["", pytest.param("0", marks=pytest.mark.slow)])
def test_launcher_starts_processes(tmp_path: Path, visible: str) -> None:
    """On CPUs, Paddle's launcher would look for one GPU per process in the variable, and raise an error."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint('rank', os.environ['PADDLE_TRAINER_ID'], *sys.argv[1:])\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "launch.py", "--nproc_per_node=2", script, "--gpus=7"],
        cwd=tmp_path,
        env={**os.environ} | ({} if find_gpus().has_cuda else {"CUDA_VISIBLE_DEVICES": visible}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in "01":
        assert f"rank {rank} --gpus=7\n" in (tmp_path / "log" / f"workerlog.{rank}").read_text()


def test_package_is_a_script_for_the_launcher(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "ppcls" / "__main__.py", "train", "-c", "gone.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: gone.yaml: ")


OTHER = ["--nnodes=2", "--host=127.0.0.2"]


def test_master_that_does_not_answer_is_an_error_for_another_try() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(TryAgainError, match=rf"{master}: .* did not answer within 1 s \(.*refused"):
            wait_for_master([f"--master={master}", *OTHER], {"PPCLS_MASTER_TIMEOUT": "1"})


def test_name_of_the_master_is_replaced_by_its_address() -> None:
    assert resolve_master(["--master=localhost:80", *OTHER], {}) == ["--master=127.0.0.1:80", *OTHER]
    environment = {"PADDLE_MASTER": "localhost:81"}
    assert resolve_master(OTHER, environment) == OTHER
    assert environment == {"PADDLE_MASTER": "127.0.0.1:81"}
    for options in (["--nproc_per_node=2"], ["--master=etcd://localhost:80"], ["--master=10.0.0.1:80"]):
        assert resolve_master(options, {}) == options


def test_name_without_address_is_an_error_for_another_try() -> None:
    with pytest.raises(TryAgainError, match=r"gone\.invalid:80: this name has no IPv4 address within 0 s"):
        resolve_master(["--master=gone.invalid:80"], {"PPCLS_MASTER_TIMEOUT": "0"})


@pytest.mark.slow
def test_first_machine_waits_for_the_others_up_to_a_limit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [sys.executable, ROOT / "tools" / "launch.py", f"--master=localhost:{port}", "--nnodes=2"]
    environment = {**os.environ, "PPCLS_MASTER_TIMEOUT": "5"}
    done = subprocess.run(
        [*command, "--rank=0", "--host=127.0.0.1", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75
    assert "the launchers of all machines did not find each other within 5 s" in done.stderr


def test_launcher_continues_when_the_master_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        wait_for_master([f"--master=127.0.0.1:{master.getsockname()[1]}", *OTHER], {})


@pytest.mark.parametrize(
    "options",
    [
        ["--nproc_per_node=2"],
        ["--master=127.0.0.1:9", "--nnodes=2", "--host=127.0.0.1"],
        ["--master=127.0.0.1:9", "--nnodes=2", "--rank=0"],
        ["--master=127.0.0.1:9", "--nnodes=2"],
        ["--master=etcd://127.0.0.1:9", "--nnodes=2", "--host=127.0.0.2"],
    ],
)
def test_first_machine_and_etcd_wait_for_no_master(options: list[str]) -> None:
    wait_for_master(options, {"PPCLS_MASTER_TIMEOUT": "0"})


def test_variables_that_the_launcher_prefers_are_reported() -> None:
    options = ["--master=10.0.0.1:80", "--nnodes=2", "--gpu=0,1", "--log_dir=log"]
    environment = {
        "PADDLE_NNODES": "4",
        "PADDLE_MASTER": "10.0.0.1:80",
        "PADDLE_DEVICES": "0",
        "POD_IP": "10.0.0.7",
    }
    warnings = list(describe_overrides(options, environment))
    assert [line.split()[1] for line in warnings] == ["PADDLE_DEVICES=0", "PADDLE_NNODES=4"]
    assert "prefers it to --nnodes=2; run `unset PADDLE_NNODES`" in warnings[1]


def test_all_variables_of_common_options_are_those_of_paddle() -> None:
    known = {name: f"--{option}" for name, (option, _) in env_args_mapping.items()}
    assert all(known[name] in options for name, options in _VARIABLES.items())
