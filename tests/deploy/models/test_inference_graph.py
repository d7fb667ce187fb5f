"""CUDA graphs of Paddle Inference: which shapes are captured, and what a failure does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_classifier import config_tree, write_config, write_weights

from ppcls.cli.export import export
from ppcls.deploy.models.description import read_description
from ppcls.deploy.models.inference_graph import PredictorGraphs
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel
from ppcls.deploy.models.pinned_memory import PinnedBuffer
from ppcls.deploy.models.source import find_program
from ppcls.engine.cuda_graph.graph import Workspace
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

RANDOM = np.random.default_rng(0)


def double(images: Any) -> Any:
    return images.sum(axis=1, keepdims=True) * 2


def double_slowly(images: Any) -> Any:
    time.sleep(0.02)
    return double(images)


class Captured:
    """A graph of `double` with an additional error."""

    def __init__(self, images: Any, error: float = 0.0) -> None:
        self.workspace, self._shape, self._error = Workspace(256), images.shape, error

    def run(self, images: Any) -> Any:
        assert images.shape == self._shape
        return double(images) + self._error

    def run_plain(self, images: Any) -> Any:
        return double(images)


def test_graphs_capture_repeated_shapes_up_to_the_limit() -> None:
    shared: list[Workspace | None] = []

    def capture(_predictor: Any, images: Any, workspace: Workspace | None) -> Captured:
        shared.append(workspace)
        return Captured(images)

    graphs = PredictorGraphs("net", None, double_slowly, capture)
    for size in range(1, 7):
        images = RANDOM.standard_normal((size, 3)).astype(np.float32)
        assert [graphs.run(images) is None for _ in range(2)] == [True, True]
        outputs = graphs.run(images)
        assert (outputs is None) == (size > 4)
        if outputs is not None:
            np.testing.assert_array_equal(outputs, double(images))
    assert graphs.shapes == [(size, 3) for size in range(1, 5)]
    assert shared[0] is None
    assert len(set(map(id, shared[1:]))) == 3, "each graph receives the workspace of the previous one"


def test_graphs_slower_than_plain_runs_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    class Slow(Captured):
        def run(self, images: Any) -> Any:
            return double_slowly(images)

    graphs = PredictorGraphs("net", None, double, lambda _, images, __: Slow(images))
    assert [graphs.run(np.ones((2, 3), np.float32)) for _ in range(4)] == [None] * 4
    assert graphs.shapes == []
    assert capsys.readouterr().err == ""


def test_graphs_are_not_captured_for_large_batches() -> None:
    graphs = PredictorGraphs("net", None, double_slowly, lambda _, images, __: Captured(images))
    assert [graphs.run(np.ones((65, 3), np.float32)) for _ in range(4)] == [None] * 4
    assert graphs.shapes == []


def test_graphs_with_other_outputs_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    captures: list[Any] = []

    def capture(_predictor: Any, images: Any, _workspace: Workspace | None) -> Captured:
        captures.append(images.shape)
        return Captured(images, 0.5)

    graphs = PredictorGraphs("net", None, double, capture)
    images = np.ones((2, 3), np.float32)
    assert [graphs.run(images) for _ in range(5)] == [None] * 5
    assert captures == [(2, 3)], "only one attempt"
    assert graphs.shapes == []
    assert capsys.readouterr().err == (
        "warning: net: runs without a CUDA graph, which would be faster for small batches: the outputs of "
        "the graph for the input shape [2, 3] differ by 5.0e-01 from those of a plain run, expected at most "
        "1e-04; Infer.cuda_graph=False hides this message\n"
    )


@pytest.mark.parametrize("error", [UserError("it cannot be captured: sync"), RuntimeError("out of memory")])
def test_graphs_that_cannot_be_captured_print_the_reason(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def capture(*_: Any) -> Captured:
        raise error

    graphs = PredictorGraphs("net", None, double, capture)
    assert [graphs.run(np.ones((2, 3), np.float32)) for _ in range(4)] == [None] * 4
    assert f"small batches: {error}; Infer.cuda_graph=False" in capsys.readouterr().err


@pytest.mark.gpu
def test_pinned_buffer_holds_batches_of_any_size() -> None:
    buffer = PinnedBuffer()
    for shape in ((2, 3), (4, 300, 300, 3), (1, 5), (7, 300, 300, 3)):
        images = RANDOM.integers(0, 256, shape, np.uint8)
        np.testing.assert_array_equal(buffer.fill(images), images)
        floats = images.astype(np.float32)
        np.testing.assert_array_equal(buffer.fill(floats), floats)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("preprocess", [[], ["--preprocess", "normalize"]])
def test_graphs_on_a_gpu_equal_plain_runs(
    tmp_path: Path, precision: str, preprocess: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    import paddle

    tree = config_tree(write_weights(tmp_path / "model.safetensors"), None)
    tree["Global"]["device"] = "gpu"
    config = write_config(tmp_path / "config.yaml", tree)
    folder = tmp_path / "inference"
    options = ["--precision", precision, *preprocess, "-o", f"Global.save_inference_dir={folder}"]
    assert export(["-c", str(config), *options]) == 0
    description, runtime = read_description(folder), Runtime(device="gpu", device_id=0)
    assert description.Export is not None
    assert description.Export.comparison is not None
    assert description.Export.comparison.largest_difference < 0.02, "plain runs equal the trained model"
    models = [
        PaddleInferenceModel(find_program(folder), description, runtime, cuda_graph=used)
        for used in (False, True)
    ]
    for round_number in range(6):
        others = [paddle.randn([1 << 20 << round_number]) for _ in range(4)]  # could overwrite the graph
        for size in (1, 7, 16, 3, 5):
            images = description.random_images(size, RANDOM)
            plain, graphed = (model.run(images) for model in models)
            on_gpu = models[1].run(paddle.to_tensor(images))
            tolerance = 2e-3 if precision == "float32" else 2e-2  # TF32 and float16, with other kernels
            np.testing.assert_allclose(graphed, plain, atol=tolerance)
            np.testing.assert_allclose(on_gpu, plain, atol=tolerance)
        del others
    assert models[0].graphs is None
    assert models[1].graphs is not None
    assert 1 in [shape[0] for shape in models[1].graphs.shapes]
    assert "without a CUDA graph" not in capsys.readouterr().err
