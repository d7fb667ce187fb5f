"""Paddle is imported once: its settings at import, and what a later run may request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import paddle
import pytest
from paths import ROOT
from runs import GUARD

from ppcls.errors import UserError
from ppcls.recipe.settings import Global
from ppcls.runtime import paddle_import
from ppcls.runtime.memory import LIMIT, MemoryBudget, MemoryRequest
from ppcls.runtime.paddle_import import PaddleImport, import_with, set_threads
from ppcls.runtime.settings import RuntimeSettings

BY_RUN = PaddleImport(threads=4, deterministic=False, by_run=True, request=MemoryRequest(0.5))
EARLY = PaddleImport(threads=1, deterministic=False)


@pytest.mark.parametrize(
    ("imported", "settings", "request_"),
    [
        (BY_RUN, Global(), None),
        (BY_RUN, Global(cpu_threads=4), MemoryRequest(0.5)),
        (BY_RUN, Global(), MemoryRequest(None)),
        (PaddleImport(1, deterministic=True), Global(deterministic=True), None),
        (PaddleImport(1, deterministic=True), Global(deterministic=False), None),
    ],
)
def test_later_run_with_same_or_default_settings_is_accepted(
    imported: PaddleImport, settings: Global, request_: MemoryRequest | None
) -> None:
    imported.check_settings(settings, request_)


@pytest.mark.parametrize(
    ("imported", "settings", "request_", "message"),
    [
        (
            BY_RUN,
            Global(cpu_threads=2),
            None,
            "Global.cpu_threads 2: Paddle uses 4, which can't be changed after the first run imported it; "
            "start a new process (in a notebook: restart the kernel), or do not change the setting",
        ),
        (EARLY, Global(deterministic=True), None, "Global.deterministic True: Paddle is not deterministic, "),
        (BY_RUN, Global(), MemoryRequest(0.25), "Global.gpu_memory_fraction 0.25: Paddle has 0.5, "),
        (EARLY, Global(), MemoryRequest(0.25, setting="FLAGS_x"), "FLAGS_x 0.25: Paddle has no limit, "),
    ],
)
def test_later_run_with_other_settings_is_rejected(
    imported: PaddleImport, settings: Global, request_: MemoryRequest | None, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        imported.check_settings(settings, request_)
    assert str(caught.value).startswith(message)
    assert ("without `import paddle`" in str(caught.value)) == (imported is EARLY)


def test_describe_mentions_an_early_import_with_few_threads() -> None:
    assert EARLY.describe(2) == " (Paddle was imported before ppcls could set more)"
    assert EARLY.describe(1) == ""
    assert PaddleImport(1, deterministic=False, by_run=True).describe(2) == ""


@pytest.mark.parametrize("own", [None, "9000"])
@pytest.mark.parametrize("fails", [False, True])
def test_memory_flags_are_set_only_during_the_import(
    own: str | None, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later try in the same process, such as a notebook, must not read them as settings of the user."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ |= {} if own is None else {LIMIT: own}
    budget = MemoryBudget(total=1000, used_before=0, share=800, initial=0, setting="", reason="")

    def imports() -> None:
        assert os.environ[LIMIT] == "800"
        if fails:
            raise UserError("no libgomp")

    monkeypatch.setattr(paddle_import, "import_paddle", imports)
    with pytest.raises(UserError) if fails else nullcontext():
        import_with(RuntimeSettings(), MemoryRequest(0.8), None, budget, 2)
    assert os.environ.get(LIMIT) == own


@pytest.mark.parametrize(
    ("current", "wanted", "launched", "threads"),
    [
        (None, None, False, 6),
        ("", None, False, 6),
        ("3", None, False, 3),
        ("1", None, False, 1),
        ("1", None, True, 6),  # set by the launcher
        ("3", None, True, 3),
        ("3", 5, False, 5),
        ("1", 1, True, 1),
        ("0", None, False, 6),
        ("many", None, False, 6),
    ],
)
def test_set_threads_keeps_the_users_value(
    monkeypatch: pytest.MonkeyPatch, current: str | None, wanted: int | None, launched: bool, threads: int
) -> None:
    if current is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", current)
    assert set_threads(wanted, cores=6, launched=launched) == threads
    assert os.environ["OMP_NUM_THREADS"] == str(threads)


def test_import_keeps_the_sigterm_handler_and_deterministic_variables_are_set_before() -> None:
    """A finder that sees Paddle being imported prints what Paddle will read."""
    code = """
import importlib.abc, os, signal, sys
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "paddle":
            sys.meta_path.remove(self)
            for key in ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic",
                        "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR"):
                print(key, os.environ.get(key), flush=True)
sys.meta_path.insert(0, Watch())
signal.signal(signal.SIGTERM, lambda *_: sys.exit("previous handler"))
from ppcls.recipe.settings import Global
from ppcls.runtime.start import start
start(Global(device="cpu", deterministic=True))
os.kill(os.getpid(), signal.SIGTERM)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (1, "previous handler\n")
    assert done.stdout.splitlines() == [
        "FLAGS_cudnn_deterministic 1",
        "FLAGS_embedding_deterministic 1",
        "CUBLAS_WORKSPACE_CONFIG :4096:8",
        "MKL_CBWR AUTO",
    ]


@pytest.mark.parametrize(("variable", "stops"), [(None, True), ("0", True), ("1", False)])
def test_cudnn_search_stops_unless_the_environment_requests_it(
    variable: str | None, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "FLAGS_cudnn_exhaustive_search"
    flags = {name: variable != "0"}
    monkeypatch.setattr(paddle, "get_flags", lambda name: {name: flags[name]})
    monkeypatch.setattr(paddle, "set_flags", flags.update)
    monkeypatch.setattr(paddle_import, "SPEED_FLAGS", dict(paddle_import.SPEED_FLAGS))
    monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(name, variable)
    assert paddle_import.stop_cudnn_search() is stops
    assert flags[name] is not stops
    paddle_import.set_speed_flags(deterministic=False)
    assert flags[name] is not stops


def test_ctrl_c_takes_effect_when_the_import_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paddle.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ncomplete = True"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "paddle")
    with pytest.raises(KeyboardInterrupt):
        paddle_import.import_paddle()
    assert sys.modules["paddle"].complete
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_paddle_without_a_library_of_the_system_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paddle.py").write_text(
        "raise ImportError('libgomp.so.1: cannot open shared object file: No such file or directory')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "paddle")
    with pytest.raises(
        UserError, match=r"^Paddle cannot be imported: libgomp.so.1: .*; apt-get install libgomp1 "
    ):
        paddle_import.import_paddle()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "libcudnn.so.8: cannot open shared object file: No such file",
            "package that contains libcudnn.so.8",
        ),
        ("cannot import name 'x' from 'y'", ""),
    ],
)
def test_advice_for_an_import_error_names_the_missing_library(error: str, advice: str) -> None:
    assert paddle_import.advise_library(error).endswith(advice)
    assert bool(paddle_import.advise_library(error)) == bool(advice)


IN_A_THREAD = """
import os, signal, sys, threading
sys.path.insert(0, {root!r})
from ppcls.runtime.paddle_import import import_paddle
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append("handler"))
thread = threading.Thread(target=import_paddle)
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGTERM)
print(received)
"""


@pytest.mark.hostile
def test_import_in_a_thread_keeps_the_handler_of_sigterm() -> None:
    """A server that loads its first Paddle model while it runs must still answer all requests at its end."""
    command = [sys.executable, "-c", IN_A_THREAD.format(root=str(ROOT))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD)
    assert (done.returncode, done.stdout) == (0, "['handler']\n"), done.stderr
