"""`Classifier`: training, prediction of all kinds of images, evaluation, export, serving, and its errors."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from omitted_pictures import DRAW_CURVES
from paths import ROOT
from PIL import Image
from running import free_port
from runs import GUARD

import ppcls
from ppcls import Classifier
from ppcls.classifier import Plot, Predictions, TrainingRun
from ppcls.deploy import pictures as pictures_module
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification
from ppcls.report.charts import CurvesPicture

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CurvesPicture, "close", DRAW_CURVES)
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
        np.asarray(image) / 255,
        np.asarray(image).astype(np.float32) / 255,
        np.asarray(image).astype(np.int64),
    ]
    # Alone, because a processor may add up the numbers of a larger batch in another order.
    assert [model.predict(each).scores for each in same] == [model.predict(file).scores] * len(same)
    results = model.predict(same)
    assert {result.scores for result in results} == {results[0].scores}
    assert results[0].names is not None
    assert set(results[0].names) == {"cats", "dogs"}
    grey = np.asarray(image.convert("L"))
    assert model.predict(grey).scores == model.predict(np.stack([grey] * 3, axis=2)).scores
    assert repr(results).splitlines()[0] == f"{file}: {results[0]}"
    assert "<table>" in results._repr_html_()
    assert "cats" in results[0]._repr_html_()


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ({"save": True}, r"use predict\(\.\.\.\)\.to_csv\('classes\.csv'\)$"),
        ({"device": 0}, r"use Classifier\(MODEL, device='gpu'\)$"),
        ({"augment": True}, "`ppcls infer --tta flip` averages"),
    ],
    ids=str,
)
def test_arguments_of_other_libraries_are_explained(argument: dict[str, Any], advice: str) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(argument))!r}; {advice}"):
        Classifier("ResNet18").predict("photo.jpg", **argument)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.predict("photo.jpg", save=True),
        lambda model: model.predict(),
        lambda model: model.predict("photo.jpg", 1, 2),
        lambda model: model.train("pictures", 20),
        lambda model: model.train("pictures", epoch=3),
        lambda model: Classifier("ResNet18", num_classes=3),
        lambda model: Predictions([], []).to_csv(),
        lambda model: Classifier.from_bundle(folder="bundle"),
        lambda model: model.fit("pictures"),
        lambda model: ppcls.Clasifier,
    ],
)
def test_wrong_calls_have_one_line_in_a_notebook(call: Callable[[Classifier], object]) -> None:
    with pytest.raises((TypeError, AttributeError, UserError)) as caught:
        call(Classifier("ResNet18"))
    (line,) = getattr(caught.value, "_render_traceback_")()  # noqa: B009 - the type of the error varies
    assert "\n" not in line
    assert line.startswith(("TypeError: ", "AttributeError: ", "UserError: "))


def test_missing_argument_lists_the_arguments() -> None:
    with pytest.raises(TypeError, match=r"images, topk, urls, on_error$"):
        Classifier("ResNet18").predict()  # type: ignore[call-arg]


def test_half_precision_is_not_a_device() -> None:
    with pytest.raises(AttributeError, match=r"`ppcls export --precision float16`"):
        _ = Classifier("ResNet18").half  # type: ignore[attr-defined]


def test_predict_of_a_folder_and_topk(trained: tuple[Classifier, TrainingRun], pictures: Path) -> None:
    results = trained[0].predict(pictures, topk=1)
    assert [len(result.scores) for result in results] == [1] * 20


class Table:
    """A table with the parts of a DataFrame that are used: names of columns, and columns by name."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = list(columns)
        self._columns = columns

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]


