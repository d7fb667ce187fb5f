"""What a process reads from the launcher's environment variables, and what it passes on."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from ppcls.runtime.launch import (
    Launch,
    child_environment,
    local_processes,
    read_launch,
    restore_proxies,
    selected_gpu,
)

VARIABLES = {
    "PADDLE_TRAINER_ID": "3",
    "PADDLE_TRAINERS_NUM": "4",
    "PADDLE_MASTER": "10.0.0.1:8090",
    "PADDLE_LOCAL_RANK": "1",
    "PADDLE_LOCAL_SIZE": "2",
    "FLAGS_selected_gpus": "1",
}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PADDLE_") or name in VARIABLES]:
        monkeypatch.delenv(name)


def test_read_launch_without_a_launcher_describes_this_process() -> None:
    assert read_launch() == Launch(0, 1, f"process_{os.getpid()}")
    assert (local_processes(), selected_gpu()) == (1, 0)


@pytest.mark.parametrize(("local_rank", "hidden"), [("0", False), ("1", True)])
def test_launch_has_the_log_of_the_terminal_unless_it_is_shown_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_rank: str, hidden: bool
) -> None:
    log = tmp_path / "workerlog.0"
    log.touch()
    for name, value in {
        **VARIABLES,
        "PADDLE_LOG_DIR": str(tmp_path),
        "PADDLE_LOCAL_RANK": local_rank,
    }.items():
        monkeypatch.setenv(name, value)
    assert read_launch() == Launch(3, 4, "10.0.0.1_8090", log if hidden else None)
    assert (local_processes(), selected_gpu()) == (2, 1)
    read_launch().show_on_terminal("rank 3 failed")
    assert log.read_text() == ("rank 3 failed\n" if hidden else "")


def test_child_environment_drops_the_launchers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_MASTER", "10.0.0.1:8090")
    monkeypatch.setenv("REMOVED", "1")
    environment = child_environment({"ADDED": "2", "REMOVED": None})
    assert environment == {
        **{name: value for name, value in os.environ.items() if name not in ("PADDLE_MASTER", "REMOVED")},
        "ADDED": "2",
    }


def test_proxies_that_the_launcher_hides_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the launcher's own function, so that a change of Paddle is noticed."""
    from paddle.distributed.launch.context import args_envs

    monkeypatch.setenv("http_proxy", "http://one:1")
    monkeypatch.setenv("https_proxy", "http://two:2")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(
            f"{name}_original", ""
        )  # so that the launcher's variables are removed after the test
        monkeypatch.delenv(f"{name}_original")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args_envs.fetch_envs()
    if "http_proxy_original" not in os.environ:
        pytest.skip("Paddle 2.6 removes the variables")
    monkeypatch.setenv("https_proxy", "http://chosen:3")
    restore_proxies()
    assert os.environ["http_proxy"] == "http://one:1"
    assert os.environ["https_proxy"] == "http://chosen:3", "the user's own value stays"
