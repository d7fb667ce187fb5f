"""What several processes share, and what each has for itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest
from launched_run import run
from paddle import nn
from parallel_run import build_dropping
from paths import SUPPORT
from test_resume import output, run_and_kill, same_files

from ppcls.arch.build import build_model
from ppcls.engine.core.build import build_state
from ppcls.engine.core.parallel import seed_batch, synchronize_batch_norm
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime

PARALLEL_RUN = SUPPORT / "parallel_run.py"


def test_two_ranks_draw_different_dropout_and_keep_equal_weights(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    config = make_yaml(
        "run",
        Arch__name="Dropping",
        Global__eval_during_train=False,
        Global__find_unused_parameters=True,
        Global__fuse_grad_size_in_MB=3,
        Global__auto_scale_lr=True,
        Global__base_batch_size=4,
        Global__update_freq=2,
        Global__device="cpu",
        DataLoader__Train__sampler__batch_size=4,
    )
    run(PARALLEL_RUN, str(config), ranks=2, logs=tmp_path / "log")
    one, other = (json.loads((tmp_path / "run" / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    assert one["weights"] == other["weights"]
    batches = [tuple(each) for each in one["kept"] + other["kept"]]
    assert len(set(batches)) == len(batches) == 2 * 2 * 4, "each batch of each rank drops others"
    assert (one["buffer"], one["groups"]) == (3 << 20, 1)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "learning rates x 4: 16 images per update (8 per step on 2 processes x update_freq 2)" in log
    assert "scaling: not measured, because of Global.find_unused_parameters" in log
    assert one["first_rate"] == pytest.approx(4 * 0.01)


def test_resumed_run_draws_the_same_dropout(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Dropping", build_dropping)
    changes = {"Arch__name": "Dropping", "Global__save_steps": 1}
    straight = make_config("straight", **changes)
    train(straight, cpu, output(straight))
    run_and_kill(make_config("broken", **changes), cpu, 3, monkeypatch)
    again = make_config("broken", **changes, Global__checkpoints="auto")
    train(again, cpu, output(again))
    same_files(output(straight) / "latest", output(again) / "latest")


def test_seed_batch_is_a_function_of_seed_rank_and_position() -> None:
    def draw(*place: int) -> tuple[float, ...]:
        seed_batch(*place)
        return tuple(paddle.rand([4]).tolist())

    places = [
        (seed, rank, epoch, step) for seed in (0, 1) for rank in (0, 1) for epoch in (0, 1) for step in (0, 1)
    ]
    drawn = [draw(*place) for place in places]
    assert len(set(drawn)) == len(places)
    assert drawn == [draw(*place) for place in places]


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_synchronize_batch_norm_keeps_names_weights_and_layout(data_format: str) -> None:
    model = build_model("ResNet18", 4, data_format)  # type: ignore[arg-type]
    before = {name: (id(each), each.numpy()) for name, each in model.state_dict().items()}
    parameters = [id(each) for each in model.parameters()]
    model = synchronize_batch_norm(model, Runtime(world_size=2, device="gpu"))
    after = model.state_dict()
    assert list(after) == list(before)
    for name, (_, value) in before.items():
        np.testing.assert_array_equal(after[name].numpy(), value)
    assert [id(each) for each in model.parameters()] == parameters
    norms = [each for each in model.sublayers() if isinstance(each, nn.layer.norm._BatchNormBase)]
    assert len(norms) == 21
    assert {type(each) for each in norms} == {nn.SyncBatchNorm}
    assert {each._data_format for each in norms} == {data_format}
    model.eval()
    assert not any(each.training for each in norms)


def test_synchronize_batch_norm_skips_frozen_layers() -> None:
    model = build_model("ResNet18", 4, "NCHW")
    names = [name for name, _ in model.named_parameters()]
    kept = [model.stem[0].bn, model.blocks[0].conv1.bn]
    for each in kept:
        each._use_global_stats = True
    model = synchronize_batch_norm(model, Runtime(world_size=2, device="gpu"))
    assert [model.stem[0].bn, model.blocks[0].conv1.bn] == kept
    assert sum(isinstance(each, nn.SyncBatchNorm) for each in model.sublayers()) == 19
    assert [name for name, _ in model.named_parameters()] == names


def test_synchronize_batch_norm_with_one_process_changes_nothing(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    state = build_state(make_config(Global__sync_bn=True), cpu, lambda *_: None)
    assert not any(isinstance(each, nn.SyncBatchNorm) for each in state.model.sublayers())


def test_synchronize_batch_norm_on_cpus_is_an_error() -> None:
    with pytest.raises(UserError) as caught:
        synchronize_batch_norm(nn.Sequential(nn.BatchNorm2D(2)), Runtime(world_size=2))
    assert str(caught.value) == (
        f"Global.sync_bn: Paddle {paddle.__version__} synchronizes BatchNorm on GPUs only, but these 2 "
        "processes train on the CPU; set Global.sync_bn=False, or train on GPUs"
    )


@pytest.mark.gpu
@pytest.mark.several_gpus(2)
def test_synchronized_batch_norm_on_two_gpus_equals_one(tmp_path: Path) -> None:
    run(PARALLEL_RUN.with_name("sync_bn_run.py"), ranks=2, logs=tmp_path / "log")
