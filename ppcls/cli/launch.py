"""``ppcls launch``: checks the GPUs, and then starts Paddle's launcher."""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ppcls.cli.command import exit_code, write_output
from ppcls.engine.launcher import TIMEOUT, launcher_command
from ppcls.errors import TryAgainError, UserError
from ppcls.files import print_error

_HELP = """\
usage: ppcls launch [OPTIONS] COMMAND [ARGUMENTS]

Start a run in several processes, one per GPU. Checks the GPUs, and then starts Paddle's launcher,
`python -m paddle.distributed.launch`, with the same options.

COMMAND is `train` or `eval`, or a script such as tools/train.py.

options of Paddle's launcher, for example:
  --gpus 0,1           numbers of the GPUs (default: all)
  --nproc_per_node N   number of processes on this machine (default: the number of GPUs)
  --master HOST:PORT   address of the first of several machines
  --nnodes N           number of machines
  --log_dir FOLDER     folder for the output of the processes (default: log)
`python -m paddle.distributed.launch --help` lists all of them.

examples:
  ppcls launch --gpus=0,1 train -c configs/ResNet50.yaml -o Global.use_dali=True
  ppcls launch --gpus=0,1,2,3 tools/train.py -c configs/ResNet50.yaml
  ppcls launch --nproc_per_node=2 train -c configs/quickstart.yaml -o Global.device=cpu
"""
_COMMANDS = ("train", "eval")
_DEVICES = ("--gpus", "--devices")
_PROCESSES = ("--nproc_per_node",)
# Paddle's launcher prefers these variables to its options (paddle/distributed/launch/context/args_envs.py).
_VARIABLES = {
    "POD_IP": ("--host",),
    "PADDLE_MASTER": ("--master",),
    "PADDLE_DEVICES": _DEVICES,
    "PADDLE_NNODES": ("--nnodes",),
    "PADDLE_NPROC_PER_NODE": _PROCESSES,
    "PADDLE_JOB_ID": ("--job_id",),
    "PADDLE_RANK": ("--rank",),
    "PADDLE_LOG_DIR": ("--log_dir",),
    "PADDLE_LOG_LEVEL": ("--log_level",),
    "PADDLE_MAX_RESTART": ("--max_restart",),
    "PADDLE_ELASTIC_LEVEL": ("--elastic_level",),
    "PADDLE_ELASTIC_TIMEOUT": ("--elastic_timeout",),
    "PADDLE_START_PORT": ("--start_port",),
    "PADDLE_IPS": ("--ips",),
}
_Result = TypeVar("_Result")
_EXAMPLE = "ppcls launch --gpus=0,1 train -c configs/ResNet50.yaml"


@dataclass(frozen=True)
class LaunchWords:
    """The words of a command line.

    Attributes:
        options: Words for Paddle's launcher.
        program: Words of the program that it starts.
        gpus: Value of ``--gpus``; None without the option.
        processes: Value of ``--nproc_per_node``; None without the option.
    """

    options: list[str]
    program: list[str]
    gpus: str | None
    processes: str | None


@dataclass(frozen=True)
class VisibleGpus:
    """The GPUs that Paddle finds.

    Attributes:
        count: Number of GPUs.
        visible: Value of ``CUDA_VISIBLE_DEVICES``; None without this variable.
        has_cuda: Whether the installed Paddle is a build for GPUs.
    """

    count: int
    visible: str | None
    has_cuda: bool

    @property
    def labels(self) -> list[str]:
        """Names of the GPUs for the launcher, which are those of ``CUDA_VISIBLE_DEVICES``."""
        if self.visible is not None:
            return [label.strip() for label in self.visible.split(",") if label.strip()]
        return [str(number) for number in range(self.count)]

    def describe(self) -> str:
        """Returns which GPUs can be used."""
        names = ", ".join(self.labels) or "none"
        if self.visible is not None:
            return f"CUDA_VISIBLE_DEVICES={self.visible} makes these GPUs visible: {names}"
        return f"this machine has these GPUs: {names}"


