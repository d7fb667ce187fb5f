"""Evaluation images are labelled by the names of their folders, wherever these folders are."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppcls import api
from ppcls.cli.dataset import main as dataset_main
from ppcls.cli.eval import calibrate, evaluate
from ppcls.cli.export import export
from ppcls.cli.train import train
from ppcls.data.index.class_names import read_class_names
from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.section import Split
from ppcls.deploy.models.temperature import read_temperature
from ppcls.engine.evaluation.labels import compare_listed_data, compare_teachers, label_by_names
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

CLASSES = ("ant", "bee", "cat")
SIDE = 32
CHAIN = [{"DecodeImage": None}, {"ResizeImage": {"size": SIDE}}, {"NormalizeImage": None}]
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
    options = ["--model", "ResNet18", "--epochs", "2", "--batch-size", "8", "--workers", "0"]
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


@pytest.fixture(scope="module")
def whole(run: Path) -> list[list[int]]:
    """Confusion matrix of all images."""
    matrix = confusion(run, other_folder(run, run.parent / "whole", *CLASSES))
    assert np.trace(matrix) > 32  # not by chance
    return matrix


def other_folder(run: Path, target: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(run.parent / "pictures" / name, target / name)
    return target


def label_folders(
    run: Path, parent: Path, folders: list[str], listed: list[str] | None
) -> tuple[tuple[str, ...], list[str]]:
    """Returns the class names of the data set of new folders, and the notes."""
    for folder in folders:
        paint(parent / "other" / folder, 10, count=1)
    settings = {
        "DataLoader.Eval.dataset.image_root": str(parent / "other"),
        "DataLoader.Eval.dataset.class_names": listed,
        "DataLoader.Train": None,
    }
    config = load_config(run / "best_model" / "config.yaml", settings)
    named, notes = label_by_names(config.DataLoader, config.Arch.class_num, run / "best_model")
    return named.evaluated["Eval"].dataset.folder_classes, notes


def test_rows_of_the_confusion_matrix_follow_the_names(
    run: Path, whole: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = confusion(run, other_folder(run, tmp_path / "other", "bee", "cat"))
    assert part == [[0, 0, 0], whole[1], whole[2]]
    assert f"warning: {tmp_path}/other: no folder for the classes ant" in capsys.readouterr().err


def test_names_of_the_weights_count_more_than_the_training_folder(
    run: Path, whole: list[list[int]], tmp_path: Path
) -> None:
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
        "Labels follow the names: rename or remove these folders; if they are other names of the same "
        "classes, list them in the order of the labels in DataLoader.Eval.dataset.class_names. The classes "
        "are ant, bee, cat"
    ) in capsys.readouterr().err
    assert read_temperature(run / "best_model") == before


def test_export_compares_with_images_labelled_by_name(
    run: Path, whole: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_folder(run, tmp_path / "other", "cat")
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


@pytest.mark.parametrize(
    ("folders", "listed", "order", "reason"),
    [
        (["n01440764", "n01443537", "n01484850"], None, None, "labels follow the sorted folders"),
        (["00", "02", "1"], None, ["00", "1", "02"], "labels are the numbers of the folders"),
        (["ours", "theirs", "wir"], ["wir", "theirs", "ours"], ["wir", "theirs", "ours"], "class_names"),
        (["bee", "ours"], ["ours", "bee", "cat"], ["ours", "bee", "cat"], "labels follow class_names"),
    ],
)
def test_folders_with_other_names_are_matched_where_this_is_certain(
    run: Path,
    tmp_path: Path,
    folders: list[str],
    listed: list[str] | None,
    order: list[str] | None,
    reason: str,
) -> None:
    named, notes = label_folders(run, tmp_path, folders, listed)
    assert named == tuple(order or folders)
    assert len(notes) == 1
    assert f"{reason}: {named[0]} is 'ant'" in notes[0]


@pytest.mark.parametrize(
    ("folders", "listed"),
    [
        (["x", "y", "z"], None),  # as many folders as classes
        (["ANT", "BEE", "CAT"], None),
        (["1", "2", "3"], None),  # labels, or numbers that start with 1?
        (["0", "1"], None),
        (["n01440764", "n01443537"], None),
        (["bee", "cat", "zebra"], ["bee", "cat", "zebra"]),  # bee and cat would get the labels of ant and bee
        (["bee", "zebra"], ["ant", "bee", "cat"]),
    ],
)
def test_folders_with_other_names_are_rejected_where_their_labels_are_unknown(
    run: Path, tmp_path: Path, folders: list[str], listed: list[str] | None
) -> None:
    with pytest.raises(UserError, match="class folders that are no classes of the model"):
        label_folders(run, tmp_path, folders, listed)


def test_empty_folders_of_other_classes_are_ignored(run: Path, tmp_path: Path) -> None:
    """The model has no such class if it was trained with ``--on-error skip``."""
    other = other_folder(run, tmp_path / "other", "bee", "cat")
    expected = confusion(run, other)
    (other / "aardvark").mkdir()
    assert confusion(run, other) == expected


def test_validation_folder_is_labelled_by_the_names_of_the_training_folder(tmp_path: Path, run: Path) -> None:
    other_folder(run, tmp_path / "data" / "train", *CLASSES)
    other_folder(run, tmp_path / "data" / "val", "cat")
    output = tmp_path / "run"
    settings = ["Arch.pretrained=False", "Global.use_dali=False", "Global.device=cpu"]
    options = ["--model", "PPLCNet_x0_25", "--epochs", "1", "--batch-size", "8", "--workers", "0"]
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


def convert(*arguments: str) -> None:
    assert dataset_main(["convert", "lmdb", *arguments]) == 0


def test_labels_of_containers_must_have_the_names_of_the_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_folder(run, tmp_path / "other", "bee", "cat")
    convert(str(other), "--out", str(tmp_path / "moved"))
    names = run / "best_model" / "label_list.txt"
    convert(str(other), "--out", str(tmp_path / "right"), "--names", str(names))
    whole = confusion(run, other_folder(run, tmp_path / "whole", *CLASSES))
    for folder in ("moved", "right"):
        (shard,) = (tmp_path / folder).glob("*.lmdb")
        config = load_config(run / "best_model" / "config.yaml")
        keep = config.DataLoader.evaluated["Eval"].dataset.model_dump(mode="json")["transform_ops"]
        data = {"name": "LMDBDataset", "paths": [str(shard)], "transform_ops": keep}
        settings = {"DataLoader.Eval.dataset": data, "Global.pretrained_model": str(run / "best_model")}
        config = load_config(run / "best_model" / "config.yaml", settings)
        if folder == "moved":
            with pytest.raises(UserError, match="'bee' is 0, and 1 there, 'cat' is 1, and 2 there"):
                api.evaluate(config)
            continue
        result = api.evaluate(config, sample_by_sample=True)
        assert result.outcomes is not None
        assert result.outcomes.confusion is not None
        assert result.outcomes.confusion.tolist() == [[0, 0, 0], whole[1], whole[2]]


@pytest.mark.parametrize(
    ("trained", "evaluated", "result"),
    [
        ("0 ant\n1 bee\n", "0 ant\n1 bee\n", []),
        ("0 ant\n1 bee\n", "0 ant\n", []),
        ("0 ant\n1 bee\n", "1 fly\n0 ant\n", ["1 is 'fly', and 'bee' there"]),
        ("0 ant\n1 bee\n", "0 bee\n", "'bee' is 0, and 1 there"),
        (None, "0 bee\n", []),
        ("0 ant\n1 bee\n", "1 ant\n2 bee\n", ["the class names are not compared"]),
        ("ant\nbee\n", "0 ant\n1 bee\n", ["the class names are not compared"]),
    ],
)
def test_names_beside_lists_are_compared(
    tmp_path: Path, trained: str | None, evaluated: str | None, result: list[str] | str
) -> None:
    splits = {}
    for part, text in (("Train", trained), ("Eval", evaluated)):
        folder = tmp_path / part
        folder.mkdir()
        if text is not None:
            (folder / "label_list.txt").write_text(text)
        keys = {"image_root": "pictures", "cls_label_path": str(folder / "list.txt")}
        data = ImageNetDataset.model_validate({**keys, "transform_ops": CHAIN})
        splits[part] = Split.model_construct(dataset=data)
    if isinstance(result, str):
        with pytest.raises(UserError, match=result):
            compare_listed_data(splits)
    else:
        notes = compare_listed_data(splits)
        assert len(notes) == len(result)
        assert all(text in note for text, note in zip(result, notes, strict=True))


def test_teacher_with_other_labels_is_an_error(tmp_path: Path) -> None:
    """The student would learn the teacher's classes under other names."""
    weights = tmp_path / "teacher" / "model.safetensors"
    weights.parent.mkdir()
    weights.touch()
    (weights.parent / "label_list.txt").write_text("0 ant\n1 bee\n2 cat\n")
    for source in (weights, weights.parent):
        assert compare_teachers({"Teacher": str(source)}, ["ant", "bee", "cat"]) == []
        (note,) = compare_teachers({"Teacher": str(source)}, ["ant", "bee", "dog"])
        assert "other class names: 2 was 'cat' and is now 'dog'" in note
        with pytest.raises(
            UserError, match=r"Teacher .* has other labels than the training images: 3 classes"
        ):
            compare_teachers({"Teacher": str(source)}, ["bee", "cat", "zebra"])
    assert compare_teachers({"Teacher": str(weights)}, []) == []
    assert compare_teachers({"Teacher": "ResNet50_pretrained"}, ["a", "b", "c"]) == []
