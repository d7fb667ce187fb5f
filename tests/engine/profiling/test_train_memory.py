"""A training run with a part of the GPU's memory: what it says of it, and when it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from launched_run import train_on_gpu

from ppcls.data.build import gpu_memory_need
from ppcls.engine.setup import _check_memory
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.runtime.hardware import Card
from ppcls.runtime.memory import MemoryRequest, MemoryUsage, divide_memory, estimate_pipeline_memory
from ppcls.runtime.start import Runtime


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A process on a card of 8 GiB; what it says of its memory is played, for want of one."""
    played = iter([MemoryUsage(7800, 100), MemoryUsage(4000, 3700)])
    monkeypatch.setattr(Runtime, "memory_usage", lambda self: next(played))
    budget = divide_memory(MemoryRequest(0.5), 8192, 8100)
    return Runtime(device="gpu", device_id=0, cores=3, card=Card("GPU-x", 8192), budget=budget)


def test_dali_memory_estimate_follows_the_config(make_config: Callable[..., Config], gpu: Runtime) -> None:
    config = make_config()
    split = config.DataLoader.Train
    assert split is not None
    assert gpu_memory_need(split, gpu, training=True) == estimate_pipeline_memory(8, 2, (3, 16, 16), 1)
    assert gpu_memory_need(split, Runtime(cores=3), training=True) == 0


def test_dali_memory_estimate_includes_configured_buffers(
    make_config: Callable[..., Config], gpu: Runtime
) -> None:
    dali = {"cache_size": 700, "device_memory_padding": 64 << 20, "num_threads": 8}
    normalize = {"NormalizeImage": {"output_fp16": True}}
    config = make_config(
        DataLoader__Train__loader__dali=dali,
        DataLoader__Train__dataset__transform_ops=[
            {"DecodeImage": None},
            {"RandCropImage": {"size": 512}},
            normalize,
        ],
    )
    split = config.DataLoader.Train
    assert split is not None
    pipeline = estimate_pipeline_memory(8, 2, (3, 512, 512), 8, itemsize=2, padding=64 << 20)
    assert gpu_memory_need(split, gpu, training=True) == pipeline + 700
    assert pipeline != estimate_pipeline_memory(8, 2, (3, 512, 512), 8, padding=64 << 20)


def test_dali_memory_estimate_of_several_sizes_uses_the_largest_batch(
    make_config: Callable[..., Config], gpu: Runtime
) -> None:
    sampler = {"name": "MultiScaleSampler", "scales": [32, 320], "first_bs": 200}
    config = make_config(
        DataLoader__Train__sampler=sampler,
        DataLoader__Train__dataset__transform_ops=[
            {"DecodeImage": None},
            {"RandCropImage": {"size": 16}},
            {"NormalizeImage": None},
        ],
    )
    split = config.DataLoader.Train
    assert split is not None
    of_each = [estimate_pipeline_memory(rows, 2, (3, side, side), 1) for rows, side in ((200, 32), (2, 320))]
    assert (
        gpu_memory_need(split, gpu, training=True)
        == max(of_each)
        < estimate_pipeline_memory(200, 2, (3, 320, 320), 1)
    )


def check_memory(config: Config, runtime: Runtime, notes: list[str]) -> Callable[[], str] | None:
    splits = config.used_splits if config.Global.use_dali else {}
    return _check_memory(splits, runtime, notes)


def test_log_states_the_shares_of_gpu_memory(make_config: Callable[..., Config], gpu: Runtime) -> None:
    notes: list[str] = []
    measure = check_memory(make_config(), gpu, notes)
    assert notes == [
        "GPU memory: 8192 MiB, 92 MiB in use before; Paddle's share at most 4096 MiB "
        "(Global.gpu_memory_fraction 0.5); 4004 MiB left for DALI and CUDA's libraries",
        "DALI needs about 1280 MiB of GPU memory (train 128, eval 128, CUDA's libraries 1024); "
        "3804 MiB are left",
    ]
    assert measure is not None
    assert measure() == (
        "GPU memory in use: Paddle 3700 MiB of its 4096 MiB; DALI and CUDA's libraries 200 MiB, "
        "estimated 1280 MiB; 4000 MiB free"
    )


def test_dali_memory_estimate_ignores_unused_split(make_config: Callable[..., Config], gpu: Runtime) -> None:
    notes: list[str] = []
    check_memory(make_config(Global__eval_during_train=False), gpu, notes)
    assert "(train 128, CUDA's libraries 1024)" in notes[1]


def test_train_memory_without_dali_reports_only_the_division(
    make_config: Callable[..., Config], gpu: Runtime
) -> None:
    notes: list[str] = []
    assert check_memory(make_config(Global__use_dali=False), gpu, notes) is None
    assert len(notes) == 1


def test_train_memory_without_budget_reports_nothing(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    notes: list[str] = []
    assert check_memory(make_config(), cpu, notes) is None
    assert notes == []


def test_batch_too_large_for_remaining_memory_is_rejected(
    make_config: Callable[..., Config], gpu: Runtime
) -> None:
    config = make_config(DataLoader__Train__sampler__batch_size=8000)
    with pytest.raises(
        UserError, match=r"but only 3804 MiB are left\. .*\. Lower Global\.gpu_memory_fraction, or "
    ):
        check_memory(config, gpu, [])


@pytest.mark.gpu
def test_log_states_estimated_and_measured_memory(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    done = train_on_gpu(make_yaml())
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run" / "train.log").read_text()
    share = re.search(r"share at most (\d+) MiB.* \(Global\.gpu_memory_fraction 0\.8, the default", log)
    assert share is not None
    assert re.search(
        r"DALI needs about \d+ MiB of GPU memory \(train \d+, eval \d+, .*; \d+ MiB are left", log
    )
    used = re.findall(
        r"GPU memory in use: Paddle (\d+) MiB of its (\d+) MiB; .* (\d+) MiB, estimated (\d+)", log
    )
    assert len(used) == 1
    paddle, of, took, estimated = map(int, used[0])
    assert of == int(share[1])
    assert paddle <= of
    assert took <= estimated, "the estimate must not promise too much"


@pytest.mark.gpu
def test_too_little_left_for_dali_is_an_error_before_the_first_step(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    done = train_on_gpu(make_yaml(), "Global.gpu_memory_fraction=0.999")
    assert done.returncode == 2
    assert re.search(
        r"^error: DALI needs about \d+ MiB .*, but only \d+ MiB are left\. .*\. "
        r"Lower Global\.gpu_memory_fraction",
        done.stderr,
        re.MULTILINE,
    )
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
