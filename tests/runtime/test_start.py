"""The start of a run in this process."""

from __future__ import annotations

import os
from contextlib import nullcontext

import paddle
import pytest

from ppcls.errors import UserError
from ppcls.recipe.settings import Global
from ppcls.runtime import start as module
from ppcls.runtime.start import Runtime, start


def test_fraction_of_a_gpu_of_unknown_size_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 1)
    for name in ("CUDA_VISIBLE_DEVICES", "FLAGS_selected_gpus", "PADDLE_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(module, "find_card", lambda number, visible, order: None)
    text = r"Global.gpu_memory_fraction: the NVIDIA driver \(NVML\) does not report the memory of the GPU"
    with pytest.raises(UserError, match=text):
        start(Global(gpu_memory_fraction=0.5))


def test_deterministic_run_rejects_cudnn_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_cudnn_exhaustive_search", "1")
    with pytest.raises(UserError, match="chooses algorithms by their measured time"):
        start(Global(device="cpu", deterministic=True))


def test_describe_names_device_processes_and_threads() -> None:
    assert Runtime().is_main
    assert not Runtime(rank=1, world_size=2).is_main
    assert Runtime(rank=1, world_size=2, cores=3, threads=2).describe() == (
        f"Paddle {paddle.__version__} on CPU, 2 processes; 3 cores per process: Paddle uses 2 threads"
    )
    assert "on GPU 1, 1 process; " in Runtime(device="gpu", device_id=1).describe()


def test_settings_of_gpu_memory_are_noted_on_a_cpu() -> None:
    runtime = start(Global(device="cpu", gpu_memory_fraction=0.5))
    assert (runtime.device, runtime.device_id, runtime.card, runtime.nodes) == ("cpu", None, None, 1)
    assert runtime.describe().endswith("; Global.gpu_memory_fraction has no effect without a GPU")


@pytest.mark.parametrize(("variable", "expected"), [(None, "lo"), ("eth7", "eth7")])
def test_gloo_uses_the_interface_of_the_launchers_address(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: str
) -> None:
    monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6170")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", variable or "")
    if variable is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    module._set_gloo_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == expected


@pytest.mark.parametrize("fails", [False, True])
def test_another_device_is_selected_for_the_time_of_a_block(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    selected = ["gpu:1"]
    monkeypatch.setattr(paddle.device, "get_device", lambda: selected[-1])
    monkeypatch.setattr(paddle.device, "set_device", selected.append)
    with pytest.raises(RuntimeError) if fails else nullcontext(), Runtime().selected():
        assert selected[-1] == "cpu"
        with Runtime(device="gpu", device_id=2).selected(), Runtime(device="gpu", device_id=2).selected():
            assert selected[-1] == "gpu:2"
        assert selected[-1] == "cpu"
        if fails:
            raise RuntimeError
    assert selected == ["gpu:1", "cpu", "gpu:2", "cpu", "gpu:1"]
