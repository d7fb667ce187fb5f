"""Batches that the cores of a CPU process in parallel."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from small_classifier import export_model, write_image

from ppcls.cli.infer import infer
from ppcls.deploy.models.slices import SLICE, SlicedModel
from ppcls.deploy.predictor import Predictor

needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="needs the package openvino")
engines = pytest.mark.parametrize("engine", ["onnxruntime", pytest.param("openvino", marks=needs_openvino)])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("model"))


def load(exported: Path, engine: str, threads: int) -> Predictor:
    overrides = [f"Infer.engine={engine}", "Global.device=cpu", f"Global.cpu_threads={threads}"]
    return Predictor(exported, overrides=overrides)


@engines
@pytest.mark.parametrize("count", [1, 2, 3, 2 * SLICE + 1, 6 * SLICE])
def test_batch_of_any_size_gets_the_scores_of_one_thread(exported: Path, engine: str, count: int) -> None:
    sliced, plain = load(exported, engine, 3).model, load(exported, engine, 1).model
    assert isinstance(sliced, SlicedModel)
    assert not isinstance(plain, SlicedModel)
    images = np.random.default_rng(count).standard_normal((count, 3, 32, 32), np.float32)
    np.testing.assert_allclose(sliced.run(images), plain.run(images), atol=1e-5)


@engines
def test_infer_in_slices_keeps_the_order_and_the_scores_of_files(
    exported: Path, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [write_image(tmp_path / f"{number:02}.png", number) for number in range(5 * SLICE + 1)]
    files[SLICE].write_bytes(b"broken")
    assert infer(["--model", str(exported), "--json", str(tmp_path), "-o", f"Infer.engine={engine}"]) == 3
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["path"] for line in lines] == [str(file) for file in files]
    assert "error" in lines.pop(SLICE)
    del files[SLICE]
    expected = load(exported, engine, 1).predict([file.read_bytes() for file in files])
    for line, prediction in zip(lines, expected, strict=True):
        assert line["class_ids"] == list(prediction.class_ids)
        np.testing.assert_allclose(line["scores"], prediction.scores, atol=1e-5)
