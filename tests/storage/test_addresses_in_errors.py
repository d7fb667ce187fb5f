"""Errors about objects name the address that the user typed, not the path of the copy on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_conformance import TRAIN
from pydantic import TypeAdapter
from s3_server import BUCKET, s3_server
from small_tree import small_tree

from ppcls import Classifier, Predictor
from ppcls.api import evaluate, fit
from ppcls.arch.build import build_model
from ppcls.arch.distillation_model import AnyArch
from ppcls.cli.arguments.training import set_val_split
from ppcls.cli.main import main
from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.index.records import WebDataset
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import ImageRecord
from ppcls.engine.core.networks import build_distilling, build_network, join_beside
from ppcls.engine.evaluation.labels import compare_teachers
from ppcls.errors import UserError
from ppcls.files import LogWriter, objects
from ppcls.files.objects import Objects
from ppcls.recipe.load import load_config
from ppcls.storage.models import model_path
from ppcls.weights.files import write_arrays

MODEL = f"s3://{BUCKET}/model"
DATA = f"s3://{BUCKET}/data"
CHAIN = tuple(op.spec for op in TRAIN)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of the copies."""
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,) * 5)
    with s3_server(monkeypatch, tmp_path / "home"):
        yield tmp_path / "home"


def error_of(act: Callable[[], object], home: Path) -> str:
    """Returns the message of the error of a call."""
    with pytest.raises(UserError) as caught:
        act()
    message = str(caught.value)
    assert str(home) not in message
    return message


MODEL_READERS: dict[str, Callable[[Path], object]] = {
    "predict": lambda image: Classifier(MODEL).predict(image),
    "evaluate": lambda image: Classifier(MODEL).evaluate(),
    "train": lambda image: Classifier(MODEL).train(image.parent),
    "export": lambda image: Classifier(MODEL).export("onnx", image.parent / "exported"),
    "Predictor": lambda image: Predictor(MODEL),
}


@pytest.mark.parametrize("reader", MODEL_READERS)
def test_python_names_the_address_of_a_model(reader: str, images: Path, home: Path) -> None:
    Objects(MODEL).write("inference.onnx", b"damaged")
    Objects(MODEL).write("inference.yml", b"damaged: [")
    assert error_of(lambda: MODEL_READERS[reader](images / "train 0.jpg"), home).startswith(MODEL)


def test_predictor_names_the_address_of_an_object(home: Path) -> None:
    Objects(MODEL).write("inference.onnx", b"damaged")
    assert error_of(lambda: Predictor(f"{MODEL}/inference.onnx"), home).startswith(f"{MODEL}/inference.onnx:")


@pytest.mark.parametrize("key", ["Global.pretrained_model", "Arch.pretrained"])
@pytest.mark.parametrize("name", ["weights.pdparams", "weights.safetensors"])
def test_training_names_the_address_of_its_weights(
    key: str, name: str, images: Path, tmp_path: Path, home: Path
) -> None:
    Objects(MODEL).write(name, b"damaged")
    config = load_config(small_tree(images, tmp_path / "run"), {key: f"{MODEL}/{name}"})
    assert error_of(lambda: fit(config), home).startswith(f"{MODEL}/{name}:")


def plain(**keys: Any) -> dict[str, Any]:
    return {"name": "ResNet18", "class_num": 4, **keys}


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "backbone": lambda url: {
        "name": "RecModel",
        "Backbone": {"name": "ResNet18", "class_num": 4, "pretrained": url},
    },
    "teacher": lambda url: {
        "name": "DistillationModel",
        "freeze_params_list": [True, False],
        "models": [{"Teacher": plain(pretrained=url)}, {"Student": plain()}],
    },
    "peer": lambda url: {
        "name": "DistillationModel",
        "models": [{"Peer": plain(pretrained=url)}, {"Student": plain()}],
    },
}


@pytest.mark.parametrize("part", PARTS)
def test_weights_of_a_part_are_read_from_an_address(part: str, tmp_path: Path, home: Path) -> None:
    url = f"{MODEL}/weights.safetensors"
    arch = TypeAdapter(AnyArch).validate_python(PARTS[part](url))

    def load() -> Any:
        if part == "backbone":
            return build_network(arch, pretrained=True)
        student = build_network(arch.inferred)
        join_beside(student, arch, ())
        return build_distilling(student, arch, (), None, "cpu")

    write_arrays(tmp_path / "weights.safetensors", build_model("ResNet18", 4).state_dict())
    Objects(MODEL).upload(tmp_path / "weights.safetensors", "weights.safetensors")
    load()
    Objects(MODEL).write("weights.safetensors", b"damaged")
    assert error_of(load, home).startswith(f"{url}:")


