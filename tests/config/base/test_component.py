"""How components register themselves."""

from __future__ import annotations

import pytest

from ppcls.config.base.component import Component
from ppcls.registry import Registry, UnknownNameError

THINGS = Registry("thing")


class Thing(Component, registry=THINGS):
    weight: float = 1.0


class HeavyThing(Thing, abstract=True):
    weight: float = 10.0


def test_subclass_registers_itself_and_abstract_classes_do_not() -> None:
    class Anvil(HeavyThing):
        pass

    assert THINGS["Anvil"] is Anvil
    assert Anvil().weight == 10.0
    assert not {"Thing", "HeavyThing"} & set(THINGS)


def test_redefined_class_replaces_the_class_of_the_same_module() -> None:
    def define(value: int) -> type[Thing]:
        class Cell(Thing):
            size: int = value

        return Cell

    define(1)
    again = define(2)
    assert THINGS["Cell"] is again


def test_same_name_from_another_module_is_an_error() -> None:
    type("Shared", (Thing,), {"__module__": "one"})
    with pytest.raises(ValueError, match="thing 'Shared' is registered twice"):
        type("Shared", (Thing,), {"__module__": "two"})


def test_class_with_invalid_fields_is_not_registered() -> None:
    with pytest.raises(Exception, match="bad"):
        type("Broken", (Thing,), {"__module__": "one", "__annotations__": {"size": "bad type"}, "size": 1})
    with pytest.raises(UnknownNameError):
        THINGS["Broken"]


def test_registry_imports_its_modules_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("importlib.import_module", imported.append)
    registry = Registry("thing", modules=["first", "second"])
    assert not imported
    assert list(registry) == []
    assert "x" not in registry
    assert imported == ["first", "second"]