def launch(words: Sequence[str] | None = None) -> int:
    """Checks the GPUs, and replaces this process by Paddle's launcher. Returns the exit code of an error."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        return exit_code(lambda: write_output(_HELP))
    return exit_code(lambda: _launch(words))


def _launch(words: Sequence[str]) -> None:
    environment = dict(os.environ)  # before Paddle is imported, which changes it
    split = split_words(words)
    program = _find_program(split.program)
    for line in describe_overrides(split.options, environment):
        print_error(line)
    gpus = environment.get("PADDLE_DEVICES") or split.gpus  # the launcher prefers the variable
    visible = find_gpus()
    check_gpus(gpus, environment.get("PADDLE_NPROC_PER_NODE") or split.processes, visible)
    if not visible.has_cuda:
        # The launcher would look for one GPU per process in this variable, even if it is empty.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    options = resolve_master(split.options, environment)
    wait_for_master(options, environment)
    # With etcd, the launcher has time limits of its own.
    seconds = None if _read_master(options, environment) is None else _read_timeout(environment)
    command = launcher_command(options, program, seconds)
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell is needed


def split_words(words: Sequence[str]) -> LaunchWords:
    """Splits a command line into the options of the launcher and the program.

    Every option of the launcher has a value. Like argparse, it accepts abbreviations such as ``--gpu``.
    """
    rest = list(words)
    options: list[str] = []
    values: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if not equals and not rest:
            raise UserError(f"{name}: expected a value, such as {_EXAMPLE}")
        value = value if equals else rest.pop(0)
        options.append(f"{name}={value}")
        for known in (_DEVICES, _PROCESSES):
            if len(name) > 3 and any(option.startswith(name) for option in known):
                values[known[0]] = value
    return LaunchWords(options, rest, values.get("--gpus"), values.get("--nproc_per_node"))


def describe_overrides(options: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each option of the launcher that a variable overrides with another value.

    Args:
        options: Options as ``--name=value``.
        environment: Environment variables.
    """
    for variable, names in _VARIABLES.items():
        value = environment.get(variable)
        for option in options:
            name, _, text = option.partition("=")
            named = len(name) > 3 and any(each.startswith(name) for each in names)
            if value is not None and named and text != value:
                yield (
                    f"warning: {variable}={value} is set, and Paddle's launcher prefers it to {option}; "
                    f"run `unset {variable}` to use the option"
                )


