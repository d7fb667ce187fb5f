"""Runs on two and four GPUs: equal weights on all ranks, and the weights and evaluations of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equal_runs import check_equal_records, check_equal_weights
from launched_run import LINEAR, SUPPORT, TRAIN, run

pytestmark = pytest.mark.gpu
WORLDS = [pytest.param(count, marks=pytest.mark.several_gpus(count)) for count in (2, 4)]
COMMON: dict[str, Any] = {
    "Arch__name": "Linear",
    "Global__device": "gpu",
    "Global__epochs": 3,
    "Global__update_freq": 2,
    "EMA__decay": 0.5,
    # The GPU decodes a share of each batch with its hardware and the rest with CUDA, which round differently.
    # So pixels would depend on the batch size per process.
    "DataLoader__Train__loader__dali": {"num_threads": 1, "decode_on": "cpu"},
    "DataLoader__Eval__loader__dali": {"num_threads": 1, "decode_on": "cpu"},
}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("cuda_graph", [False, True], ids=["DataParallel", "CUDA graph"])
def test_several_gpus_train_and_evaluate_as_one(
    make_yaml: Callable[..., Path], tmp_path: Path, ranks: int, cuda_graph: bool
) -> None:
    """With updates of two batches, a partial last batch, a moving average and evaluations."""
    common = {**COMMON, "Global__cuda_graph": cuda_graph}
    for name, world in (("one", 1), ("several", ranks)):
        sampler = {"batch_size": 8 // world, "shuffle": True}
        config = make_yaml(name, **common, DataLoader__Train__sampler=sampler)
        run(LINEAR, "-c", str(config), ranks=world, logs=tmp_path / f"log-{name}")
    check_equal_weights(tmp_path / "one", tmp_path / "several", 1e-5)
    check_equal_records(tmp_path / "one", tmp_path / "several", 1e-4)


@pytest.mark.parametrize("ranks", WORLDS)
def test_all_ranks_have_the_same_weights(make_yaml: Callable[..., Path], tmp_path: Path, ranks: int) -> None:
    config = make_yaml(
        "run",
        Arch__name="Dropping",
        Global__device="gpu",
        Global__cuda_graph=False,
        Global__eval_during_train=False,
        Global__find_unused_parameters=True,
        Global__update_freq=2,
        DataLoader__Train__sampler__batch_size=8 // ranks,
    )
    run(SUPPORT / "parallel_run.py", str(config), ranks=ranks, logs=tmp_path / "log")
    seen = [json.loads((tmp_path / "run" / f"rank_{rank}.json").read_text()) for rank in range(ranks)]
    assert all(one["weights"] == seen[0]["weights"] for one in seen)
    assert len({json.dumps(one["kept"]) for one in seen}) == ranks, "each rank drops others"


@pytest.mark.several_gpus(2)
def test_groups_of_gradients_train_the_weights_of_one_group(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    """In CUDA graphs, whose parts the exchanges of the groups overlap."""
    config = make_yaml("run", Global__device="gpu")
    run(SUPPORT / "exchange_run.py", str(config), str(tmp_path), ranks=2, logs=tmp_path / "log")
    one, other = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    assert one == other


@pytest.mark.parametrize("ranks", WORLDS)
def test_synchronized_batch_norm_trains(make_yaml: Callable[..., Path], tmp_path: Path, ranks: int) -> None:
    changes = {"Global__device": "gpu", "Global__sync_bn": True, "Global__epochs": 1}
    config = make_yaml("run", **changes, DataLoader__Train__sampler__batch_size=8 // ranks)
    run(TRAIN, "-c", str(config), ranks=ranks, logs=tmp_path / "log")
    assert f"BatchNorm over the batches of all {ranks} processes" in (tmp_path / "run/train.log").read_text()


@pytest.mark.several_gpus(2)
def test_processes_have_cores_of_their_own(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    config = make_yaml("run", Global__device="gpu", Global__use_dali=True)
    run(SUPPORT / "cores_run.py", str(config), str(tmp_path), ranks=2, logs=tmp_path / "log")
    one, other = (set(json.loads((tmp_path / f"cores_{rank}.json").read_text())) for rank in (0, 1))
    assert one
    assert other
    assert not one & other
