"""Which device a run uses, and the errors if it can't use a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import paddle
import pytest
from paths import ROOT

from ppcls.errors import UserError
from ppcls.runtime.device import check_gpu_kernels, choose_device


def fake_gpus(monkeypatch: pytest.MonkeyPatch, *, compiled: bool, count: int) -> None:
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: compiled)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("wanted", "compiled", "count", "processes", "device_id", "device"),
    [
        ("cpu", False, 0, 1, 0, "cpu"),
        ("cpu", True, 2, 1, 0, "cpu"),
        ("auto", False, 0, 1, 0, "cpu"),
        ("auto", True, 0, 1, 0, "cpu"),
        ("auto", True, 1, 1, 0, "gpu"),
        ("gpu", True, 1, 1, 0, "gpu"),
        ("gpu", True, 2, 2, 0, "gpu"),
        ("gpu", True, 2, 2, 1, "gpu"),
    ],
)
def test_device_is_a_gpu_if_requested_and_present(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    compiled: bool,
    count: int,
    processes: int,
    device_id: int,
    device: str,
) -> None:
    fake_gpus(monkeypatch, compiled=compiled, count=count)
    assert choose_device(wanted, processes, device_id, None) == device


@pytest.mark.parametrize(
    ("count", "processes", "device_id", "visible", "text"),
    [
        (0, 1, 0, None, "Global.device is gpu, but Paddle finds no GPU (no NVIDIA driver or GPU)"),
        (0, 1, 0, "", "Global.device is gpu, but Paddle finds no GPU (CUDA_VISIBLE_DEVICES is '')"),
        (2, 4, 1, None, "4 processes on this machine need 4 GPUs, but Paddle sees 2; start at most 2"),
        (2, 4, 3, "0,1,2,3", "but Paddle sees 2 (CUDA_VISIBLE_DEVICES is '0,1,2,3'); start at most 2"),
        (2, 1, 2, None, "GPU 2 (counted from 0) is requested, but Paddle sees 2; start at most 2"),
    ],
)
def test_missing_gpu_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    processes: int,
    device_id: int,
    visible: str | None,
    text: str,
) -> None:
    fake_gpus(monkeypatch, compiled=True, count=count)
    with pytest.raises(UserError, match=re.escape(text)) as caught:
        choose_device("gpu", processes, device_id, visible)
    assert str(caught.value).endswith("set Global.device=cpu")


def test_cpu_build_is_an_error_if_a_gpu_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, compiled=False, count=0)
    text = f"Global.device is gpu, but the installed Paddle {paddle.__version__} is a CPU build; install"
    with pytest.raises(UserError, match=re.escape(text)):
        choose_device("gpu", 1, 0, None)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_device: str) -> None:
        raise error

    monkeypatch.setattr(paddle, "set_device", fail)


def test_gpu_without_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(
        monkeypatch, OSError("CUDA error(209), no kernel image is available for execution on the device")
    )
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(paddle.device.cuda, "get_device_name", lambda device: "NVIDIA Future")
    text = r"has no kernels for GPU 0, NVIDIA Future, of compute capability 9\.0"
    with pytest.raises(UserError, match=text):
        check_gpu_kernels(0)


def test_other_gpu_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        check_gpu_kernels(0)


def test_missing_gpu_is_one_line_on_the_command_line(make_yaml: Callable[..., Path]) -> None:
    arguments = ["-c", str(make_yaml(Global__device="gpu"))]
    done = subprocess.run(
        [sys.executable, "tools/train.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.search(r"^error: Global\.device is gpu, but .*; (install|set) ", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
