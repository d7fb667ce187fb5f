"""Cores, threads and devices, as other machines would show them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from paths import ROOT

from ppcls.config.sections.run import Global
from ppcls.errors import UserError
from ppcls.runtime import start as runtime
from ppcls.runtime.device import try_gpu
from ppcls.runtime.hardware import interface_of, usable_cores
from ppcls.runtime.start import Runtime


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.max": ""}, 8),
        ({"cpu.max": "400000 0\n"}, 8),
        ({"cpu.max": "some thing\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),
    ],
    ids=str,
)
def test_cores_are_those_that_the_cgroup_leaves(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("given", "wanted", "launched", "threads"),
    [
        (None, None, False, 6),
        ("", None, False, 6),
        ("3", None, False, 3),
        ("1", None, False, 1),
        ("1", None, True, 6),  # the launcher's own
        ("3", None, True, 3),
        ("3", 5, False, 5),
        ("1", 1, True, 1),
        ("0", None, False, 6),
        ("many", None, False, 6),
    ],
)
def test_threads(
    monkeypatch: pytest.MonkeyPatch, given: str | None, wanted: int | None, launched: bool, threads: int
) -> None:
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert runtime._set_threads(wanted, cores=6, launched=launched) == threads
    assert os.environ["OMP_NUM_THREADS"] == str(threads)


def pretend(monkeypatch: pytest.MonkeyPatch, *, compiled: bool, gpus: int) -> None:
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: compiled)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: gpus)
    for name in ("CUDA_VISIBLE_DEVICES", "FLAGS_selected_gpus", "PADDLE_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("wanted", "compiled", "gpus", "device"),
    [
        ("cpu", False, 0, "cpu"),
        ("cpu", True, 2, "cpu"),
        ("auto", False, 0, "cpu"),
        ("auto", True, 0, "cpu"),
        ("auto", True, 1, "gpu"),
        ("gpu", True, 1, "gpu"),
    ],
)
def test_devices(
    monkeypatch: pytest.MonkeyPatch, wanted: str, compiled: bool, gpus: int, device: str
) -> None:
    pretend(monkeypatch, compiled=compiled, gpus=gpus)
    assert runtime._choose_device(wanted) == device


def test_a_gpu_with_a_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, compiled=False, gpus=0)
    text = f"Global.device is gpu, but the installed Paddle {paddle.__version__} is a CPU build; install"
    with pytest.raises(UserError, match=re.escape(text)):
        runtime._choose_device("gpu")


@pytest.mark.parametrize(
    ("visible", "because"),
    [
        (None, "no NVIDIA driver or GPU"),
        ("", "CUDA_VISIBLE_DEVICES is ''"),
        ("-1", "CUDA_VISIBLE_DEVICES is '-1'"),
    ],
)
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, visible: str | None, because: str) -> None:
    pretend(monkeypatch, compiled=True, gpus=0)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UserError) as caught:
        runtime._choose_device("gpu")
    assert str(caught.value) == (
        f"Global.device is gpu, but Paddle finds none ({because}); set Global.device=cpu"
    )


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (
            {"PADDLE_LOCAL_SIZE": "4", "FLAGS_selected_gpus": "1"},
            "4 processes on this machine need 4 GPUs, but Paddle sees 2; "
            "start at most 2 processes a machine, or set Global.device=cpu",
        ),
        (
            {"PADDLE_LOCAL_SIZE": "4", "FLAGS_selected_gpus": "3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            "4 processes on this machine need 4 GPUs, but Paddle sees 2 (CUDA_VISIBLE_DEVICES is '0,1,2,3'); "
            "start at most 2 processes a machine, or set Global.device=cpu",
        ),
        (
            {"FLAGS_selected_gpus": "2"},
            "GPU 2 is asked for, counted from 0, but Paddle sees 2; "
            "start at most 2 processes a machine, or set Global.device=cpu",
        ),
    ],
    ids=["processes", "named but not there", "number"],
)
def test_more_gpus_than_there_are(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], text: str
) -> None:
    pretend(monkeypatch, compiled=True, gpus=2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        runtime._choose_device("gpu")
    assert str(caught.value) == text


@pytest.mark.parametrize("chosen", ["0", "1"])
def test_as_many_processes_as_gpus(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    pretend(monkeypatch, compiled=True, gpus=2)
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "2")
    monkeypatch.setenv("FLAGS_selected_gpus", chosen)
    assert runtime._choose_device("gpu") == "gpu"


def test_a_gpu_without_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str) -> None:
        raise OSError("(External) CUDA error(209), no kernel image is available for execution on the device.")

    monkeypatch.setattr(paddle, "set_device", fail)
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(paddle.device.cuda, "get_device_name", lambda device: "NVIDIA Future")
    with pytest.raises(
        UserError, match=r"has no kernels for GPU 0, NVIDIA Future, of compute capability 9\.0"
    ):
        try_gpu(0)


def test_another_failure_of_a_gpu_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(paddle, "set_device", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        try_gpu(0)


def test_a_fraction_of_a_gpu_of_unknown_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, compiled=True, gpus=1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(runtime, "find_card", lambda number, visible, order: None)
    with pytest.raises(UserError) as caught:
        runtime.start(Global(gpu_memory_fraction=0.5))
    assert str(caught.value) == (
        "Global.gpu_memory_fraction: the NVIDIA driver (NVML) does not say what memory the GPU has; unset it"
    )


def test_a_runtime_tells_itself() -> None:
    assert Runtime().is_main
    assert not Runtime(rank=1, world=2).is_main
    assert Runtime(rank=1, world=2, cores=3, threads=2).describe() == (
        f"Paddle {paddle.__version__} on CPU, 2 processes; "
        "3 cores a process: Paddle 2 threads, DALI 3 unless set"
    )
    assert "on GPU 1, 1 process; " in Runtime(device="gpu", device_id=1).describe()


def test_paddles_import_leaves_sigterm_to_whom_it_was() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit("as it was"))
from ppcls import runtime
from ppcls.config.sections.run import Global
runtime.start(Global(device="cpu"))
os.kill(os.getpid(), signal.SIGTERM)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (1, "as it was\n")


def test_asking_for_a_gpu_in_vain_is_one_message(tmp_path: Path) -> None:
    arguments = ["-c", "configs/quickstart.yaml", "-o", "Global.device=gpu", f"Global.output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "tools/train.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"^error: Global\.device is gpu, but .*; (install|set) ", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_a_deterministic_run_settles_it_before_paddles_import() -> None:
    """A finder that sees Paddle being imported shows what it will read."""
    code = """
