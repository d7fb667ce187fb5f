"""A compiled model trains the same weights; who is asked for a CUDA graph, and who gets one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from small_net import make_state

from ppcls.engine import execution
from ppcls.engine.core import compiled as compiling
from ppcls.engine.core.compiled import compiles
from ppcls.engine.core.precision import RoundedBF16
from ppcls.engine.core.settings import AMP
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step, train_step
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.execution import choose_step
from ppcls.engine.setup import build_run
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays

GPU = Runtime(device="gpu", device_id=0)
ROUNDED = RoundedBF16(AMP(level="O1", dtype="bfloat16"))
O2 = {"AMP": {"level": "O2"}, "Arch__data_format": "NHWC"}


def chosen(config: Config, state: TrainState) -> tuple[Step, str]:
    return choose_step(state, config.Global, config.Arch, config.DataLoader.need_train())


@pytest.fixture
def old_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the choice made as on a Paddle that was measured."""
    for module in (compiling, execution):
        monkeypatch.setattr(module, "measured", lambda: True)


@pytest.mark.slow
def test_compiled_model_trains_the_same_bits(make_config: Callable[..., Config], tmp_path: Path) -> None:
    found = []
    for name, compile_it in (("plain", False), ("compiled", True)):
        config = make_config(name, Global__to_static=compile_it, EMA__decay=0.5)
        (tmp_path / name).mkdir()
        train(config, Runtime(), tmp_path / name)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        found.append((read_arrays(tmp_path / name / "latest" / "model.safetensors"), lines))
    (plain, records), (other, others) = found
    assert plain.keys() == other.keys()
    for key, value in plain.items():
        np.testing.assert_array_equal(other[key], value, err_msg=key)
    assert [line.get("loss") for line in others] == [line.get("loss") for line in records]


@pytest.mark.parametrize(
    ("wanted", "device", "overrides", "expected"),
    [
        ("auto", GPU, O2, True),
        ("auto", Runtime(), O2, False),
        ("auto", GPU, O2 | {"AMP": {"level": "O1"}}, True),
        ("auto", GPU, O2 | {"AMP": {"level": "O1", "dtype": "bfloat16"}}, False),
        ("auto", GPU, {"AMP": {"level": "O2"}}, False),
        ("auto", GPU, {}, False),
        (True, Runtime(), {}, True),
        (False, GPU, O2, False),
    ],
)
@pytest.mark.usefixtures("old_paddle")
def test_choose_step_compiles_where_it_is_faster(
    make_config: Callable[..., Config],
    wanted: Any,
    device: Runtime,
    overrides: dict[str, Any],
    expected: bool,
) -> None:
    config = make_config("x", Global__device="auto", Global__to_static=wanted, **overrides)
    assert compiles(config.Global, config.Arch, config.AMP, device) is expected


def test_choose_step_fused_kernels_replace_compilation(make_config: Callable[..., Config]) -> None:
    config = make_config("x", Global__to_static=True, Global__fused_kernels=True)
    assert not compiles(config.Global, config.Arch, config.AMP, Runtime())


def test_rounded_bfloat16_is_not_compiled(make_config: Callable[..., Config]) -> None:
    config = make_config("x", Global__to_static=True, AMP={"dtype": "bfloat16"})
    with pytest.raises(UserError, match="bfloat16 on a CPU rounds each layer's operands"):
        compiling.compile_model(nn.Linear(1, 1), config.Arch, config.AMP, Runtime())


