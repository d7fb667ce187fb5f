"""Datasets in Python code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from ppcls.data.index.protocol import Index
from ppcls.data.index.python_source import PythonDataset, register_source
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError
from ppcls.registry import SOURCES

CHAIN = (DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage())


class Samples:
    def __init__(self, labels: Any, images: Any = ()) -> None:
        self.labels, self.images = labels, images

    def __len__(self) -> int:
        return 2

    def __getitem__(self, position: int) -> Any:
        image = self.images[position]
        if isinstance(image, Exception):
            raise image
        return image


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOURCES, "_entries", {})


def read(samples: Samples, class_num: int = 3) -> Index:
    register_source("mine", lambda: samples)
    return PythonDataset(source="mine", transform_ops=CHAIN).read(class_num)


@pytest.mark.parametrize("labels", [[2, 0], (2, 0), np.array([2, 0], np.uint8)], ids=type)
def test_read_source_returns_images_and_labels(labels: Any) -> None:
    index = read(Samples(labels, [b"one", b"two"]))
    assert len(index) == 2
    assert index.labels.tolist() == [2, 0]
    assert index.labels.dtype == np.int64
    assert [index.read(0), index.read(1)] == [b"one", b"two"]
    assert f"{index.name(1)} ({index.where(1)})" == "Python source 'mine' (sample 1)"
    assert str(index.source) == "mine"


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([1, 2, 0], "[3] int64"),
        ([0.0, 1.0], "[2] float64"),
        (["a", "b"], "[2] <U1"),
        ([[0], [1]], "[2, 1] int64"),
        ([], "[0] float64"),
    ],
)
def test_read_source_rejects_labels_of_wrong_shape_or_dtype(labels: Any, found: str) -> None:
    expected = re.escape(f"expected one whole number per sample as labels, of shape [2], found {found}")
    with pytest.raises(UserError, match=f"Python source 'mine': {expected}"):
        read(Samples(labels))


def test_read_source_rejects_labels_out_of_range() -> None:
    with pytest.raises(UserError) as caught:
        read(Samples([3, -1]))
    assert str(caught.value).splitlines() == [
        "Python source 'mine', sample 0: label 3 is not in 0..2; Arch.class_num is 3",
        "Python source 'mine', sample 1: label -1 is not in 0..2; Arch.class_num is 3",
    ]


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (np.zeros((2, 2, 3), np.uint8), "expected an encoded image as bytes, got ndarray"),
        (None, "expected an encoded image as bytes, got NoneType"),
        (b"", "expected an encoded image, got 0 bytes"),
        (FileNotFoundError(2, "No such file or directory"), "no such file or directory"),
        (OSError("the server is away"), "the server is away"),
    ],
)
def test_python_index_rejects_values_that_are_not_images(image: Any, text: str) -> None:
    index = read(Samples([0, 1], [image, image]))
    with pytest.raises(DecodeError, match=text):
        index.read(0)


def test_python_index_raises_other_errors_of_the_source() -> None:
    with pytest.raises(ZeroDivisionError):
        read(Samples([0, 1], [ZeroDivisionError()] * 2)).read(0)


def test_python_dataset_rejects_unknown_source() -> None:
    register_source("my images", lambda: Samples([0, 1]))
    with pytest.raises(ValidationError) as caught:
        PythonDataset(source="my image", transform_ops=CHAIN)
    assert (
        "unknown Python source 'my image'; did you mean 'my images'?; register it with "
        "ppcls.data.index.python_source.register_source before loading the config"
    ) in str(caught.value)


def test_register_source_rejects_second_use_of_a_name() -> None:
    register_source("mine", lambda: Samples([0, 1]))
    with pytest.raises(ValueError, match="Python source 'mine' is registered twice"):
        register_source("mine", lambda: Samples([0, 1]))
