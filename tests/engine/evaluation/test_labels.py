"""Evaluation images are labelled by the names of their folders, wherever these folders are."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppcls import api
from ppcls.cli.eval import calibrate, evaluate
from ppcls.cli.export import export
from ppcls.cli.train import train
from ppcls.data.index.class_names import read_class_names
from ppcls.deploy.models.temperature import read_temperature
from ppcls.engine.evaluation.labels import label_by_names
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

CLASSES = ("ant", "bee", "cat")
SIDE = 32
ALL_IMAGES = "DataLoader.Eval.dataset.part=null"


def paint(folder: Path, level: int, count: int = 16) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(level)
    for number in range(count):
        pixels = rng.normal(level, 20, (SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output folder of a run on the images of ``pictures`` beside it."""
    folder = tmp_path_factory.mktemp("labels")
    for number, name in enumerate(CLASSES):
        paint(folder / "pictures" / name, 40 + 80 * number)
    options = ["--model", "ResNet18", "--epochs", "4", "--batch-size", "8", "--workers", "0"]
    settings = ["Arch.pretrained=False", "Global.use_dali=False", "Global.device=cpu"]
    sizes = ["--image-size", str(SIDE), "--output", str(folder / "run")]
    assert train([str(folder / "pictures"), *options, *sizes, "-o", *settings]) == 0
    return folder / "run"


def confusion(run: Path, data: Path) -> list[list[int]]:
    """Returns the confusion matrix of all images in a folder."""
    settings = [f"Global.pretrained_model={run / 'best_model'}", f"DataLoader.Eval.dataset.image_root={data}"]
    config = load_config(run / "best_model" / "config.yaml", [*settings, ALL_IMAGES])
    result = api.evaluate(config, sample_by_sample=True)
    assert result.outcomes is not None
    assert result.outcomes.confusion is not None
    matrix: list[list[int]] = result.outcomes.confusion.tolist()
    return matrix


