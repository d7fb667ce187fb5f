"""Exported programs of Paddle that do more than compute, in every way to load a model."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from programs import (
    change_pir,
    legacy_program,
    operators,
    pir_operator,
    save_operator,
    write_legacy_export,
)
from small_classifier import export_model, write_image

from benchmarks.infer.predictions import measure
from ppcls.classifier import Classifier
from ppcls.cli import index as index_cli
from ppcls.cli import infer as infer_cli
from ppcls.deploy.models.description import read_description
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel
from ppcls.deploy.models.programs.check import read_program
from ppcls.deploy.models.programs.parts import MAX_PROGRAM_BYTES
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime
from ppcls.serve.limits import RequestError
from ppcls.serve.models import LoadableModels, ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions, load

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("model"), "paddle")


def hostile_json(folder: Path, exported: Path, target: Path) -> Path:
    """Returns a model for Paddle 3 with an operator that writes a file."""
    if not (exported / "inference.json").exists():
        pytest.skip("Paddle 2.6 does not write programs of Paddle 3")
    shutil.copytree(exported, folder)
    saved = pir_operator("1.save_combine", file_path=str(target))
    change_pir(folder / "inference.json", lambda tree: operators(tree).append(saved))
    return folder


def hostile_pdmodel(folder: Path, exported: Path, target: Path) -> Path:
    """Returns a model for Paddle 2.6 with an operator that writes a file."""
    program = legacy_program()
    save_operator(program, target)
    return write_legacy_export(folder, exported, program)


def predict(model: Path, image: Path) -> None:
    Predictor(model, device="cpu").predict([image.read_bytes()])


def classify(model: Path, image: Path) -> None:
    Classifier(model, device="cpu").predict(image)


def serve(model: Path, _: Path) -> None:
    with ThreadPoolExecutor(1) as worker:
        worker.submit(load, find_source(model), 2).result()


def infer(model: Path, image: Path) -> None:
    assert infer_cli.infer(["--model", str(model), str(image)]) == 0


def build_index(model: Path, image: Path) -> None:
    index = image.parent / "images.index"
    assert index_cli.main(["build", str(index), str(image), "--model", str(model)]) == 0


def put(model: Path, _: Path) -> None:
    """Loads the model while a server runs."""
    with TimedPool(1, "model") as worker:
        served = ServedModels({}, worker, BatchingOptions(1, 0.0, 1), LoadableModels(model.parent))
        with pytest.raises(RequestError) as caught:
            asyncio.run(served.load(model.name))
    assert caught.value.status == 422
    raise UserError(str(caught.value))


def benchmark(model: Path, _: Path) -> None:
    task = {"model": str(model), "overrides": ["Global.device=cpu"], "trust": False, "warm_up": 0}
    measure({**task, "batch_size": 1, "requests": 1, "seconds": 1.0})


WAYS = (predict, classify, serve, infer, build_index, put, benchmark)


@pytest.mark.parametrize("make", [hostile_json, hostile_pdmodel])
@pytest.mark.parametrize("way", WAYS)
def test_program_that_writes_a_file_is_not_loaded(
    way: Callable[[Path, Path], None],
    make: Callable[[Path, Path, Path], Path],
    exported: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "written"
    model = make(tmp_path / "model", exported, target)
    image = write_image(tmp_path / "image.png", 0)
    with pytest.raises((UserError, AssertionError)) as caught:
        way(model, image)
    message = f"{caught.value}{capfd.readouterr().err}"
    assert re.search(r"not an exported network: the operator '(1\.save_combine|save)' is not one of", message)
    assert not target.exists()


def test_program_writes_the_file_without_the_check(exported: Path, tmp_path: Path) -> None:
    """Shows that the test above describes a real attack."""
    target = tmp_path / "written"
    model = hostile_pdmodel(tmp_path / "model", exported, target)
    program = model / "inference.pdmodel"
    description = read_description(model)
    loaded = PaddleInferenceModel(program, description, Runtime(), trust=True)
    loaded.run(np.zeros((1, 3, 32, 32), np.float32))
    assert target.exists()


def find_program(folder: Path) -> Path:
    """Returns the program, whose format is that of the installed Paddle."""
    (program,) = (file for file in folder.iterdir() if file.suffix in (".json", ".pdmodel"))
    return program


@pytest.mark.parametrize("part", ["program", "weights"])
def test_files_that_are_damaged_or_exchanged_are_an_error(exported: Path, tmp_path: Path, part: str) -> None:
    copy = shutil.copytree(exported, tmp_path / "model")
    program = find_program(copy)
    weights = copy / "inference.pdiparams"
    file = program if part == "program" else weights
    name = file.name
    content = file.read_bytes()
    for damaged in (b"", content[: len(content) // 2], content + b"\0", b"{}", bytes(100)):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=f"{name}: not an exported network: "):
            read_program(program, weights)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=f"{name}: cannot be read: "):
        read_program(program, weights)


def test_program_of_excessive_size_is_rejected(exported: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(exported, tmp_path / "model")
    program = find_program(copy)
    with program.open("r+b") as file:
        file.truncate(MAX_PROGRAM_BYTES + 1)
    with pytest.raises(UserError, match="expected at most 33,554,432 bytes, found 33,554,433"):
        read_program(program, copy / "inference.pdiparams")