def test_a_model_is_compiled_without_a_writable_home(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    home = str(tmp_path / "file" / "home")
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    config = make_config("x", Global__to_static=True)
    layer = nn.Linear(3, 2)
    network = compiling.compile_model(layer, config.Arch, config.AMP, Runtime())
    for images in (1, 2):
        batch = paddle.ones([images, 3])
        np.testing.assert_allclose(network(batch).numpy(), layer(batch).numpy(), rtol=1e-5)
        assert os.environ["HOME"] == home
    assert [*(tmp_path / "temporary").glob(".home-*/.cache/paddle/to_static_tmp/*/*.py")]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.usefixtures("old_paddle")
def test_choose_step_captures_graph_on_gpu(make_config: Callable[..., Config], world: int) -> None:
    state = replace(make_state(), runtime=replace(GPU, world_size=world))
    for wanted in ("auto", True):
        step, how = chosen(make_config(f"{wanted}", Global__cuda_graph=wanted), state)
        assert isinstance(step, GraphedStep)
        assert how == "steps: a CUDA graph, captured after the first steps (operator by operator)"
    step, how = chosen(make_config("z", Global__cuda_graph=False), state)
    assert step is train_step
    assert how == "steps: operator by operator; no CUDA graph (Global.cuda_graph)"


def test_choose_step_captures_unmeasured_case_on_request(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    for known, runtime, why in (
        (False, GPU, f"not measured on Paddle {paddle.__version__}"),
        (True, replace(GPU, world_size=4, nodes=2), "not measured on several machines"),
    ):
        monkeypatch.setattr(execution, "measured", lambda known=known: known)
        state = replace(make_state(), runtime=runtime)
        step, how = chosen(make_config(f"{known}"), state)
        assert step is train_step
        assert (
            how == f"steps: operator by operator; no CUDA graph: {why}; set Global.cuda_graph=True to try it"
        )
        step, _ = chosen(make_config(f"{known} asked", Global__cuda_graph=True), state)
        assert isinstance(step, GraphedStep)


def test_cuda_graph_with_another_allocator_is_an_error(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paddle, "get_flags", lambda name: {name: "naive_best_fit"})
    with pytest.raises(
        UserError, match="CUDA graphs need FLAGS_allocator_strategy=auto_growth, got naive_best"
    ):
        chosen(make_config("x", Global__cuda_graph=True), replace(make_state(), runtime=GPU))


@pytest.mark.parametrize(
    ("overrides", "state", "reason"),
    [
        ({"Arch__name": "resnet18"}, {}, "resnet18 accepts only images in NCHW"),
        ({"Arch__name": "resnet18"}, {"runtime": GPU}, "resnet18 accepts only images in NCHW"),
        ({"Arch__name": "resnet18", "Global__fused_kernels": False}, {}, None),
        (
            {"Arch__name": "resnet18"},
            {"precision": RoundedBF16(AMP(level="O1", dtype="bfloat16"))},
            None,
        ),  # no oneDNN in any model
        ({}, {}, None),
    ],
)
def test_choose_step_explains_that_an_architecture_excludes_fused_kernels(
    make_config: Callable[..., Config], overrides: dict[str, Any], state: dict[str, Any], reason: str | None
) -> None:
    run = replace(make_state(), **{"runtime": Runtime(), **state})
    _, how = chosen(make_config("x", Global__cuda_graph=False, **overrides), run)
    expected = "" if reason is None else f", without fused kernels, because {reason}"
    assert how == f"steps: operator by operator{expected}; no CUDA graph (Global.cuda_graph)"


@pytest.mark.parametrize(("name", "count"), [("shufflenet_v2_x0_25", 1), ("PPLCNet_x0_25", 0)])
def test_run_on_a_cpu_logs_that_an_architecture_excludes_fused_kernels(
    make_config: Callable[..., Config], tmp_path: Path, name: str, count: int
) -> None:
    run = build_run(make_config("x", Arch__name=name), Runtime(), tmp_path / "run")
    lines = [note for note in run.notes if note.startswith("steps: ")]
    assert len(lines) == count
    assert all(f"without fused kernels, because {name} accepts only images in NCHW" in line for line in lines)


def test_choose_step_names_the_layout_that_fused_kernels_need(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("x")
    monkeypatch.setattr(execution, "ZOO", {})  # as for a user's own architecture
    _, how = chosen(config, replace(make_state(), runtime=Runtime()))
    assert "without fused kernels, because they need Arch.data_format=NHWC; no CUDA graph" in how
    _, how = chosen(make_config("y", Arch__data_format="NHWC"), replace(make_state(), runtime=Runtime()))
    assert "fused" not in how


@pytest.mark.usefixtures("old_paddle")
def test_choose_step_overlaps_the_exchange_of_several_machines(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def record(*_: Any, group_size: int | None, **__: Any) -> Step:
        sizes.append(group_size)
        return train_step

    monkeypatch.setattr(execution, "GraphedStep", record)
    for nodes in (1, 2):
        state = replace(make_state(), runtime=replace(GPU, world_size=4, nodes=nodes))
        chosen(make_config(f"{nodes}", Global__cuda_graph=True, Global__fuse_grad_size_in_MB=3), state)
    assert sizes == [None, 3 << 20]


@pytest.mark.parametrize(
    ("overrides", "state", "hindrance"),
    [
        ({}, {"runtime": Runtime()}, "the run is on a CPU"),
        (
            {"DataLoader__Train__input_size": {"name": "MultiScale", "sizes": [12, 16]}},
            {"runtime": GPU},
            "the image size changes (DataLoader.Train.input_size)",
        ),
        (
            {},
            {"runtime": GPU, "model": nn.Dropout(0.5)},
            "PPLCNet_x0_25 draws random numbers during training",
        ),
        (
            {},
            {"runtime": GPU, "model": nn.Conv2D(4, 4, 3, groups=4, data_format="NHWC")},
            "Paddle's depthwise convolutions can't be replayed in NHWC (0); use Arch.data_format=NCHW or "
            "Global.fused_kernels=True",
        ),
        (
            {"Global__sync_bn": True},
            {"runtime": replace(GPU, world_size=2)},
            "SyncBatchNorm exchanges statistics within the step (Global.sync_bn)",
        ),
        (
            {
                "Arch": {
                    "name": "RecModel",
                    "Backbone": {"name": "ResNet18", "class_num": 4},
                    "Head": {"name": "FC", "embedding_size": 512, "class_num": 4},
                }
            },
            {"runtime": GPU},
            "not supported for a model of several networks (RecModel)",
        ),
    ],
)
@pytest.mark.usefixtures("old_paddle")
def test_choose_step_explains_why_it_captures_no_graph(
    make_config: Callable[..., Config], overrides: dict[str, Any], state: dict[str, Any], hindrance: str
) -> None:
    if "model" in state:
        state = state | {"model": nn.Sequential(state["model"])}
    run = replace(make_state(), **state)
    step, how = chosen(make_config("x", **overrides), run)
    assert step is train_step
    assert how == f"steps: operator by operator; no CUDA graph: {hindrance}"
    with pytest.raises(UserError) as caught:
        chosen(make_config("y", Global__cuda_graph=True, **overrides), run)
    assert str(caught.value) == f"Global.cuda_graph: {hindrance}; set this key to auto or False"
