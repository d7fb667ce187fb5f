"""Names in YAML to the objects behind them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ppcls import registry
from ppcls.config.sections.transform import Transform
from ppcls.registry import Registry, UnknownNameError, suggest

ALL = [each for each in vars(registry).values() if isinstance(each, Registry)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CropImag", "; did you mean 'CropImage'?"),
        ("cropimage", "; did you mean 'CropImage'?"),
        ("RandomCropImage", "; did you mean 'RandCropImage'?"),
        ("xyz", "; known: CropImage, RandCropImage"),
        ("", "; known: CropImage, RandCropImage"),
    ],
)
def test_nearest(name: str, hint: str) -> None:
    assert suggest(name, ["RandCropImage", "CropImage"]) == hint


def test_nothing_is_near_where_nothing_is_known() -> None:
    assert suggest("x", []) == ""


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Registry("fruit", {"apple": "a:b", "pear": "c:d"})["aple"]
    assert str(caught.value) == "unknown fruit 'aple'; did you mean 'apple'?"
    assert caught.value.hint == "; did you mean 'apple'?"
    assert isinstance(caught.value, ValueError)


def test_an_entry_is_imported_when_it_is_looked_up() -> None:
    shelf = Registry("fruit", {"apple": "no.such.module:Apple", "path": "pathlib:Path"})
    assert "apple" in shelf
    assert "pear" not in shelf
    assert list(shelf) == ["apple", "path"]
    assert shelf["path"].__name__ == "Path"
    with pytest.raises(ModuleNotFoundError):
        shelf["apple"]


def test_register() -> None:
    shelf = Registry("fruit", {})
    shelf.register("three", 3)
    shelf.register("path", "pathlib:Path")
    assert (shelf["three"], shelf["path"].__name__) == (3, "Path")
    with pytest.raises(ValueError, match="fruit 'three' is registered twice"):
        shelf.register("three", 4)
    assert shelf["three"] == 3


def test_registries_do_not_share_entries() -> None:
    entries = {"a": "pathlib:Path"}
    first, second = Registry("x", entries), Registry("x", entries)
    first.register("b", 1)
    assert "b" not in second
    assert entries == {"a": "pathlib:Path"}


@pytest.mark.parametrize("shelf", ALL, ids=lambda shelf: shelf.kind)
def test_every_shipped_name_leads_to_something(shelf: Registry) -> None:
    for name in shelf:
        assert callable(shelf[name])


def test_names_are_those_of_the_classes() -> None:
    for name in registry.TRANSFORMS:
        cls = registry.TRANSFORMS[name]
        assert issubclass(cls, Transform)
        assert cls.__name__ == name


def test_the_vocabulary_is_known_without_paddle() -> None:
    code = (
        "import sys\n"
        "from ppcls import registry as r\n"
        "for shelf in (r.TRANSFORMS, r.LOSSES, r.METRICS, r.OPTIMIZERS, r.SCHEDULES, r.DATASETS):\n"
        "    [shelf[name] for name in shelf]\n"
        "assert list(r.ARCHITECTURES)\n"
        "print('paddle' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
