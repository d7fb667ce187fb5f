"""Reads the environment variables that Paddle's launcher sets for each process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ppcls.errors import UserError
from ppcls.files import print_error

_PACKAGES = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Launch:
    """One process of a launch.

    Attributes:
        rank: Rank of the process, from 0.
        world_size: Number of processes.
        name: Name of the launch. It is equal in all processes of a launch, and differs between launches.
        terminal_log: File that the launcher copies to its terminal; None if the terminal already shows the
            output of this process.
    """

    rank: int
    world_size: int
    name: str
    terminal_log: Path | None = None

    def show(self, text: str) -> None:
        """Prints text to standard error and to the terminal of the launcher."""
        print_error(text)
        self.show_on_terminal(text)

    def show_on_terminal(self, text: str) -> None:
        """Prints text to the terminal of the launcher if it does not show the output of this process."""
        if self.terminal_log is not None:
            with suppress(OSError), self.terminal_log.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


def read_launch() -> Launch:
    """Returns the launch of this process. Without a launcher, it is a launch of one process."""
    variables = os.environ
    rank = int(variables.get("PADDLE_TRAINER_ID", "0"))
    world_size = int(variables.get("PADDLE_TRAINERS_NUM", "1"))
    name = re.sub(r"[^\w.-]", "_", variables.get("PADDLE_MASTER") or f"process_{os.getpid()}")
    # The launcher shows only the output of its first process, and writes the output of others to files.
    log = Path(variables.get("PADDLE_LOG_DIR", "")) / "workerlog.0"
    hidden = world_size > 1 and int(variables.get("PADDLE_LOCAL_RANK", rank)) > 0 and log.is_file()
    return Launch(rank, world_size, name, log if hidden else None)


def check_single_process(name: str) -> None:
    """Checks that the launcher did not start this process as one of several.

    Args:
        name: Name of the command or option, for the error message.

    Raises:
        UserError: The launch has several processes.
    """
    if read_launch().world_size > 1:
        raise UserError(f"{name} runs as one process; start it without paddle.distributed.launch")


def local_processes() -> int:
    """Returns the number of processes of the run on this machine."""
    return int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))


def restore_proxies() -> None:
    """Sets the variables of proxies again that Paddle 3's launcher renames for its processes.

    The launcher hides lower-case ``http_proxy`` and ``https_proxy`` from the connection of the ranks. Call
    this function when they are connected, because downloads and trackers need the proxies.
    """
    for name in ("http_proxy", "https_proxy"):
        original = os.environ.get(f"{name}_original")
        if original is not None:
            os.environ.setdefault(name, original)


def selected_gpu() -> int:
    """Returns Paddle's number of the GPU that the launcher selected for this process; by default 0."""
    return int(os.environ.get("FLAGS_selected_gpus", "0").split(",")[0])  # noqa: SIM112 - Paddle's spelling


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the environment of this process without the variables of the launcher, for a child process.

    Args:
        changes: Values of the variables to set, keyed by name. The value None removes a variable.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_")}
    changed: dict[str, str | None] = {**inherited, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def ppcls_command(*arguments: str) -> list[str]:
    """Returns a command line that runs this copy of ppcls, even if another one is installed."""
    code = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from ppcls.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]
