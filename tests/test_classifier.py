"""`Classifier`: training, prediction of all kinds of images, evaluation, export, serving, and its errors."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from running import free_port
from runs import GUARD

import ppcls
from ppcls import Classifier
from ppcls.classifier import Plot, TrainingRun
from ppcls.errors import UserError

SIDE = 32


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "pictures"
    rng = np.random.default_rng(0)
    for name, level in (("cats", 60), ("dogs", 190)):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.normal(level, 20, (40, 48, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, TrainingRun]:
    model = Classifier("MobileNetV3_small_x0_35", device="cpu")
    output = tmp_path_factory.mktemp("runs") / "pets"
    run = model.train(pictures, epochs=2, batch_size=4, image_size=SIDE, output=output, workers=0)
    return model, run


def test_training_run_prints_best_and_report(trained: tuple[Classifier, TrainingRun]) -> None:
    _, run = trained
    assert repr(run) == f"TrainingRun(best {run.best:.4f}; report: {run.output_dir}/report.html)"
    assert run._repr_html_().count("<tr>") == 3
    assert [record["epoch"] for record in run.history if record["kind"] == "eval"] == [1, 2]


def test_plot_is_a_png_that_a_notebook_shows(trained: tuple[Classifier, TrainingRun], tmp_path: Path) -> None:
    plot = trained[1].plot()
    assert isinstance(plot, Plot)
    assert plot._repr_png_().startswith(b"\x89PNG")
    plot.save(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes() == plot.png


def test_predict_accepts_every_kind_of_image(trained: tuple[Classifier, TrainingRun], pictures: Path) -> None:
    model, file = trained[0], pictures / "dogs" / "3.png"
    image = Image.open(file)
    same: list[Any] = [
        file,
        str(file),
        file.read_bytes(),
        image,
        np.asarray(image),
        np.asarray(image.convert("RGBA")),
    ]
    results = model.predict(same)
    assert [result.scores for result in results] == [model.predict(file).scores] * len(same)
    assert results[0].names is not None
    assert set(results[0].names) == {"cats", "dogs"}
    grey = np.asarray(image.convert("L"))
    assert model.predict(grey).scores == model.predict(np.stack([grey] * 3, axis=2)).scores
    assert repr(results).splitlines()[0] == f"{file}: {results[0]}"
    assert "<table>" in results._repr_html_()
    assert "cats" in results[0]._repr_html_()


def test_predict_of_a_folder_and_topk(trained: tuple[Classifier, TrainingRun], pictures: Path) -> None:
    results = trained[0].predict(pictures, topk=1)
    assert [len(result.scores) for result in results] == [1] * 20


def test_evaluate_uses_the_validation_images_or_a_folder(
    trained: tuple[Classifier, TrainingRun], pictures: Path
) -> None:
    model, run = trained
    result = model.evaluate()
    assert result.metrics["top1"] == run.best
    assert repr(result).startswith(f"Evaluation(top1 {run.best:.4f}, loss ")
    assert "<th>top1</th>" in result._repr_html_()
    assert model.evaluate(pictures, batch_size=3).images == result.images


def test_export_predicts_the_same(
    trained: tuple[Classifier, TrainingRun], pictures: Path, tmp_path: Path
) -> None:
    model, run = trained
    folder = model.export("onnx")
    assert folder == run.output_dir / "onnx"
    image = pictures / "cats" / "1.png"
    exported = Classifier(folder).predict(image)
    assert exported.scores == pytest.approx(model.predict(image).scores, abs=1e-5)
    with pytest.raises(UserError, match="to evaluate"):
        Classifier(folder).evaluate()


def test_serve_runs_until_it_is_terminated(
    trained: tuple[Classifier, TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(command: list[str], **options: Any) -> None:
        started.append(command)
        return None

    monkeypatch.setattr(ppcls.classifier.subprocess, "Popen", start)
    trained[0].serve(port=1234, wait=False)
    assert started[0][3:7] == ["serve", "--model", trained[0].model, "--port"]


@pytest.mark.slow
def test_serve_without_waiting_answers_requests(trained: tuple[Classifier, TrainingRun]) -> None:
    port = free_port()
    server = trained[0].serve(port=port, wait=False)
    try:
        status = 0
        while not status:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=GUARD) as answer:
                    status = answer.status
            except OSError:
                assert server.poll() is None
                time.sleep(0.1)
        assert status == 200
    finally:
        server.terminate()
        assert server.wait() == 0


def test_trained_model_is_found_by_its_folder(
    trained: tuple[Classifier, TrainingRun], pictures: Path
) -> None:
    model, run = trained
    again = Classifier(run.output_dir, device="cpu")
    image = pictures / "cats" / "2.png"
    assert again.predict(image).scores == model.predict(image).scores
    assert repr(again) == f"Classifier({run.output_dir})"
    with pytest.raises(UserError, match="is a trained model; to train further"):
        again.train(pictures)


def test_architecture_without_weights_cannot_predict() -> None:
    model = Classifier("ResNet18")
    assert repr(model) == "Classifier(ResNet18, not trained)"
    for use in (lambda: model.predict(b""), model.evaluate, model.export, model.serve):
        with pytest.raises(UserError, match=r"ResNet18 is not trained yet: call train\(folder\)"):
            use()


def test_unknown_names_are_suggested(pictures: Path) -> None:
    with pytest.raises(UserError, match="ResNet5: no such architecture, file or folder; did you mean"):
        Classifier("ResNet5")
    with pytest.raises(UserError, match="unknown option 'epoch'; did you mean 'epochs'"):
        Classifier("ResNet18").train(pictures, epoch=3)


def test_missing_image_is_a_user_error(trained: tuple[Classifier, TrainingRun], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone.png: can't read this image: No such file"):
        trained[0].predict(tmp_path / "gone.png")


def test_dir_of_the_package_lists_the_public_names() -> None:
    assert set(ppcls.__all__) <= set(dir(ppcls))
    assert all(not name.startswith("_") or name in ("__doc__", "__version__") for name in dir(ppcls))


def test_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "ppcls", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"ppcls {ppcls.__version__}\n")


def test_notebook_shows_an_invalid_input_without_a_traceback() -> None:
    with pytest.raises(UserError) as caught:
        Classifier("ResNet19")
    (line,) = caught.value._render_traceback_()
    assert line.startswith("UserError: ResNet19: no such architecture")