import importlib.abc, os, sys
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "paddle":
            sys.meta_path.remove(self)
            for key in ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic",
                        "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR"):
                print(key, os.environ.get(key))
sys.meta_path.insert(0, Watch())
from ppcls import runtime
from ppcls.config.sections.run import Global
runtime.start(Global(device="cpu", deterministic=True))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == [
        "FLAGS_cudnn_deterministic 1",
        "FLAGS_embedding_deterministic 1",
        "CUBLAS_WORKSPACE_CONFIG :4096:8",
        "MKL_CBWR AUTO",
    ]


def test_a_deterministic_run_does_not_search_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_cudnn_exhaustive_search", "1")
    with pytest.raises(UserError, match="FLAGS_cudnn_exhaustive_search chooses convolutions by their time"):
        runtime.start(Global(device="cpu", deterministic=True))


@pytest.mark.parametrize(("asked", "ends"), [(None, True), ("0", True), ("1", False)])
def test_cudnns_search_ends_unless_the_environment_asks_for_it(
    asked: str | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "FLAGS_cudnn_exhaustive_search"
    flags = {name: asked != "0"}
    monkeypatch.setattr(paddle, "get_flags", lambda name: {name: flags[name]})
    monkeypatch.setattr(paddle, "set_flags", flags.update)
    monkeypatch.setattr(runtime, "SPEED_FLAGS", dict(runtime.SPEED_FLAGS))
    monkeypatch.delenv(name, raising=False)
    if asked is not None:
        monkeypatch.setenv(name, asked)
    assert runtime.stop_search() is ends
    assert flags[name] is not ends
    runtime._set_speed_flags(deterministic=False)
    assert flags[name] is not ends


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None, "of no machine: RFC 5737"
    assert interface_of("") is None


@pytest.mark.parametrize(("given", "expected"), [(None, "lo"), ("eth7", "eth7")])
def test_gloo_gets_the_interface_of_the_launchers_address(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6170")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", given or "")
    if given is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    runtime._name_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == expected