def other_folder(run: Path, target: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(run.parent / "pictures" / name, target / name)
    return target


def test_rows_of_the_confusion_matrix_follow_the_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = confusion(run, other_folder(run, tmp_path / "whole", *CLASSES))
    assert np.trace(whole) > 32  # not by chance
    part = confusion(run, other_folder(run, tmp_path / "other", "bee", "cat"))
    assert part == [[0, 0, 0], whole[1], whole[2]]
    assert f"warning: {tmp_path}/other: no folder for the classes ant" in capsys.readouterr().err


def test_names_of_the_weights_count_more_than_the_training_folder(run: Path, tmp_path: Path) -> None:
    whole = confusion(run, other_folder(run, tmp_path / "whole", *CLASSES))
    pictures = other_folder(run, tmp_path / "pictures", *CLASSES)
    paint(pictures / "aardvark", 0)  # a class that was added after the training
    data = other_folder(run, tmp_path / "other", "cat")
    settings = [f"Global.pretrained_model={run / 'best_model'}", f"DataLoader.Eval.dataset.image_root={data}"]
    moved = [*settings, f"DataLoader.Train.dataset.image_root={pictures}", ALL_IMAGES]
    result = api.evaluate(load_config(run / "best_model" / "config.yaml", moved), sample_by_sample=True)
    assert result.outcomes is not None
    assert result.outcomes.confusion is not None
    assert result.outcomes.confusion.tolist() == [[0, 0, 0], [0, 0, 0], whole[2]]


@pytest.mark.parametrize("tool", [evaluate, calibrate])
def test_tools_reject_unknown_folders(
    tool: object, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_folder(run, tmp_path / "other", "bee", "cat")
    paint(other / "zebra", 200)
    before = read_temperature(run / "best_model")
    assert callable(tool)
    assert tool(["--model", str(run), "-o", f"DataLoader.Eval.dataset.image_root={other}"]) == 2
    assert (
        f"{other}: class folders that are no classes of the model: zebra; no folder for the classes ant. "
        "Labels follow the names: rename or remove these folders. The classes are ant, bee, cat"
    ) in capsys.readouterr().err
    assert read_temperature(run / "best_model") == before


def test_export_compares_with_images_labelled_by_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_folder(run, tmp_path / "other", "cat")
    whole = confusion(run, other_folder(run, tmp_path / "whole", *CLASSES))
    settings = [f"DataLoader.Eval.dataset.image_root={other}", ALL_IMAGES]
    assert export(["--model", str(run), "--output", str(tmp_path / "model"), "-o", *settings]) == 0
    accuracy = whole[2][2] / sum(whole[2])
    assert f"compared on 16 images of {other}: accuracy {accuracy:.4f} trained" in capsys.readouterr().out


def test_unknown_names_are_announced(run: Path, tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    shutil.copy(run / "best_model" / "model.safetensors", weights)
    other = other_folder(run, tmp_path / "other", *CLASSES)
    settings = {"DataLoader.Eval.dataset.image_root": str(other), "DataLoader.Train": None}
    config = load_config(run / "best_model" / "config.yaml", settings)
    named, notes = label_by_names(config.DataLoader, config.Arch.class_num, weights)
    assert named is config.DataLoader
    assert notes == [
        f"{other}: {weights} has no class names (label_list.txt), so labels follow the sorted folders"
    ]


def test_names_of_another_kind_are_matched_by_position_and_announced(run: Path, tmp_path: Path) -> None:
    for folder in ("n1", "n2", "n3"):
        paint(tmp_path / "other" / folder, 10)
    settings = {"DataLoader.Eval.dataset.image_root": str(tmp_path / "other")}
    config = load_config(run / "best_model" / "config.yaml", settings)
    named, notes = label_by_names(config.DataLoader, config.Arch.class_num, run / "best_model")
    assert named.evaluated["Eval"].dataset.class_names == ("n1", "n2", "n3")
    assert len(notes) == 1
    assert notes[0].endswith("so labels follow the sorted folders: n1 is 'ant', n2 is 'bee', n3 is 'cat'")


def test_validation_folder_is_labelled_by_the_names_of_the_training_folder(tmp_path: Path, run: Path) -> None:
    other_folder(run, tmp_path / "data" / "train", *CLASSES)
    other_folder(run, tmp_path / "data" / "val", "cat")
    output = tmp_path / "run"
    settings = ["Arch.pretrained=False", "Global.use_dali=False", "Global.device=cpu"]
    options = ["--model", "ResNet18", "--epochs", "1", "--batch-size", "8", "--workers", "0"]
    arguments = [str(tmp_path / "data"), *options, "--image-size", str(SIDE), "--output", str(output)]
    assert train([*arguments, "-o", *settings]) == 0
    log = (output / "train.log").read_text()
    assert "classes without validation images: ant, bee" in log
    assert read_class_names(output / "label_list.txt", 3) == CLASSES
    assert confusion(output, tmp_path / "data" / "val")[2] != [0, 0, 0]


def test_training_with_the_config_of_a_run_labels_other_folders_by_name(run: Path, tmp_path: Path) -> None:
    other = other_folder(run, tmp_path / "other", "bee", "cat")
    paint(other / "zebra", 200)
    evaluation = f"DataLoader.Eval.dataset.image_root={other}"
    settings = [evaluation, f"Global.output_dir={tmp_path / 'run'}", "Global.checkpoints=null"]
    with pytest.raises(UserError, match="class folders that are no classes of the model: zebra"):
        api.fit(load_config(run / "config.yaml", settings))
    names = "DataLoader.Eval.dataset.class_names=[bee, cat, zebra]"
    with pytest.raises(UserError, match=r"expected the classes of DataLoader.Train .*\(ant, bee, cat\)"):
        api.fit(load_config(run / "config.yaml", [*settings, names]))


def test_resume_with_moved_labels_is_an_error(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied, symlinks=True)
    pictures = other_folder(run, tmp_path / "pictures", "bee", "cat")
    paint(pictures / "zebra", 200)
    settings = [f"DataLoader.{split}.dataset.image_root={pictures}" for split in ("Train", "Eval")]
    changed = [*settings, f"Global.output_dir={copied}", "Global.checkpoints=auto", "Global.epochs=9"]
    with pytest.raises(UserError) as caught:
        api.fit(load_config(run / "best_model" / "config.yaml", changed))
    changes = "3 classes before, 3 now (added zebra; removed ant; with another label bee, cat)"
    assert f"the classes changed: {changes}" in str(caught.value)
