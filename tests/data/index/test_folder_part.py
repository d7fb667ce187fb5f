"""Parts of class folders: disjoint, complete, stratified, independent of the location."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT

from ppcls.api import load_config
from ppcls.data.index.files import read_folder
from ppcls.data.index.folders import (
    ImageFolderDataset,
    describe_imbalance,
)
from ppcls.errors import UserError
from ppcls.recipe.load import dump_config


def dataset(root: Path, part: str | None, **fields: object) -> ImageFolderDataset:
    chain = [{"DecodeImage": None}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": None}]
    given = {"image_root": str(root), "part": part, "transform_ops": chain, **fields}
    return ImageFolderDataset.model_validate(given)


def fill(root: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number}.jpg").touch()
    return root


def named(index) -> list[tuple[bytes, int]]:
    return list(zip(index.paths.tolist(), index.labels.tolist(), strict=True))


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    share=st.sampled_from([0.1, 0.2, 0.5]),
    seed=st.integers(0, 5),
)
def test_parts_are_disjoint_and_stratified(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], share: float, seed: int
) -> None:
    root = fill(tmp_path_factory.mktemp("pics"), {f"c {k}": count for k, count in enumerate(counts)})
    total = round(Fraction(str(share)) * sum(counts))
    fields = {"val_share": share, "split_seed": seed}
    if not 0 < total <= sum(counts) - len(counts):
        with pytest.raises(UserError, match=r"DataLoader.Train.dataset.val_share: .*expected"):
            dataset(root, "val", **fields).read(len(counts))
        return
    whole = named(dataset(root, None).read(len(counts)))
    train, val = (named(dataset(root, part, **fields).read(len(counts))) for part in ("train", "val"))
    assert sorted(train + val) == sorted(whole)
    assert len(val) == max(total, sum(count > 1 for count in counts))  # at least one per class
    for label, count in enumerate(counts):
        assert any(each == label for _, each in train)
        assert sum(each == label for _, each in val) <= share * count + 1


def test_parts_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    counts = {"a": 9, "b": 5}
    first, second = (fill(tmp_path / name, counts) for name in ("here", "there"))
    assert named(dataset(first, "val").read(2)) == named(dataset(second, "val").read(2))
    other = [named(dataset(first, "val", split_seed=seed).read(2)) for seed in range(4)]
    assert len({tuple(each) for each in other}) > 1


def test_parts_use_folders_train_and_val(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 3, "b": 2})
    fill(tmp_path / "val", {"a": 1, "b": 0})
    assert len(dataset(tmp_path, "train").read(2)) == 5
    assert named(dataset(tmp_path, "val").read(2)) == [(b"a/0.jpg", 0)]
    (line,) = dataset(tmp_path, "train").describe_classes(
        ("a", "b"), np.array([0, 0, 0, 1, 1]), np.array([0])
    )
    assert (
        line
        == f"{tmp_path}: 2 classes (a, b); 5 training images, 1 validation image (its folders train and val)"
    )


def test_part_train_rejects_class_without_images(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 4, "b": 0, "c": 4, "d": 0})
    with pytest.raises(UserError) as caught:
        dataset(tmp_path, "train", extensions=(".jpg",)).read(4)
    assert str(caught.value).startswith(
        f"{tmp_path}: no images in class folder 'b', 'd'; expected files that end"
    )
    assert "; add images, remove the folder, or train without this class: --on-error skip" in str(
        caught.value
    )
    with pytest.raises(UserError, match=r"or set Arch\.class_num: auto to train without this class"):
        dataset(tmp_path, "train", extensions=(".jpg",), on_error="skip").read(4)
    (tmp_path / "b" / "phone.HEIC").write_bytes(b"x")
    with pytest.raises(UserError, match=r"to use the pictures in \.heic, convert them to JPEG or PNG$"):
        dataset(tmp_path, "train", extensions=(".jpg",)).read(4)
    assert len(dataset(tmp_path, None).read(4)) == 8


@pytest.mark.parametrize("parts", [True, False], ids=["train and val", "random split"])
def test_class_without_images_is_left_out_on_request(parts: bool, tmp_path: Path) -> None:
    train = tmp_path / "train" if parts else tmp_path
    fill(train, {"a": 4, "b": 0, "c": 4})
    if parts:
        fill(tmp_path / "val", {"a": 2, "b": 0, "c": 2})
    key = "DataLoader.Train.dataset"
    overrides = {f"{key}.image_root": str(tmp_path), f"{key}.on_error": "skip"}
    overrides |= {"DataLoader.Eval.dataset.image_root": str(tmp_path)}
    config = load_config("finetune", overrides)
    assert config.class_count(training=True) == 2
    splits = config.DataLoader.splits
    assert {name: split.dataset.folder_classes for name, split in splits.items()} == {
        "Train": ("a", "c"),
        "Eval": ("a", "c"),
    }
    for split in splits.values():
        assert set(split.dataset.read(2).labels.tolist()) == {0, 1}
    (line,) = splits["Train"].dataset.describe_ignored()
    assert line == f"warning: {train}/b: no images, so the model does not have this class (on_error: skip)"
    assert splits["Eval"].dataset.describe_ignored() == []
    assert load_config(yaml.safe_load(dump_config(config))) == config, "as a resumed run reads it"
    image = train / "b" / "late.jpg"
    image.touch()
    with pytest.raises(UserError, match="class folders that are no classes of the model: b"):
        splits["Train"].dataset.read(2)


def test_one_class_with_images_is_too_few(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 4, "b": 0})
    key = "DataLoader.Train.dataset"
    with pytest.raises(UserError, match="only the class folder 'a' has images; expected"):
        load_config("finetune", {f"{key}.image_root": str(tmp_path), f"{key}.on_error": "skip"})


def test_describe_folders_counts_images(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 4, "b": 4})
    names = tuple(f"c{k}" for k in range(12))
    (line,) = dataset(tmp_path, "train", val_share=0.25).describe_classes(names, np.arange(6), np.arange(12))
    shown = ", ".join(names[:10])
    assert (
        line
        == f"{tmp_path}: 12 classes ({shown}, …); 6 training images, 12 validation images (val_share 0.25)"
    )
    assert dataset(tmp_path, None).describe_classes(names, np.arange(12), None) == []


def test_describe_unclassified_images_counts_files(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 1, "b": 1, "looks like one.jpg": 1})
    assert dataset(tmp_path, None).describe_ignored() == []
    (tmp_path / "2.JPG").touch()
    (tmp_path / "notes.txt").touch()
    assert dataset(tmp_path, None).describe_ignored() == [
        f"{tmp_path}: ignored 1 image outside the class folders: 2.JPG"
    ]
    (tmp_path / "1.jpg").touch()
    assert dataset(tmp_path, "train").describe_ignored() == [
        f"{tmp_path}: ignored 2 images outside the class folders: 1.jpg, …"
    ]


def test_describe_unclassified_images_names_both_folders(tmp_path: Path) -> None:
    for part in ("train", "val"):
        fill(tmp_path / part, {"a": 1, "b": 1})
    for name in ("1.jpg", "val/1.jpg", "train/1.jpg"):
        (tmp_path / name).touch()
    found = [line.partition(":")[0] for line in dataset(tmp_path, "val").describe_ignored()]
    assert found == [str(tmp_path), str(tmp_path / "val")]


def test_read_folder_counts_skipped_files_by_ending(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for name in ("1.jpg", "2.GIF", "3.gif", "4.heic", ".hidden", "._1.jpg", "notes"):
        (tmp_path / "cats" / name).touch()
    index = read_folder(tmp_path, (".jpg",))
    assert index.skipped == {".gif": 2, ".heic": 1, "without an ending": 1}
    assert index.paths.tolist() == [b"cats/1.jpg"]


def test_advice_against_imbalance_is_a_valid_setting(tmp_path: Path) -> None:
    text = describe_imbalance(np.array([0] * 60 + [1] * 2), ("cats", "dogs"))
    _, _, setting = text.rpartition("-o ")
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
    config = load_config(
        ROOT / "configs" / "finetune.yaml", [f"DataLoader.Train.dataset.image_root={tmp_path}", setting]
    )
    assert type(config.DataLoader.Train.sampler).__name__ == "ClassBalancedSampler"


def test_describe_imbalance_names_the_images_per_class() -> None:
    labels = np.array([0] * 60 + [1] * 2 + [2])
    text = describe_imbalance(labels, ("cats", "dogs"))
    assert text.startswith(
        "warning: the classes are unbalanced, with these numbers of training images: cats 60, dogs 2, "
        "class 2 1."
    )
    assert text.endswith("--class-weights or -o DataLoader.Train.sampler.name=ClassBalancedSampler")
    assert describe_imbalance(np.array([0] * 9 + [1]), ()) == ""
    assert describe_imbalance(np.zeros((3, 4), np.float32), ()) == ""
    many = describe_imbalance(np.repeat(np.arange(12), np.arange(1, 13)), ())
    assert "class 7 8, …, class 4 5," in many
