from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paths import ROOT
from small_classifier import (
    CLASSES,
    NAME,
    config_tree,
    write_checkpoint,
    write_config,
    write_huge_png,
    write_image,
    write_names,
    write_weights,
)

from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import plan_chain
from ppcls.engine.core.networks import build_network
from ppcls.recipe.load import validate
from ppcls.weights.files import fill_model, read_weights

TOOL = ROOT / "tools" / "infer.py"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "model.safetensors")


@pytest.fixture
def tree(weights: Path, tmp_path: Path) -> dict[str, Any]:
    return config_tree(weights, write_names(tmp_path / "names.txt"))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of five images at two levels, and a file that is none."""
    folder = tmp_path / "images"
    for seed, name in enumerate(["b.jpg", "a.PNG", "deep/er/c.bmp", "deep/d.jpeg", "z.webp"]):
        write_image(folder / name, seed)
    (folder / "notes.txt").write_text("not an image")
    return folder


def infer(tmp_path: Path, tree: dict[str, Any], *arguments: str | Path) -> int:
    config = write_config(tmp_path / "config.yaml", tree)
    return infer_cli.infer([*map(str, arguments), "-c", str(config)])


def json_lines(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def expected_scores(tree: dict[str, Any], file: Path) -> np.ndarray:
    """Returns [3] float64: what the model itself says of one image, computed step by step."""
    config = validate(tree, "test")
    assert config.Infer is not None
    model = build_network(config.Arch)
    source = Path(str(config.Global.pretrained_model))
    fill_model(model, read_weights(source), source)
    model.eval()
    ops = plan_chain(config.Infer.transforms, "CHW" if config.Arch.data_format == "NCHW" else "HWC")
    image = run(ops, file.read_bytes(), np.zeros(0, np.float32))
    logits = model(paddle.to_tensor(image[None])).numpy()[0].astype(np.float64)
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_infer_json_holds_the_scores_of_the_model(
    tmp_path: Path, tree: dict[str, Any], images: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Arch"]["data_format"] = layout
    assert infer(tmp_path, tree, images, "--json") == 0
    found = json_lines(capsys.readouterr().out)
    names = ["a.PNG", "b.jpg", "deep/d.jpeg", "deep/er/c.bmp", "z.webp"]
    assert [each["path"] for each in found] == [str(images / name) for name in names]
    for each in found:
        scores = expected_scores(tree, Path(each["path"]))
        best = np.argsort(-scores)[:2]
        assert each["class_ids"] == best.tolist()
        assert each["names"] == [CLASSES[i] for i in best]
        # Convolutions may sum in another order for another batch size.
        np.testing.assert_allclose(each["scores"], scores[best], atol=1e-5)


def test_infer_prints_one_line_per_image(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Infer"]["PostProcess"]["topk"] = 3
    assert infer(tmp_path, tree, images / "b.jpg") == 0
    scores = expected_scores(tree, images / "b.jpg")
    best = [f"{i} {CLASSES[i]} {100 * scores[i]:.2f} %" for i in np.argsort(-scores)]
    assert capsys.readouterr().out == f"{images / 'b.jpg'}: {', '.join(best)}\n"


def test_infer_without_names_prints_ids(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del tree["Infer"]["PostProcess"]["class_id_map_file"]
    assert infer(tmp_path, tree, images / "b.jpg", "--json", "--out", tmp_path / "out.jsonl") == 0
    text = capsys.readouterr().out
    assert (tmp_path / "out.jsonl").read_text() == text
    assert json.loads(text)["names"] is None
    assert infer(tmp_path, tree, images / "b.jpg") == 0
    assert "None" not in capsys.readouterr().out


@pytest.mark.parametrize("topk", [None, len(CLASSES)])
def test_infer_writes_a_table(tmp_path: Path, tree: dict[str, Any], images: Path, topk: int | None) -> None:
    name = images / '=1+1, "ü".jpg'
    (images / "b.jpg").rename(name)
    (images / "broken.jpg").write_text("not a picture")
    output = tmp_path / "classes.csv"
    options = [] if topk is None else ["--topk", topk]
    assert infer(tmp_path, tree, name, images / "broken.jpg", "--out", output, *options) == 3
    assert output.read_bytes().startswith(b"\xef\xbb\xbfpath,error,class,score")
    with output.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    scores = expected_scores(tree, name)
    order = np.argsort(-scores)
    assert [row["path"] for row in rows] == [str(name), str(images / "broken.jpg")]
    assert rows[0]["class"] == CLASSES[order[0]]
    assert float(rows[0]["score"]) == pytest.approx(scores[order[0]], abs=1e-4)
    assert "decoded" in rows[1]["error"]
    if topk is not None:
        found = [rows[0][f"class_{rank}"] for rank in range(2, topk + 1)]
        assert found == [CLASSES[index] for index in order[1:]]
    assert len(rows[0]) == 2 + 2 * (topk or 1)


def test_infer_images_of_the_command_line_replace_infer_imgs(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Infer"]["infer_imgs"] = str(images)
    assert infer(tmp_path, tree) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert infer(tmp_path, tree, images / "deep", images / "z.webp", images / "deep" / "d.jpeg") == 0
    files = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert files == [str(images / name) for name in ("deep/d.jpeg", "deep/er/c.bmp", "z.webp")]


@pytest.mark.parametrize(("wanted", "code", "lines"), [("fail", 3, 7), ("ignore", 0, 7), ("stop", 3, 2)])
def test_infer_bad_image_has_a_line_and_an_exit_code(
    tmp_path: Path,
    tree: dict[str, Any],
    images: Path,
    wanted: str,
    code: int,
    lines: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (images / "aa.jpg").write_bytes(b"")
    (images / "bb.jpg").write_text("not a picture")
    tree["Infer"]["batch_size"] = 1  # so that a batch has no image at all
    output = tmp_path / "out.jsonl"
    assert infer(tmp_path, tree, images, "--out", output, "--on-error", wanted) == code
    said = capsys.readouterr()
    written = json_lines(output.read_text())
    assert len(said.out.splitlines()) == len(written) == lines
    assert said.out.splitlines()[1] == f"{images / 'aa.jpg'}: error: the file is empty"
    assert written[1] == {"path": str(images / "aa.jpg"), "error": "the file is empty"}
    failed = 1 if wanted == "stop" else 2
    engine = f"[Infer] {NAME} by Paddle {paddle.__version__} (CPU, float32)\n"
    assert said.err == engine + (
        f"error: {failed} of 7 images could not be predicted; the results above give the reasons "
        "(see --on-error)\n"
        if code
        else ""
    )


def test_infer_reports_pictures_of_a_folder_that_it_skips(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = tmp_path / "phone"
    others.mkdir()
    (others / "1.HEIC").write_bytes(b"x")
    (others / "._1.HEIC").write_bytes(b"x")  # of macOS
    assert infer(tmp_path, tree, others) == 2
    assert "to use the pictures in .heic, convert them to JPEG or PNG" in capsys.readouterr().err
    shutil.copy(images / "b.jpg", others)
    (others / "notes.txt").write_text("x")
    assert infer(tmp_path, tree, others) == 0
    assert (
        f"{others}: skipped files that are not images of a known format: 1 .heic, 1 .txt; to use the "
        "pictures in .heic, convert them to JPEG or PNG\n"
    ) in capsys.readouterr().err


def test_infer_image_with_too_many_pixels_is_bad(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_huge_png(images / "huge.png")
    assert infer(tmp_path, tree, images / "huge.png", images / "b.jpg") == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    text = "error: 200000x200000 pixels are more than DecodeImage's max_pixels"
    assert lines[0].startswith(f"{images / 'huge.png'}: {text}")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "nothing to predict: pass images or folders (before any -o), or set Infer.infer_imgs"),
        (["gone.jpg"], "gone.jpg: no such file or folder"),
        (
            ["-o", "Infer.infer_imgs=gone.jpg"],
            "Infer.infer_imgs: gone.jpg: no such file or folder; name images in the command, or set this key",
        ),
        (
            ["https://x.org/a.jpg"],
            "https://x.org/a.jpg: addresses are not downloaded; download the image first",
        ),
        (
            ["empty"],
            "empty: no images in this folder; "
            "expected files that end in .jpg, .jpeg, .png, .bmp, .webp, .tif, .tiff, .jp2",
        ),
        (["*.gif"], "*.gif: no file matches this pattern"),
        (
            ["b.jpg", "--out", "gone/out.csv"],
            "--out gone/out.csv: cannot be created: No such file or directory",
        ),
        (["b.jpg", "--out", "empty.jsonl"], "--out empty.jsonl: is a folder; choose a new file"),
        (
            ["b.jpg", "--out", "classes.xlsx"],
            "--out classes.xlsx: expected a file name that ends in .csv, .jsonl or .parquet; use "
            "classes.csv, which spreadsheets such as Excel open",
        ),
        (
            ["b.jpg", "--out", "notes.jsonl"],
            "--out notes.jsonl: exists already and is not overwritten; choose a new file",
        ),
    ],
)
def test_infer_missing_file_is_an_error(
    tmp_path: Path,
    tree: dict[str, Any],
    images: Path,
    given: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (images / "empty").mkdir()
    (images / "empty.jsonl").mkdir()
    (images / "notes.jsonl").write_text("notes")
    monkeypatch.chdir(images)
    assert infer(tmp_path, tree, *given) == 2
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_infer_incomplete_names_are_an_error(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names.txt").write_text("0 a\n1 b\n")
    assert infer(tmp_path, tree, images) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "names.txt: has names for 2 of 3 classes (Arch.class_num); add a line for class 2" in said.err


def test_infer_random_transform_is_an_error(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Infer"]["transforms"].insert(3, {"RandFlipImage": {}})
    assert infer(tmp_path, tree, images) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'config.yaml'}\n"
        "  Infer.transforms[3].RandFlipImage: is random, but "
        "prediction is deterministic; remove it\n"
    )


def test_infer_without_section_infer_is_an_error(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del tree["Infer"]
    assert infer(tmp_path, tree, images) == 2
    assert "no section Infer" in capsys.readouterr().err


def test_infer_uses_the_best_model_by_default(
    tmp_path: Path, tree: dict[str, Any], images: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(tmp_path, tree, images) == 0
    lines = capsys.readouterr().out
    del tree["Global"]["pretrained_model"]
    tree["Global"]["output_dir"] = str(tmp_path / "run")
    assert infer(tmp_path, tree, images) == 2
    assert f"{tmp_path / 'run' / 'best_model'} does not exist" in capsys.readouterr().err
    write_checkpoint(tmp_path / "run", {"model.safetensors": weights.read_bytes()})
    assert infer(tmp_path, tree, images) == 0
    assert capsys.readouterr().out == lines


def test_infer_out_on_a_full_disk_contains_complete_lines(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel cuts the file at a limit, as a full disk does."""
    assert infer(tmp_path, tree, images, "--out", tmp_path / "all.jsonl") == 0
    lines = (tmp_path / "all.jsonl").read_bytes().splitlines(keepends=True)
    limit = len(lines[0]) + len(lines[1]) + 7  # a part of the third line
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        code = infer_cli.infer(
            ["-c", str(tmp_path / "config.yaml"), str(images), "--out", str(tmp_path / "out.jsonl")]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert (
        f"{tmp_path / 'out.jsonl'}: cannot be written: File too large; it contains the first 2 results"
        in (capsys.readouterr().err)
    )
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(lines[:2])


def test_infer_accepts_pdparams(
    tmp_path: Path, tree: dict[str, Any], images: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(tmp_path, tree, images) == 0
    lines = capsys.readouterr().out
    arrays = read_weights(weights)
    paddle.save({name: paddle.to_tensor(each) for name, each in arrays.items()}, str(tmp_path / "w.pdparams"))
    tree["Global"]["pretrained_model"] = str(tmp_path / "w.pdparams")
    assert infer(tmp_path, tree, images) == 0
    assert capsys.readouterr().out == lines


def test_infer_weights_of_another_model_are_an_error(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Arch"]["class_num"] = 4
    (tmp_path / "names.txt").write_text("0 a\n1 b\n2 c\n3 d\n")
    assert infer(tmp_path, tree, images) == 2
    assert "weights of another model" in capsys.readouterr().err


def test_infer_nonfinite_scores_are_an_error(
    tmp_path: Path, tree: dict[str, Any], images: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import safetensors.numpy

    arrays = read_weights(weights)
    arrays["fc.bias"] = np.full_like(arrays["fc.bias"], np.nan)
    safetensors.numpy.save_file(arrays, tmp_path / "nan.safetensors")
    tree["Global"]["pretrained_model"] = str(tmp_path / "nan.safetensors")
    assert infer(tmp_path, tree, images) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{tmp_path / 'nan.safetensors'}: the model returns NaN or infinite scores" in said.err


def test_infer_uses_the_precision_of_evaluation(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["AMP"] = {"dtype": "bfloat16"}
    assert infer(tmp_path, tree, images / "b.jpg", "--json") == 0
    rounded = json.loads(capsys.readouterr().out)
    exact = expected_scores(tree, images / "b.jpg")[rounded["class_ids"][0]]
    assert 0 < abs(rounded["scores"][0] - exact) < 0.05
    tree["AMP"] = {"dtype": "float16"}
    tree["Global"]["device"] = "auto"
    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        assert infer(tmp_path, tree, images) == 2
        assert "float16 needs a GPU" in capsys.readouterr().err


def test_infer_file_name_of_invalid_utf8_is_one_line(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = os.fsdecode(os.fsencode(images) + b"/\xff\n.jpg")
    shutil.copy(images / "b.jpg", odd)
    assert infer(tmp_path, tree, odd) == 0
    assert "udcff\\n.jpg: " in capsys.readouterr().out
    assert infer(tmp_path, tree, odd, "--json") == 0
    assert json.loads(capsys.readouterr().out)["path"] == odd


def test_infer_tool_prints_only_json(tmp_path: Path, tree: dict[str, Any], images: Path) -> None:
    config = write_config(tmp_path / "config.yaml", tree)
    command = [sys.executable, str(TOOL), str(images), "-c", str(config), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(json_lines(done.stdout)) == 5
    assert "Traceback" not in done.stderr


def test_infer_tool_ends_quietly_if_the_pipe_closes(
    tmp_path: Path, tree: dict[str, Any], images: Path
) -> None:
    config = write_config(tmp_path / "config.yaml", tree)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, str(TOOL), str(images), "-c", str(config)]
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 141
    assert "Broken" not in done.stderr


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_infer_with_dali_predicts_the_same(
    tmp_path: Path, tree: dict[str, Any], images: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches of two: one without a good image, one with one; the last is not full."""
    tree["Arch"]["data_format"] = layout
    for name in ("aa.jpg", "ab.jpg", "c.jpg"):
        (images / name).write_text("not a picture")
    found = []
    for use_dali in (False, True):
        tree["Global"]["use_dali"] = use_dali
        assert infer(tmp_path, tree, images, "--json", "-o", "Infer.batch_size=2") == 3
        found.append(json_lines(capsys.readouterr().out))
    assert [each["path"] for each in found[0]] == [each["path"] for each in found[1]]
    for own, by_dali in zip(*found, strict=True):
        if "error" in own:
            assert by_dali == own
            continue
        assert by_dali["class_ids"] == own["class_ids"]
        np.testing.assert_allclose(by_dali["scores"], own["scores"], atol=1e-5)


@pytest.mark.parametrize("exported", [["paddle"], ["onnx"], ["paddle", "--preprocess", "normalize"]])
def test_infer_with_dali_runs_exported_models(
    tmp_path: Path,
    tree: dict[str, Any],
    images: Path,
    exported: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert infer(tmp_path, tree, images, "--json") == 0
    expected = json_lines(capsys.readouterr().out)
    config, options = str(tmp_path / "config.yaml"), ["-o", f"Global.save_inference_dir={tmp_path / 'out'}"]
    assert export_cli.export(["-c", config, "--format", *exported, *options]) == 0
    capsys.readouterr()
    options = ["-o", "Global.device=cpu", "Global.use_dali=True", "Infer.batch_size=2"]
    assert infer_cli.infer([str(images), "--model", str(tmp_path / "out"), "--json", *options]) == 0
    found = json_lines(capsys.readouterr().out)
    for own, other in zip(expected, found, strict=True):
        assert (own["path"], own["class_ids"], own["names"]) == (
            other["path"],
            other["class_ids"],
            other["names"],
        )
        np.testing.assert_allclose(own["scores"], other["scores"], atol=1e-5)


def test_infer_with_dali_and_only_bad_images_names_each(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree["Global"]["use_dali"] = True
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).write_text("not a picture")
    files = [tmp_path / name for name in ("a.jpg", "b.jpg", "c.jpg")]
    assert infer(tmp_path, tree, *files) == 3
    said = capsys.readouterr()
    assert said.out == "".join(f"{file}: error: not an image that can be decoded\n" for file in files)
    assert "3 of 3 images could not be predicted" in said.err


@pytest.mark.parametrize("use_dali", [False, True])
def test_infer_does_not_wait_for_a_pipe(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str], use_dali: bool
) -> None:
    tree["Global"]["use_dali"] = use_dali
    os.mkfifo(tmp_path / "a.jpg")
    assert infer(tmp_path, tree, tmp_path / "a.jpg", images / "b.jpg") == 3
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{tmp_path}/a.jpg: error: not a regular file"
    assert second.startswith(f"{images}/b.jpg: ")
    assert "error" not in second


def test_infer_accepts_patterns_and_standard_input(
    tmp_path: Path,
    tree: dict[str, Any],
    images: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(images)
    assert infer(tmp_path, tree, "**/*.jp*g", "b.jpg") == 0
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == ["b.jpg", "deep/d.jpeg"]
    listed = tmp_path / "list.txt"
    listed.write_text("z.webp\n\nb.jpg\r\ngone.jpg\nz.webp\n")
    with listed.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert infer(tmp_path, tree, "-") == 3
    lines = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [file for file, _ in lines] == ["z.webp", "b.jpg", "gone.jpg"]
    assert lines[2][1] == "error: no such file or directory"
    listed.write_text("")
    with listed.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert infer(tmp_path, tree, "-") == 2
    assert (
        capsys.readouterr().err
        == "error: nothing to predict: standard input is empty; expected one path per line\n"
    )


def test_infer_checkpoint_folder_alone_predicts(
    tmp_path: Path, tree: dict[str, Any], images: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is named but the folder: not the config, and not the classes."""
    del tree["Infer"]["PostProcess"]["class_id_map_file"]
    files = {
        "model.safetensors": weights,
        "config.yaml": write_config(tmp_path / "config.yaml", tree),
        "label_list.txt": write_names(tmp_path / "label_list.txt"),
    }
    checkpoint = write_checkpoint(tmp_path / "run", {name: file.read_bytes() for name, file in files.items()})
    assert infer_cli.infer([str(images / "b.jpg"), "--model", str(checkpoint), "--json"]) == 0
    (line,) = json_lines(capsys.readouterr().out)
    assert line["names"] == [CLASSES[k] for k in line["class_ids"]]
    best = np.sort(expected_scores(tree, images / "b.jpg"))[::-1]
    np.testing.assert_allclose(line["scores"], best[:2], atol=1e-5)
    with pytest.raises(SystemExit):
        infer_cli.infer([str(images)])
    assert "expected --model PATH, such as --model runs/pets, or -c CONFIG" in capsys.readouterr().err


def test_infer_writes_each_result_at_once(
    tmp_path: Path, tree: dict[str, Any], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file holds each line as soon as it is made, also where a later one can't be; an empty one goes."""
    output = tmp_path / "out.jsonl"
    assert infer(tmp_path, tree, images, "--out", output, "-o", "Global.pretrained_model=gone") == 2
    assert not output.exists()
    seen = []
    for line in range(2):
        (images / f"{line}.jpg").write_text("no")

    class Reader:
        """Stands where the lines are shown, and looks into the file meanwhile."""

        def write(self, _: str) -> None:
            seen.append(len(output.read_text().splitlines()))

        def flush(self) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Reader())
        assert infer(tmp_path, tree, images, "--out", output) == 3
    assert seen == list(range(1, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("use_dali", [False, True], ids=["threads", "dali"])
def test_infer_trained_model_on_a_gpu_predicts_the_same(
    tmp_path: Path, tree: dict[str, Any], images: Path, use_dali: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model normalizes the pixels unless DALI does; TF32 rounds products."""
    assert infer(tmp_path, tree, images, "--json") == 0
    expected = json_lines(capsys.readouterr().out)
    settings = ["-o", "Global.device=gpu", f"Global.use_dali={use_dali}", "Infer.batch_size=2"]
    assert infer(tmp_path, tree, images, "--json", *settings) == 0
    for own, other in zip(json_lines(capsys.readouterr().out), expected, strict=True):
        assert (own["path"], own["class_ids"][0]) == (other["path"], other["class_ids"][0])
        np.testing.assert_allclose(own["scores"], other["scores"], atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("preprocess", [[], ["--preprocess", "normalize"], ["--preprocess", "all"]])
def test_infer_exported_model_on_a_gpu_predicts_the_same(
    tmp_path: Path,
    tree: dict[str, Any],
    images: Path,
    preprocess: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fed by threads, and by DALI unless the model resizes images; TF32 rounds products."""
    assert infer(tmp_path, tree, images, "--json") == 0
    expected = json_lines(capsys.readouterr().out)
    folder = str(tmp_path / "out")
    settings = ["-o", f"Global.save_inference_dir={folder}"]
    assert export_cli.export(["-c", str(tmp_path / "config.yaml"), *preprocess, *settings]) == 0
    for use_dali in [False] if "all" in preprocess else [False, True]:
        capsys.readouterr()
        settings = ["-o", "Global.device=gpu", f"Global.use_dali={use_dali}", "Infer.batch_size=2"]
        assert infer_cli.infer([str(images), "--model", folder, "--json", *settings]) == 0
        found = json_lines(capsys.readouterr().out)
        assert [each["path"] for each in found] == [each["path"] for each in expected]
        for own, other in zip(found, expected, strict=True):
            assert own["class_ids"][0] == other["class_ids"][0]
            np.testing.assert_allclose(own["scores"], other["scores"], atol=0.02)