def test_predict_of_patterns_lists_of_folders_and_tables(
    trained: tuple[Classifier, TrainingRun], pictures: Path
) -> None:
    model, files = trained[0], sorted((pictures / "dogs").iterdir())
    expected = model.predict(files)
    for images in (
        f"{pictures}/dogs/*.png",
        pictures / "dogs",
        [pictures / "dogs"],
        Table(label=[1] * 10, path=[*map(str, files)]),
        Table(anything=[*map(str, files)]),
    ):
        results = model.predict(images)
        assert results.labels == expected.labels
        assert [result.scores for result in results] == [result.scores for result in expected]


def test_predict_of_a_data_frame_of_pandas(trained: tuple[Classifier, TrainingRun], pictures: Path) -> None:
    pandas = pytest.importorskip("pandas")
    files = [str(file) for file in sorted((pictures / "dogs").iterdir())]
    frame = pandas.DataFrame({"filename": files, "label": "dogs"})
    assert trained[0].predict(frame).labels == trained[0].predict(frame["filename"]).labels == files


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (
            Table(a=["x"], b=["y"]),
            UserError,
            "expected a table with one column of paths, such as 'path', got",
        ),
        ("gone/*.png", UserError, r"gone/\*.png: no file matches this pattern"),
        (
            np.full((4, 4, 3), 200.0),
            ValueError,
            "expected pixels of float64 from 0 to 1, got values from 200",
        ),
        (
            np.full((4, 4, 3), np.nan),
            ValueError,
            "expected pixels of float64 from 0 to 1, got values from nan",
        ),
        (
            np.full((4, 4, 3), -1),
            ValueError,
            "expected pixels of int64 from 0 to 255, got values from -1 to -1",
        ),
        (
            np.zeros((3, 40, 48)),
            ValueError,
            r"shape \[height, width, channels\], got \[3, 40, 48\]; move the",
        ),
        (np.zeros((40, 48, 2)), ValueError, r"expected pixels of shape \[height, width, 3\]"),
        (
            "https://example.org/a.jpg",
            UserError,
            "this is an address, not a file; to download it, use urls=True",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_images_in_other_forms_are_errors(
    trained: tuple[Classifier, TrainingRun], images: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trained[0].predict(images)


def test_errors_of_images_have_one_line_in_a_notebook_and_name_the_image(
    trained: tuple[Classifier, TrainingRun], pictures: Path, tmp_path: Path
) -> None:
    good, bad = next((pictures / "dogs").iterdir()), tmp_path / "bad.png"
    bad.write_bytes(good.read_bytes()[:40])
    heic = tmp_path / "phone.HEIC"
    heic.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    for images, name in (
        (bad, str(bad)),
        ([good, bad], str(bad)),
        ([good, heic], str(heic)),
        ([good, np.full((4, 4, 3), 2.0)], "image 1"),
        ([good, np.zeros((4, 4, 2))], "image 1"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(name)}: ") as caught:
            trained[0].predict(images)
        assert isinstance(caught.value, ValueError)  # as before UserError was raised
        assert "images[" not in str(caught.value)
        assert len(caught.value._render_traceback_()) == 1


def test_predict_skips_images_that_cannot_be_read(
    trained: tuple[Classifier, TrainingRun], pictures: Path, tmp_path: Path
) -> None:
    model, good = trained[0], sorted((pictures / "dogs").iterdir())
    bad, gone = tmp_path / "bad.png", tmp_path / "gone.png"
    bad.write_bytes(b"")
    images = [good[0], bad, good[1], gone, np.full((4, 4, 3), 2.0)]
    results = model.predict(images, on_error="skip")
    assert results.labels == [str(good[0]), str(good[1])]
    assert list(results) == list(model.predict(good[:2]))
    assert list(results.errors) == [str(bad), str(gone), "image 4"]
    assert not any(name in reason for name, reason in results.errors.items())
    assert f"{bad}: skipped: " in repr(results)
    assert "skipped" in results._repr_html_()
    assert not model.predict([bad], on_error="skip")
    with pytest.raises(UserError, match="on_error: expected 'raise' or 'skip', got 'ignore'"):
        model.predict(images, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=re.escape(str(bad))):  # there is no other image to predict
        model.predict(bad, on_error="skip")


def test_predict_of_a_folder_reports_other_pictures(
    trained: tuple[Classifier, TrainingRun],
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(next((pictures / "dogs").iterdir()), tmp_path)
    (tmp_path / "phone.HEIC").write_bytes(b"x")
    assert len(trained[0].predict(tmp_path)) == 1
    assert "1 .heic; to use the pictures in .heic, convert them" in capsys.readouterr().out


def test_predict_downloads_an_image(
    trained: tuple[Classifier, TrainingRun], pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    handler = functools.partial(QuietHandler, directory=str(pictures))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/dogs"
        result = trained[0].predict(f"{address}/3.png", urls=True)
        assert result.scores == trained[0].predict(pictures / "dogs" / "3.png").scores
        assert trained[0].predict([f"{address}/3.png"], urls=True).labels == [f"{address}/3.png"]
        with pytest.raises(UserError, match=r"gone.png: can't download this image: .*404"):
            trained[0].predict(f"{address}/gone.png", urls=True)
        with monkeypatch.context() as patch:
            patch.setattr(pictures_module, "_DOWNLOAD_SECONDS", -1)
            with pytest.raises(UserError, match="it takes longer than -1 s"):
                trained[0].predict(f"{address}/3.png", urls=True)
        server.shutdown()
    with pytest.raises(UserError, match="can't download this image"):
        trained[0].predict(f"{address}/3.png", urls=True)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""


def test_names_of_classes_are_an_attribute(trained: tuple[Classifier, TrainingRun]) -> None:
    assert trained[0].classes == ["cats", "dogs"]
    assert Classifier(trained[1].output_dir).classes == ["cats", "dogs"]
    with pytest.raises(UserError, match="ResNet18 is not trained yet"):
        _ = Classifier("ResNet18").classes


def test_second_training_says_whether_it_continues(
    trained: tuple[Classifier, TrainingRun],
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings: dict[str, Any] = {
        "batch_size": 4,
        "image_size": SIDE,
        "workers": 0,
        "output": tmp_path / "pets",
    }
    model = Classifier("MobileNetV3_small_x0_35", device="cpu", pretrained=False)
    model.train(pictures, epochs=1, **settings)
    assert "new run" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"already holds a run; resume it with resume=True"):
        model.train(pictures, epochs=2, **settings)
    assert f"this is a new run, which does not continue from {model.model}" in capsys.readouterr().out
    run = model.train(pictures, epochs=2, **settings, resume=True)
    assert f"this continues the run in {run.output_dir}" in capsys.readouterr().out
    assert [record["epoch"] for record in run.history if record["kind"] == "eval"] == [1, 2]
    run = model.train(pictures, epochs=1, **settings, increment_output=True)
    assert run.output_dir == tmp_path / "pets-2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr0": 0.1}, r"unknown option 'lr0'; use lr=0.1$"),
        ({"epoch": 3}, r"unknown option 'epoch'; use epochs=3$"),
        ({"fp16": True}, r"unknown option 'fp16'; use amp='O1'$"),
        (
            {"momentum": 0.8},
            r"unknown option 'momentum'; use overrides=\{'Optimizer.momentum': 0.8\}: a key of",
        ),
        ({"opt": "adamw"}, r"use optimizer='AdamW', lr=0.0001$"),
        ({"no_pretrained": True}, r"use overrides=\{'Arch.pretrained': False\}$"),
        ({"exist_ok": True}, r"use increment_output=True: a run is never overwritten"),
        ({"imgsz": 64}, "use image_size=64$"),
        ({"overrides": {"Globl.epochs": 1}}, "Globl: unknown key"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": "3"}, "epochs: expected an integer, got '3'$"),
        ({"image_size": (64, 64)}, r"image_size: expected an integer, got \(64, 64\)$"),
        ({"image_size": 64.5}, "image_size: expected an integer, got 64.5$"),
        ({"lr": [0.1]}, r"lr: expected a number, got \[0.1\]$"),
        ({"random_state": 3}, "use seed=3$"),
        ({"n_jobs": 2}, "use workers=2$"),
        ({"cbs": []}, "Global.hooks in docs/python.md runs your own code"),
        ({"optimizer": "adamv"}, "optimizer: expected one of SGD, "),
        ({"amp": "O3"}, "amp: expected one of O1, O2; got 'O3'"),
        ({"dropout": 0.1}, "dropout 0.1: ResNet18 has no setting for dropout"),
        ({"image_size": "64"}, "image_size: expected an integer, got '64'$"),
        ({"lr": "1e-3"}, "lr: expected a number, got '1e-3'$"),
        ({"bn_momentum": 0.1}, r"use overrides=\{'Arch.batch_norm_momentum': 0.9\}: in Paddle, "),
        ({"grad_checkpointing": True}, r"use overrides=\{'Global.recompute': True\}$"),
        ({"device": "0"}, "device: expected auto, gpu or cpu, got '0'; use gpu"),
    ],
    ids=str,
)
def test_errors_of_training_use_the_names_of_arguments(
    options: dict[str, Any], message: str, pictures: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Classifier("ResNet18").train(pictures, output=tmp_path / "run", **options)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 3}, "folds: only the command has this option: `ppcls train FOLDER --folds 3`$"),
        (
            {"learning_curve": True},
            "only the command has this option: `ppcls train FOLDER --learning-curve`$",
        ),
        ({"time": "1m"}, "only the command has this option: `ppcls train FOLDER --time 1m`$"),
        ({"cv": 5}, "unknown option 'cv'; use the command: `ppcls train FOLDER --folds 5`$"),
    ],
    ids=str,
)
def test_options_that_only_the_command_has_are_explained(
    options: dict[str, Any], message: str, pictures: Path
) -> None:
    with pytest.raises(UserError, match=message):
        Classifier("ResNet18").train(pictures, **options)


