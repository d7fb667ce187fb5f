"""Names in YAML to the objects behind them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ppcls import registry
from ppcls.data.transforms.base import Transform
from ppcls.registry import Registry, UnknownNameError, suggest

ALL = [each for each in vars(registry).values() if isinstance(each, Registry)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CropImag", "; did you mean 'CropImage'?"),
        ("cropimage", "; did you mean 'CropImage'?"),
        ("RandomCropImage", "; did you mean 'RandCropImage'?"),
        ("Rand", "; did you mean 'RandCropImage'?"),
        ("xyz", "; known: CropImage, RandCropImage"),
        ("", "; known: CropImage, RandCropImage"),
    ],
)
def test_suggest_similar_or_known_names(name: str, hint: str) -> None:
    assert suggest(name, ["RandCropImage", "CropImage"]) == hint


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("x", [], ""),
        ("last_epoch", ["by_epoch"], "; known: by_epoch"),
        ("V3", ["V2"], "; known: V2"),
        ("NetV3", ["NetV2", "NetV3_large", "NetV3_s"], "; did you mean 'NetV3_s' or 'NetV3_large'?"),
        ("z", [str(n) for n in range(13)], "; see docs"),
    ],
)
def test_suggest_prefers_same_prefix_and_shows_no_long_list(name: str, known: list[str], hint: str) -> None:
    assert suggest(name, known, "see docs") == hint


def test_registry_unknown_name_suggests_a_similar_one() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Registry("fruit", {"apple": "a:b", "pear": "c:d"})["aple"]
    assert str(caught.value) == "unknown fruit 'aple'; did you mean 'apple'?"
    assert caught.value.hint == "; did you mean 'apple'?"
    assert isinstance(caught.value, ValueError)


def test_registry_imports_an_entry_on_first_use() -> None:
    registered = Registry("fruit", {"apple": "no.such.module:Apple", "path": "pathlib:Path"})
    assert "apple" in registered
    assert "pear" not in registered
    assert list(registered) == ["apple", "path"]
    assert registered["path"].__name__ == "Path"
    with pytest.raises(ModuleNotFoundError):
        registered["apple"]


def test_register_adds_an_entry_once() -> None:
    registered = Registry("fruit", {})
    registered.register("three", 3)
    registered.register("path", "pathlib:Path")
    assert (registered["three"], registered["path"].__name__) == (3, "Path")
    with pytest.raises(ValueError, match="fruit 'three' is registered twice; choose a name"):
        registered.register("three", 4)
    assert registered["three"] == 3


def test_registry_copies_its_entries() -> None:
    entries = {"a": "pathlib:Path"}
    first, second = Registry("x", entries), Registry("x", entries)
    first.register("b", 1)
    assert "b" not in second
    assert entries == {"a": "pathlib:Path"}


@pytest.mark.parametrize("registered", ALL, ids=lambda registered: registered.kind)
def test_registry_shipped_names_exist(registered: Registry) -> None:
    for name in registered:
        assert callable(registered[name])


def test_transforms_names_equal_class_names() -> None:
    for name in registry.TRANSFORMS:
        cls = registry.TRANSFORMS[name]
        assert issubclass(cls, Transform)
        assert cls.__name__ == name


def test_registries_do_not_import_paddle() -> None:
    code = (
        "import sys\n"
        "from ppcls import registry as r\n"
        "for registered in (r.TRANSFORMS, r.LOSSES, r.METRICS, r.OPTIMIZERS, r.SCHEDULES, r.DATASETS):\n"
        "    [registered[name] for name in registered]\n"
        "assert list(r.ARCHITECTURES)\n"
        "print('paddle' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CosineAnnealing", "; did you mean 'Cosine'?"),
        ("cosine_warm_restarts", "; did you mean 'Cosine'?"),
        ("ConstantThenStep", "; did you mean 'Constant'?"),
        ("SGDWithRestarts", "; known: Constant, Cosine, SGD"),
        ("Plateau", "; known: Constant, Cosine, SGD"),
    ],
)
def test_a_longer_name_suggests_the_name_it_starts_with(name: str, hint: str) -> None:
    assert suggest(name, ["Cosine", "Constant", "SGD"]) == hint
