"""Real steps, measured in this process, and a real run of the command."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from small_config import images, make_config, make_yaml
from small_net import build_net

from ppcls.bench.results.schema import read_results
from ppcls.bench.train.tasks import TrainTask
from ppcls.bench.train.worker import inspect, measure_workload
from ppcls.cli import benchmark
from ppcls.data.loaders.batch import Batch
from ppcls.engine.autotune import workload
from ppcls.engine.autotune.processes import MeasuringProcess, Sample
from ppcls.engine.autotune.workload import SyntheticLoader, Workload, training_workload
from ppcls.engine.core.build import build_state
from ppcls.engine.core.hooks import NO_HOOKS, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.errors import SignalInterrupt
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime

__all__ = ["images", "make_config", "make_yaml"]
CPU = Runtime(cores=1, threads=1)
MakeConfig = Callable[..., Config]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)


def task(source: str, **changes: object) -> TrainTask:
    return TrainTask(**{"config": "", "source": source, "warm_up": 1, "counted": 3, **changes})


def measure(config: Config, runtime: Runtime, task: TrainTask) -> Sample:
    def build() -> Workload:
        loader = make_loader(config, runtime) if task.source == "synthetic" else None
        state = build_state(config, runtime, lambda *_: None, loader)
        return training_workload(state, config.Global, config.Arch, config.DataLoader.need_train())

    return measure_workload(task, runtime, nullcontext, build)


def make_loader(config: Config, runtime: Runtime) -> SyntheticLoader:
    accumulate = config.Global.update_freq
    return SyntheticLoader(config.DataLoader.need_train(), config.Arch, runtime, accumulate=accumulate)


@pytest.mark.parametrize("source", ["synthetic", "loader"])
def test_measure_step_of_ppcls_returns_speed_and_phases(make_config: MakeConfig, source: str) -> None:
    config = make_config(Arch__name="Small", Global__update_freq=2)
    found = measure(config, CPU, task(source))
    assert found["steps"] == 3
    assert found["images_per_second"] == pytest.approx(8 * 2 / found["step"])
    assert 0 <= found["data_wait"] < 1
    assert found["cpu_cores"] > 0
    assert found["host_memory"] > 100
    assert found["execution"].startswith("steps: operator by operator")
    assert list(found["phases"]) == ["data wait", "forward", "backward", "optimizer", "host"]
    assert all(0 <= seconds < 60 for seconds in found["phases"].values())


def test_measure_without_a_count_runs_steps_for_the_given_time(make_config: MakeConfig) -> None:
    found = measure(make_config(Arch__name="Small"), CPU, task("synthetic", counted=None, seconds=0.2))
    assert 2 <= found["steps"] < 2000
    assert "phases" not in measure(make_config(Arch__name="Small"), CPU, task("synthetic", phase_steps=0))


def test_measure_settles_before_counting(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Batch] = []

    def step(state: TrainState, batch: Batch, phases: StepHooks = NO_HOOKS) -> paddle.Tensor:
        taken.append(batch)
        return train_step(state, batch, phases)

    monkeypatch.setattr(workload, "connect", lambda state, *_: (state, step, "counted"))
    for settle in (0.0, 1.0):
        taken.clear()
        given = task("synthetic", settle=settle, phase_steps=0)
        assert measure(make_config(Arch__name="Small"), CPU, given)["steps"] == 3
        assert (len(taken) > 1 + 3) == (settle > 0)


def test_inspect_returns_device_model_and_cost(make_config: MakeConfig) -> None:
    config = make_config(Arch__name="ResNet18")
    found = inspect(config.Arch, config.DataLoader.need_train(), CPU)
    assert (found["device"], found["model"], found["size"]) == ("cpu", "ResNet18", "16x16")
    assert found["rgb_parameters"] == 11_182_788  # its first block has a projection, as in PaddleClas
    assert found["multiply_adds"] > 1e6
    json.dumps(found)


def test_synthetic_loader_yields_one_batch(make_config: MakeConfig) -> None:
    config = make_config(Arch__data_format="NHWC", Global__update_freq=2)
    loader = make_loader(config, Runtime(rank=1, world_size=2))
    batches = iter(loader)
    first, second = next(batches), next(batches)
    assert first.image.shape == [8, 16, 16, 3]
    assert first.image.dtype == paddle.float32
    assert first.label.tolist() == [each % 4 for each in range(8, 16)]
    assert (first.valid, first.weight, first.update) == (8, 0.5, False)
    assert (second.valid, second.weight, second.update) == (8, 0.5, True)
    assert second.image is first.image
    assert loader.state_dict()["step"] == 2
    assert len(list(batches)) == len(loader) - 2


def test_synthetic_loader_yields_the_same_images_in_both_layouts(make_config: MakeConfig) -> None:
    """Otherwise autotune would compare losses of different images, and reject the layout."""
    first, last = (
        next(iter(make_loader(make_config(Arch__data_format=layout), CPU))).image
        for layout in ("NCHW", "NHWC")
    )
    np.testing.assert_array_equal(first.transpose([0, 2, 3, 1]).numpy(), last.numpy())


def test_measure_multi_label_images(make_config: MakeConfig, images: Path) -> None:
    dataset = {
        "name": "MultiLabelDataset",
        "image_root": str(images),
        "cls_label_path": "no list is read",
        "transform_ops": ["DecodeImage", {"RandCropImage": {"size": 16}}, "NormalizeImage"],
    }
    loss = {"Train": [{"MultiLabelLoss": {}}], "Eval": [{"CELoss": {}}]}
    config = make_config(
        Arch__name="Small",
        DataLoader__Train__dataset=dataset,
        Loss=loss,
        Metric={"Eval": [{"TopkAcc": {"topk": 1}}]},
        DataLoader__Eval=None,
        Global__eval_during_train=False,
    )
    assert measure(config, CPU, task("synthetic"))["images_per_second"] > 0


def test_command_measures_in_processes(
    make_yaml: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hides GPUs, which must not confuse Paddle's launcher
    config = make_yaml(Arch__name="PPLCNet_x0_25")
    arguments = [
        "--rounds",
        "1",
        "--steps",
        "2",
        "--warm-up",
        "1",
        "--phase-steps",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    axes = ["--processes", "2", "--precision", "float32", "O2", "--source", "synthetic"]
    assert benchmark.main(["train", "-c", str(config), *arguments, *axes]) == 0
    output = capsys.readouterr().out
    results = read_results(tmp_path / "out")
    whole = {
        (row.labels["processes"], row.labels["precision"]): row
        for row in results.rows
        if "of" not in row.labels
    }
    assert whole[2, "O2"].note == "float16 needs a GPU"
    assert whole[2, "float32"].metrics["images/s"].median > 0
    split = next(row for row in results.rows if row.labels["processes"] == 2 and "of" in row.labels)
    assert {"all-reduce hidden", "all-reduce not hidden"} <= set(split.metrics)
    assert "All processes share" in output
    assert (tmp_path / "out" / "results.txt").is_file()
    assert not (tmp_path / "run").exists(), "nothing is written to the run's folder"


def test_command_interrupted_writes_results(
    make_yaml: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected = {"device": "cpu", "cores": 1, "threads": 1, "capability": (0, 0)}
    samples = iter([inspected, {"images_per_second": 1.0, "execution": "steps: operator by operator"}])

    def interrupted(_: MeasuringProcess) -> dict[str, Any]:
        if (sample := next(samples, None)) is None:
            raise SignalInterrupt(signal.SIGTERM)
        return sample

    monkeypatch.setattr(MeasuringProcess, "run", interrupted)
    arguments = ["--steps", "1", "--warm-up", "1", "--phase-steps", "0", "--out", str(tmp_path / "out")]
    one = ["--precision", "float32", "--source", "synthetic"]
    config = make_yaml(Arch__name="PPLCNet_x0_25")
    assert benchmark.main(["train", "-c", str(config), *arguments, *one]) == 128 + signal.SIGTERM
    (row,) = read_results(tmp_path / "out").rows
    assert row.note == "rounds measured: 1; interrupted"
    assert (tmp_path / "out" / "results.txt").is_file()