def test_classes_of_a_teacher_are_read_from_its_address(home: Path) -> None:
    Objects(MODEL).write("label_list.txt", b"0 ant\n1 bee\n")
    assert compare_teachers({"Teacher": MODEL}, ["ant", "bee"]) == []
    error = error_of(lambda: compare_teachers({"Teacher": MODEL}, ["bee", "cat"]), home)
    assert f"Teacher ({MODEL}) has other labels than the training images" in error


def test_evaluation_names_the_address_of_its_weights(images: Path, tmp_path: Path, home: Path) -> None:
    Objects(MODEL).write("weights.pdparams", b"damaged")
    url = f"{MODEL}/weights.pdparams"
    config = load_config(small_tree(images, tmp_path / "run"), {"Global.pretrained_model": url})
    assert error_of(lambda: evaluate(config), home).startswith(f"{url}:")


def test_command_and_log_name_the_address_of_a_model(
    images: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Objects(MODEL).write("notes.txt", b"no model")
    assert main(["infer", "--model", MODEL, str(images / "train 0.jpg")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {MODEL}: not a model")
    LogWriter(tmp_path / "train.log").message(f"{model_path(MODEL)}/notes.txt: no weights")
    assert f" {MODEL}/notes.txt: no weights\n" in (tmp_path / "train.log").read_text()


def folder_tree(images: Path, output: Path) -> dict[str, Any]:
    tree = small_tree(images, output)
    chain = tree["DataLoader"]["Train"]["dataset"]["transform_ops"]
    for split, part in (("Train", "train"), ("Eval", "val")):
        dataset = {"name": "ImageFolderDataset", "image_root": f"{DATA}/", "part": part}
        tree["DataLoader"][split]["dataset"] = {**dataset, "transform_ops": chain}
    tree["Arch"]["class_num"] = "auto"
    return tree


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat/1.jpg",), f"{DATA}: expected one subfolder of images per class"),
        (("1.jpg",), f"{DATA}: expected one subfolder of images per class"),
        (("train/cat/1.jpg", "train/dog/1.jpg"), f"{DATA}: contains a folder train with class folders"),
        (("train/cat/1.jpg", "val/cat/1.jpg"), f"{DATA}/train: expected one subfolder of images per class"),
    ],
)
def test_config_names_the_address_of_class_folders(
    names: tuple[str, ...], message: str, images: Path, tmp_path: Path, home: Path
) -> None:
    for name in names:
        Objects(DATA).write(name, b"")
    tree = folder_tree(images, tmp_path / "run")
    assert error_of(lambda: load_config(tree), home).startswith(message)


def test_split_of_separate_folders_names_their_address(images: Path, tmp_path: Path, home: Path) -> None:
    for name in ("train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/dog/1.jpg"):
        Objects(DATA).write(name, b"")
    tree = folder_tree(images, tmp_path / "run")
    assert f": {DATA} has folders for" in error_of(lambda: set_val_split(tree, 0.2), home)


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg x", "../a.jpg 0", "a.jpg 9"])
def test_list_names_its_address(line: str, home: Path) -> None:
    Objects(DATA).write("list.txt", line.encode())
    data = ImageNetDataset(image_root=DATA, cls_label_path=f"{DATA}/list.txt", transform_ops=CHAIN)
    assert error_of(lambda: data.read(4), home).startswith(f"{DATA}/list.txt, line 1: ")


@pytest.mark.parametrize(
    ("index", "label", "message"),
    [
        (b"damaged", "1", f"{DATA}/a.idx, line 1: expected version and number of samples"),
        (None, "x", f"the index of {DATA}/a.tar, line 2: expected a whole number in the .cls file"),
    ],
)
def test_shard_names_its_address(
    index: bytes | None, label: str, message: str, tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "a.tar"
    FORMATS["webdataset"].write(file, [ImageRecord("0.jpg", b"image", 1)])
    file.write_bytes(file.read_bytes().replace(b"1" + bytes(511), label.encode() + bytes(511)))
    Objects(DATA).upload(file, "a.tar")
    if index is not None:
        Objects(DATA).write("a.idx", index)
    error = error_of(lambda: WebDataset(paths=[f"{DATA}/*.tar"], transform_ops=CHAIN).read(4), home)
    assert error.startswith(message)
    assert "ppcls dataset index" not in error, "this command needs a disk"


def test_folder_beside_the_address_of_a_list_is_unchanged(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name can be any text, which occurs in other words of the message."""
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path)
    Objects(DATA).write("list.txt", b"a.jpg x")
    data = ImageNetDataset(image_root="s/", cls_label_path=f"{DATA}/list.txt", transform_ops=CHAIN)
    assert "expected a whole number as label" in error_of(lambda: data.read(4), home)
