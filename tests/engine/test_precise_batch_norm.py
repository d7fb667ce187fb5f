"""``Global.precise_batch_norm`` in runs: checkpoints, moving averages, resumed runs and several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched_run import TRAIN, run

from ppcls.cli import train as cli
from ppcls.data import build
from ppcls.data.sampling.order import Cursor
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays

SETTINGS: dict[str, Any] = {"Arch__batch_norm_momentum": 0.999, "Global__epochs": 2}


def weights(folder: Path, file: str = "model") -> dict[str, np.ndarray]:
    return dict(read_arrays(folder / "latest" / f"{file}.safetensors"))


def is_statistic(name: str) -> bool:
    return name.endswith(("._mean", "._variance"))


def test_statistics_of_checkpoints_are_estimated_and_training_does_not_change(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    for name, images in (("plain", 0), ("precise", 16)):
        (tmp_path / name).mkdir()
        train(make_config(name, Global__precise_batch_norm=images, **SETTINGS), cpu, tmp_path / name)
    plain = weights(tmp_path / "plain")
    precise = weights(tmp_path / "precise")
    for key, value in plain.items():
        if is_statistic(key):
            assert (precise[key] != value).any(), key
        else:
            np.testing.assert_array_equal(precise[key], value, err_msg=key)


@pytest.mark.slow
def test_resumed_run_has_the_same_statistics(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    settings = {
        **SETTINGS,
        "Global__precise_batch_norm": 16,
        "EMA__decay": 0.5,
        "Optimizer__lr": {"name": "ConstLR", "learning_rate": 0.01},
    }
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    train(make_config("whole", **settings), cpu, tmp_path / "whole")
    train(make_config("resumed", **{**settings, "Global__epochs": 1}), cpu, tmp_path / "resumed")
    train(make_config("resumed", **settings, Global__checkpoints="auto"), cpu, tmp_path / "resumed")
    for file in ("model", "ema"):
        whole = weights(tmp_path / "whole", file)
        for key, value in weights(tmp_path / "resumed", file).items():
            np.testing.assert_array_equal(value, whole[key], err_msg=f"{file}: {key}")


@pytest.mark.slow
def test_ranks_estimate_from_the_same_images(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    common = {**SETTINGS, "Global__precise_batch_norm": 16, "Optimizer__lr__learning_rate": 1e-12}
    one = make_yaml("one", **common, DataLoader__Train__sampler={"batch_size": 8})
    two = make_yaml("two", **common, DataLoader__Train__sampler={"batch_size": 4})
    assert cli.train(["-c", str(one)]) == 0
    run(TRAIN, "-c", str(two), ranks=2, logs=tmp_path / "log2")
    alone = weights(tmp_path / "one")
    together = weights(tmp_path / "two")
    for key in filter(is_statistic, alone):
        np.testing.assert_allclose(together[key], alone[key], rtol=1e-3, atol=1e-3, err_msg=key)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one_process(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    monkeypatch.setattr(build, "_STATISTICS_BATCH", 4)
    config = make_config(Global__use_dali=False)

    def batches(rank: int, world: int) -> list[list[int]]:
        order = build.build_statistics_loader(
            config.DataLoader.need_train(),
            22,
            Runtime(rank=rank, world_size=world, cores=1, threads=1),
            config.Global,
            config.Arch,
            4,
        ).order
        samples = [order.at(Cursor(3, step)) for step in range(len(order))]
        return [sample.indices.tolist() for sample in samples if sample.valid]

    alone = batches(0, 1)
    assert len(alone) == 5
    assert len({position for batch in alone for position in batch}) == 20
    together = [batch for rank in range(world) for batch in batches(rank, world)]
    assert sorted(together) == sorted(alone)


def test_model_without_batch_norm_is_an_error(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    config = make_config(
        Arch={"name": "DeiT_tiny_patch16_224", "img_size": 16, "class_num": 4}, Global__precise_batch_norm=16
    )
    with pytest.raises(UserError, match="has no BatchNorm layer that training updates; remove this key"):
        train(config, cpu, tmp_path / "run")