def resolve_master(options: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Replaces a host name in the address of the first machine by its IP address.

    Paddle's launcher compares this address with that of the machine, so with a name, all machines would wait
    for each other. On Kubernetes, a name exists only after its pod has started.

    Args:
        options: Options of the launcher as ``--name=value``.
        environment: Environment variables. ``PADDLE_MASTER`` is replaced, too.

    Returns:
        The options.

    Raises:
        TryAgainError: The name has no address within the time limit.
        UserError: A value is invalid.
    """
    master = _read_master(options, environment)
    if master is None:
        return list(options)
    host, port = master

    def resolve() -> str:
        addresses = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
        return f"{addresses[0][4][0]}:{port}"

    address = _try_until(resolve, f"--master {host}:{port}: this name has no IPv4 address", environment)
    if "PADDLE_MASTER" in environment:
        environment["PADDLE_MASTER"] = address
    return [f"--master={address}" if each.startswith("--master=") else each for each in options]


def wait_for_master(options: Sequence[str], environment: Mapping[str, str]) -> None:
    """Waits until the launcher of the first machine accepts connections.

    Paddle's launcher would wait without limit.

    Args:
        options: Options of the launcher as ``--name=value``.
        environment: Environment variables.

    Raises:
        TryAgainError: It does not accept connections within the time limit.
        UserError: A value is invalid.
    """
    master = _read_master(options, environment)
    if master is None:
        return
    values = _read_options(options)
    own = environment.get("POD_IP") or values.get("--host")
    rank = environment.get("PADDLE_RANK") or values.get("--rank")
    if rank == "0" if rank is not None else own in (None, master[0]):
        return  # this is the first machine
    _try_until(
        lambda: socket.create_connection(master, timeout=5.0).close(),
        f"--master {master[0]}:{master[1]}: the launcher of the first machine did not answer",
        environment,
    )


def _read_options(options: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (option.partition("=") for option in options)}


def _read_master(options: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns host and port of the first machine; None without them, and with etcd."""
    master = environment.get("PADDLE_MASTER") or _read_options(options).get("--master", "")
    host, _, port = master.rpartition(":")
    return None if not host or "//" in master or not port.isdecimal() else (host, int(port))


def _read_timeout(environment: Mapping[str, str]) -> int:
    """Returns the seconds to wait for other machines.

    Raises:
        UserError: The value of the variable is invalid.
    """
    text = environment.get(TIMEOUT, "900")
    if not text.isdecimal():
        raise UserError(f"{TIMEOUT}={text}: expected a number of seconds, such as 900")
    return int(text)


def _try_until(act: Callable[[], _Result], failure: str, environment: Mapping[str, str]) -> _Result:
    """Calls ``act`` until it raises no `OSError`, and returns its result.

    Raises:
        TryAgainError: It still fails after the time limit.
        UserError: The time limit is invalid.
    """
    seconds = _read_timeout(environment)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return act()
        except OSError as error:
            if time.monotonic() >= deadline:
                raise TryAgainError(
                    f"{failure} within {seconds} s ({error}). Start the first machine, and check the "
                    f"address, the port and the firewall; {TIMEOUT} sets the limit in seconds"
                ) from None
            time.sleep(0.5)


def _find_program(words: Sequence[str]) -> list[str]:
    """Returns the words of the program, in which a command of ppcls is replaced by its script."""
    if not words:
        raise UserError(f"expected a command or a script after the options, such as {_EXAMPLE}")
    name, *arguments = words
    if name in _COMMANDS:
        return [str(Path(__file__).resolve().parents[1] / "__main__.py"), name, *arguments]
    if not Path(name).is_file():
        known = " or ".join(_COMMANDS)
        raise UserError(f"{name}: no such file; expected a script, or {known}, such as {_EXAMPLE}")
    return [name, *arguments]


def find_gpus() -> VisibleGpus:
    """Imports Paddle, and returns the GPUs that it finds."""
    from ppcls.runtime.paddle_import import import_paddle

    os.environ.setdefault("GLOG_minloglevel", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Paddle, about ccache
        import_paddle()
    import paddle

    has_cuda = bool(paddle.is_compiled_with_cuda())
    count = paddle.device.cuda.device_count() if has_cuda else 0
    return VisibleGpus(int(count), os.environ.get("CUDA_VISIBLE_DEVICES"), has_cuda)


def check_gpus(gpus: str | None, processes: str | None, found: VisibleGpus) -> None:
    """Checks that Paddle's launcher can start the processes.

    Args:
        gpus: Numbers of the GPUs, separated by commas; None for all.
        processes: Number of processes; None for one per GPU.
        found: GPUs that Paddle finds.

    Raises:
        UserError: A GPU is missing, or a value is invalid.
    """
    if processes is not None and not (processes.isdecimal() and int(processes) > 0):
        raise UserError(f"--nproc_per_node={processes}: expected an integer > 0")
    selected = None if gpus is None else [number.strip() for number in gpus.split(",")]
    if selected is not None:
        if not all(number.isdecimal() or number in found.labels for number in selected):
            raise UserError(
                f"--gpus={gpus}: expected numbers of GPUs separated by commas, such as --gpus=0,1"
            )
        if len(set(selected)) < len(selected):
            raise UserError(f"--gpus={gpus}: expected each GPU once; several processes cannot share a GPU")
        if not found.count:
            reason = "finds no GPU" if found.has_cuda else "is a build for CPUs"
            raise UserError(
                f"--gpus={gpus}: the installed Paddle {reason}; `ppcls doctor` says what to install. To "
                f"start processes on the CPU, use --nproc_per_node={processes or len(selected)} and "
                "-o Global.device=cpu"
            )
        if missing := [number for number in selected if number not in found.labels]:
            raise UserError(f"--gpus={gpus}: no GPU {', '.join(missing)}; {found.describe()}")
    usable = len(found.labels) if selected is None else len(selected)
    if found.count and processes is not None and int(processes) > usable:
        raise UserError(
            f"--nproc_per_node={processes}: expected at most one process per GPU, that is {usable}; "
            f"{found.describe()}"
        )