def test_device_of_other_tools_is_explained() -> None:
    for device in ("0", 0, "cuda:1"):
        with pytest.raises(UserError, match=r"device: expected auto, gpu or cpu, got '.*'; use gpu"):
            Classifier("ResNet18", device=device)  # type: ignore[arg-type]


NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell("from ppcls import Classifier; model = Classifier('MobileNetV3_small_x0_35', device='cpu')")
shell.run_cell("options = {'epochs': 3, 'batch_size': 4, 'image_size': 32, 'workers': 0, 'output': 'run'}")
shell.run_cell(f"model.train({sys.argv[1]!r}, **options, overrides={sys.argv[2]})")
"""


@pytest.mark.parametrize("during", ["training", "start"])
def test_interrupt_in_a_notebook_ends_in_one_line(pictures: Path, tmp_path: Path, during: str) -> None:
    pytest.importorskip("IPython")
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    if during == "training":
        (tmp_path / "stopping.py").write_text(
            "import os, signal\nfrom ppcls.engine.core.hooks import RunHook\nclass Stop(RunHook):\n"
            "    def on_update(self, run):\n        os.kill(os.getpid(), signal.SIGINT)\n"
        )
        overrides = {"Arch.pretrained": False, "Global.hooks": ["stopping:Stop"]}
    else:
        (tmp_path / "stopping.py").write_text(stop)
        overrides = {"Global.import_modules": ["stopping"]}
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, str(script), str(pictures), repr(overrides)],
        cwd=tmp_path,
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    assert "Traceback" not in text, text
    last = [line for line in done.stdout.splitlines() if line.strip()][-1]
    expected = "stopped by SIGINT; resume with resume=True" if during == "training" else "interrupted"
    assert last.startswith(expected), text


def test_evaluate_uses_the_validation_images_or_a_folder(
    trained: tuple[Classifier, TrainingRun], pictures: Path, tmp_path: Path
) -> None:
    model, run = trained
    result = model.evaluate()
    assert result.metrics["top1"] == run.best
    assert repr(result).startswith(f"Evaluation(top1 {run.best:.4f}, loss ")
    assert "<th>top1</th>" in result._repr_html_()
    assert model.evaluate(pictures, batch_size=3).images == result.images
    moved = pictures.rename(pictures.with_name("moved"))
    try:
        message = f"{re.escape(str(pictures))}: no such folder .* name their new folder with data FOLDER"
        with pytest.raises(UserError, match=message):
            model.evaluate()
        assert result.metrics["top1"] < 1  # the mistakes identify the folder
        assert model.evaluate(moved).images == result.images  # and not those of training
        shutil.copytree(moved / "dogs", tmp_path / "new" / "dogs")
        (tmp_path / "new" / "cats").mkdir()
        shutil.copy(moved / "dogs" / "0.png", tmp_path / "new" / "cats" / "other.png")
        assert model.evaluate(tmp_path / "new").images == 11
    finally:
        moved.rename(pictures)


@pytest.mark.parametrize(("kind", "precision"), [("onnx", "float32"), ("ppcls", "float16")])
def test_export_predicts_the_same(
    trained: tuple[Classifier, TrainingRun],
    pictures: Path,
    kind: Literal["onnx", "ppcls"],
    precision: Literal["float32", "float16"],
) -> None:
    model, run = trained
    folder = model.export(kind, precision=precision)
    assert folder == run.output_dir / kind
    image = pictures / "cats" / "1.png"
    exported = Classifier(folder).predict(image)
    tolerance = 1e-5 if precision == "float32" else 5e-3
    assert exported.scores == pytest.approx(model.predict(image).scores, abs=tolerance)
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
    with pytest.raises(UserError, match="is a trained model; to continue its run, use train"):
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
    with pytest.raises(UserError, match="unknown option 'epohcs'; did you mean 'epochs'"):
        Classifier("ResNet18").train(pictures, epohcs=3)
    with pytest.raises(
        AttributeError, match=r"no attribute 'load'; it has Classifier, .*: Classifier\(FOLDER\)"
    ):
        ppcls.load("runs/pets")
    with pytest.raises(TypeError, match=r"argument 'trust'; use Classifier\(FOLDER, trust=True\)"):
        Classifier("ResNet18").evaluate(trust=True)  # type: ignore[call-arg]
    (pictures / "cats" / "bad.png").write_bytes(b"")
    try:
        with pytest.raises(UserError, match=r"or skip them with on_error='skip' \("):
            Classifier("ResNet18").train(pictures, epochs=1, output=pictures.with_name("never"), workers=0)
    finally:
        (pictures / "cats" / "bad.png").unlink()


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


def test_predictions_are_a_table(tmp_path: Path) -> None:
    results = [
        Classification((1, 0), ("=café", "b"), (0.75, 0.25)),
        Classification((), None, ()),  # a model with several labels per image may predict none
    ]
    predictions = Predictions(results, ["é,1.jpg", "2.jpg"])
    predictions.to_csv(tmp_path / "table.csv")
    content = (tmp_path / "table.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfpath,class,score,class_2,score_2\r\n")
    rows = content.decode("utf-8-sig").splitlines()[1:]
    assert rows == ['"é,1.jpg",\'=café,0.750000,b,0.250000', "2.jpg,,,,"]
    with pytest.raises(UserError, match="choose a new file"):
        predictions.to_csv(tmp_path / "table.csv")
    frame = pytest.importorskip("pandas") and predictions.to_dataframe()
    assert list(frame["path"]) == ["é,1.jpg", "2.jpg"]
    assert frame["score"][0] == 0.75
    assert frame.isna().iloc[1].sum() == 4
