"""Too little memory: Paddle's own error, made on purpose, becomes one that says what to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from hungry_net import HungryNet

from ppcls.cli import train as cli
from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.profiling.peak_memory import PeakMemory, explain_out_of_memory, peak_memory
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.hardware import Card
from ppcls.runtime.memory import MemoryRequest, divide_memory
from ppcls.runtime.start import Runtime


def explained(config: Config, runtime: Runtime) -> AbstractContextManager[None]:
    return explain_out_of_memory(runtime, config.used_splits, config.Global, config.AMP)


@pytest.fixture(autouse=True)
def hungry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, in_training in (("Hungry", True), ("HungryInEvaluation", False)):
        monkeypatch.setitem(
            ARCHITECTURES._entries,
            name,
            lambda class_num, *_, now=in_training, **__: HungryNet(class_num, now),
        )


SAID = (
    r"out of memory: could not allocate 134217728 MiB more; peak so far: this process \d+ MiB\. "
    r"To fix: lower DataLoader\.Train\.sampler\.batch_size \(8\) or "
    r"DataLoader\.Eval\.sampler\.batch_size \(8\) and raise Global\.update_freq by the same factor; "
    r"or set Global\.recompute to True, which needs more time but less memory"
)


def test_training_out_of_memory_names_settings(
    make_yaml: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.train(["-c", str(make_yaml(Arch__name="Hungry"))]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"^error: {SAID}$", said, re.MULTILINE)
    assert "Traceback" not in said


def test_evaluation_out_of_memory_keeps_the_epoch(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    config = make_config(Arch__name="HungryInEvaluation")
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(UserError, match=SAID):
        train(config, cpu, folder)
    assert (folder / LATEST).is_symlink()


def test_out_of_memory_of_numpy_is_recognized(make_config: Callable[..., Config], cpu: Runtime) -> None:
    said = r"^out of memory: could not allocate 256\. TiB more"
    with pytest.raises(UserError, match=said), explained(make_config(), cpu):
        np.empty(1 << 45)


@pytest.mark.parametrize(
    "other",
    [ValueError("out of memory"), OSError(28, "out of memory"), RuntimeError("a bad image"), UserError("x")],
)
def test_other_errors_are_raised_unchanged(
    make_config: Callable[..., Config], cpu: Runtime, other: Exception
) -> None:
    with pytest.raises(type(other)) as raised, explained(make_config(), cpu):
        raise other
    assert raised.value is other


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A process on a card of 8 GiB, played, for want of one."""
    monkeypatch.setattr(Card, "free", lambda self: 1000)
    monkeypatch.setattr(
        "ppcls.engine.profiling.peak_memory.peak_memory", lambda runtime: PeakMemory(700, 3900, 4000)
    )
    return Runtime(
        device="gpu",
        device_id=0,
        card=Card("GPU-x", 8192),
        budget=divide_memory(MemoryRequest(0.5), 8192, 8100),
    )


PADDLES = (
    "\n\nC++ Traceback …\nResourceExhaustedError: \n\nOut of memory error on GPU 0. "
    "Cannot allocate 1.531250GB memory on GPU 0, 3.9GB memory has been allocated"
)
FIGURES = (
    "peak so far: Paddle 4000 MiB of GPU memory (3900 MiB in tensors), this process 700 MiB of host "
    "memory; Paddle may use 4096 (Global.gpu_memory_fraction 0.5), 1000 of 8192 are free. "
)


@pytest.mark.parametrize(
    ("error", "said", "cure"),
    [
        (MemoryError(PADDLES), "out of GPU memory: could not allocate 1.531250GB more; ", "raise"),
        (OSError("(External) CUDNN error(4), CUDNN_STATUS_ALLOC_FAILED."), "out of GPU memory; ", "lower"),
        (RuntimeError("CUDA allocation failed\nCurrent pipeline object"), "out of GPU memory; ", "lower"),
    ],
    ids=["Paddle", "cuDNN", "DALI"],
)
def test_out_of_memory_on_a_gpu_names_figures_and_fixes(
    make_config: Callable[..., Config], gpu: Runtime, error: Exception, said: str, cure: str
) -> None:
    config = make_config(Global__eval_during_train=False, Global__cuda_graph=False)
    with pytest.raises(UserError) as raised, explained(config, gpu):
        raise error
    assert str(raised.value) == (
        f"{said}{FIGURES}To fix: lower DataLoader.Train.sampler.batch_size (8) and raise Global.update_freq "
        "by the same factor; or set Global.recompute to True, which needs more time but less memory; or "
        f"compute in half precision (AMP); or {cure} Global.gpu_memory_fraction"
    )


@pytest.mark.parametrize(
    ("setting", "by_default", "suggested"),
    [(True, False, True), ("auto", True, True), ("auto", False, False), (False, True, False)],
)
def test_out_of_memory_suggests_disabling_a_cuda_graph_that_is_used(
    monkeypatch: pytest.MonkeyPatch,
    make_config: Callable[..., Config],
    gpu: Runtime,
    setting: bool | str,
    by_default: bool,
    suggested: bool,
) -> None:
    monkeypatch.setattr("ppcls.engine.profiling.peak_memory.measured", lambda: by_default)
    with (
        pytest.raises(UserError) as raised,
        explained(make_config(Global__cuda_graph=setting), gpu),
    ):
        raise MemoryError(PADDLES)
    advice = (
        "; or set Global.cuda_graph to False, since a CUDA graph needs additional memory; or raise Global"
    )
    assert (advice in str(raised.value)) == suggested


def test_peak_memory_of_a_process_is_reported(cpu: Runtime) -> None:
    before = peak_memory(cpu)
    assert before.reserved is None
    kept: Any = np.ones(64 << 17)  # 64 MiB
    assert peak_memory(cpu).process >= before.process
    assert kept.nbytes == 64 << 20
    assert re.fullmatch(r"this process \d+ MiB", before.describe())


@pytest.mark.gpu
def test_out_of_memory_of_paddle_on_a_gpu_is_recognized(make_config: Callable[..., Config]) -> None:
    gpu = Runtime(device="gpu", device_id=0)
    said = r"^out of GPU memory: could not allocate .* more; peak so far: Paddle \d+"
    with pytest.raises(UserError, match=said), explained(make_config(), gpu):
        paddle.zeros([1 << 45])


@pytest.mark.gpu
def test_batch_too_large_for_the_gpu_names_settings(
    make_yaml: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_yaml(Global__device="gpu", Arch__name="Hungry")
    assert cli.train(["-c", str(file)]) == 2
    assert "error: out of GPU memory: " in capsys.readouterr().err
