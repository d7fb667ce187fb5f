"""CIFAR-10 in files as Python 2 wrote them."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from cifar_files import FOLDER, images, write_cifar, written_by_python_2

from ppcls.config.base.errors import ConfigError
from ppcls.data.index.cifar import Cifar10
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

CHAIN = (DecodeImage(), ResizeImage(size=(32, 32)), NormalizeImage())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_cifar(tmp_path)


def packed(folder: Path) -> Path:
    path = folder.parent / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, FOLDER)
    return path


def test_archive_and_folder_hold_the_same_images(folder: Path) -> None:
    pixels, labels = images(20, seed=5)
    for source in (folder, packed(folder)):
        index = Cifar10(data_file=str(source), mode="test", transform_ops=CHAIN).read(10)
        assert index.labels.tolist() == labels
        decoded = cv2.imdecode(np.frombuffer(index.read(3), np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(decoded[:, :, ::-1], pixels[3].reshape(3, 32, 32).transpose(1, 2, 0))
        assert len(Cifar10(data_file=str(source), transform_ops=CHAIN).read(10)) == 100
        assert index.where(3) == "image 3"


def test_few_images_per_class_are_drawn_by_the_seed_and_repeated(folder: Path) -> None:
    few = {"data_file": str(folder), "sample_per_label": 2, "expand_labels": 3, "transform_ops": CHAIN}
    index = Cifar10(**few).read(10)
    assert np.bincount(index.labels).tolist() == [6] * 10
    chosen = [index.read(position) for position in range(20)]
    assert len(set(chosen)) == 20
    assert chosen == [index.read(position) for position in range(40, 60)]
    again, other = (Cifar10(**few, sample_seed=seed).read(10) for seed in (0, 1))
    assert [again.read(position) for position in range(20)] == chosen
    assert [other.read(position) for position in range(20)] != chosen
    with pytest.raises(UserError, match="class 0 has 10 images, but sample_per_label is 11"):
        Cifar10(**{**few, "sample_per_label": 11}).read(10)


def test_files_that_are_no_cifar_are_named(folder: Path, tmp_path: Path) -> None:
    def reading(source: Path, text: str) -> None:
        with pytest.raises(UserError, match=text):
            Cifar10(data_file=str(source), mode="test", transform_ops=CHAIN).read(10)

    reading(tmp_path / "missing.tar.gz", r"missing\.tar\.gz: no such file; download")
    empty = tmp_path / "other.tar"
    with tarfile.open(empty, "w") as tar:
        tar.addfile(tarfile.TarInfo("readme"), io.BytesIO())
    reading(empty, "test_batch.* not found")
    empty.write_bytes(b"no archive")
    reading(empty, r"^[^\n]* can't read cifar-10-python\.tar\.gz: [^\n]*; set data_file of the [^\n]*$")
    batch = folder / "test_batch"
    batch.write_bytes(written_by_python_2(images(4, 0)[0], [1, 2, 3]))
    reading(folder, r"test_batch: expected the contents of a CIFAR-10 file: 'data' \[N, 3072\] uint8")
    batch.write_bytes(written_by_python_2(images(2, 0)[0], [1, 12]))
    reading(folder, r"label 12 is not in 0\.\.9")
    batch.unlink()
    reading(folder, "test_batch: no such file")


def test_code_in_a_file_is_not_run(folder: Path, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "attacked",)

    (folder / "test_batch").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(
        UserError,
        match="rejected: expected a dataset with only arrays, numbers and text, found a reference to",
    ):
        Cifar10(data_file=str(folder), mode="test", transform_ops=CHAIN).read(10)
    assert not (tmp_path / "attacked").exists()


def test_dataset_of_paddleclas_gets_decoding_and_its_size() -> None:
    normal = {"NormalizeImage": {"order": "hwc"}}
    padded = [
        {"Pad_paddle_vision": {"padding": 4, "padding_mode": "reflect"}},
        {"RandCropImageV2": {"size": 32}},
    ]
    split = {
        "dataset": {
            **{"name": "Cifar10", "data_file": "None", "mode": "train", "download": True, "backend": "pil"},
            **{"sample_per_label": "None", "transform_ops": [*padded, normal]},
        },
        "sampler": {"batch_size": 4},
    }
    evaluated = {**split, "dataset": {**split["dataset"], "mode": "test", "transform_ops": [normal]}}
    tree = {
        "Arch": {"name": "WideResNet", "depth": 28, "widen_factor": 2, "dropout": 0, "num_classes": 10},
        "Optimizer": {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 0.1}},
        "DataLoader": {"Train": split, "Eval": evaluated},
    }
    config = load_config(tree)
    assert config.Arch.class_num == 10
    kinds = [[op.kind for op in split.dataset.transform_ops] for split in config.DataLoader.splits.values()]
    decoded = ["DecodeImage", "ResizeImage"]
    assert kinds == [[*decoded, "Pad", "RandCropImageV2", "NormalizeImage"], [*decoded, "NormalizeImage"]]
    assert config.DataLoader.need_train().dataset.place.endswith("cifar-10-python.tar.gz")
    again = load_config(config.model_dump(mode="json"))
    chains = [loaded.DataLoader.need_train().dataset.transform_ops for loaded in (config, again)]
    assert chains[0] == chains[1]
    tree["DataLoader"]["Train"]["dataset"]["mode"] = "all"
    with pytest.raises(ConfigError, match="mode: expected 'train' or 'test', got 'all'"):
        load_config(tree)


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_archive_of_any_compression_is_named(kind: str, folder: Path) -> None:
    path = folder.parent / f"cifar.tar.{kind}"
    with tarfile.open(path, f"w:{kind}") as tar:  # type: ignore[call-overload]
        tar.add(folder, FOLDER)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:middle],
        whole[:200],
        whole[:middle] + bytes(64) + whole[middle + 64 :],
        b"\xfd7zXZ\0",
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cifar\.tar"):
            Cifar10(data_file=str(path), mode="test", transform_ops=CHAIN).read(10)


@pytest.mark.hostile
def test_negative_size_of_a_member_is_named(folder: Path) -> None:
    path = folder.parent / "cifar.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a")
        member.size = 600
        member.pax_headers = {"size": "-1536"}
        tar.addfile(member, io.BytesIO(bytes(600)))
    with pytest.raises(UserError, match=r"cifar\.tar: can't read"):
        Cifar10(data_file=str(path), mode="test", transform_ops=CHAIN).read(10)
