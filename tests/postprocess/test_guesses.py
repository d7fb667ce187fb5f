"""Names that users of similar libraries guess get advice that names what exists."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppcls import Classifier
from ppcls.classifier import Evaluation, Predictions, TrainingRun
from ppcls.deploy.pictures import list_pictures, read_picture
from ppcls.errors import UserError
from ppcls.postprocess.guesses import ExplainsGuesses
from ppcls.postprocess.results import Classification

CLASSES: list[type[ExplainsGuesses]] = [Classifier, TrainingRun, Evaluation, Predictions, Classification]


def names_of(cls: type) -> set[str]:
    own = {each.name for each in fields(cls)} if is_dataclass(cls) else set()
    return {*dir(cls), *own, *({"labels"} if cls is Predictions else set())}


@pytest.mark.parametrize("cls", CLASSES)
def test_advice_names_what_exists(cls: type[ExplainsGuesses]) -> None:
    guessed = [name for names in cls.guessed_attributes for name in names.split()]
    assert sorted(set(guessed)) == sorted(guessed)
    assert not set(guessed) & names_of(cls)
    for advice in cls.guessed_attributes.values():
        if used := re.match(r"use ([a-z_]+)", advice):
            assert used[1] in names_of(cls) | {"len", "pandas", "predict"}, advice


def test_unknown_attribute_has_advice() -> None:
    result = Classification((2,), ("cat",), (0.9,))
    with pytest.raises(AttributeError, match=r"'Classification' object has no attribute 'label'; use names"):
        result.label  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        result.xyzzy  # type: ignore[attr-defined] # noqa: B018
    assert not hasattr(result, "label")
    with pytest.raises(AttributeError, match=r"'fit'; use train\(folder\)"):
        Classifier("ResNet18").fit  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"'to_df'; use to_dataframe\(\)"):
        Predictions([result], ["a.jpg"]).to_df  # type: ignore[attr-defined] # noqa: B018


def test_objects_can_be_copied_and_pickled() -> None:
    result = Classification((2,), ("cat",), (0.9,))
    assert copy.deepcopy(result) == result
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"top_k": 3}, "predict.*'top_k'; use topk=5"),
        ({"conf": 0.5}, r"'conf'; use predict\(\.\.\.\)\.above\(0\.5\)"),
        ({"source": "a.jpg"}, "'source'; pass the images as the first argument"),
        ({"xyzzy": 1}, "'xyzzy'$"),
    ],
)
def test_unknown_argument_has_advice(arguments: dict[str, Any], advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        Classifier("ResNet18").predict("a.jpg", **arguments)


def test_other_arguments_are_explained(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'num_classes'; the folder of train\(\) determines the classes"):
        Classifier("ResNet18", num_classes=10)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"no such architecture.*set pretrained hf-hub:timm/resnet18"):
        Classifier("timm/resnet18")
    model = Classifier("ResNet18")
    with pytest.raises(UserError, match=r"got dict; docs/own-data\.md says how to use lists$"):
        model.train({"path": []})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"freeze: expected True or False, got 10$"):
        model.train(tmp_path, freeze=10)
    with pytest.raises(UserError, match=r"unknown option 'callbacks'; Global\.hooks in docs/python\.md"):
        model.train(tmp_path, callbacks=[print])


def test_open_files_are_images_and_other_values_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(file)
    with file.open("rb") as opened:
        (picture,) = list_pictures(opened)  # type: ignore[arg-type]
        assert read_picture(picture) == file.read_bytes()
    with file.open(encoding="latin-1") as text, pytest.raises(UserError, match="binary mode"):
        read_picture(text)
    for value in (None, 3, {"a": 1}):
        with pytest.raises(UserError, match=r"images: expected an image .*, got "):
            list_pictures(value)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"\*\.gif: no file matches this pattern"):
        list_pictures(tmp_path / "*.gif")
    assert repr(Predictions([], [])) == "no images"
