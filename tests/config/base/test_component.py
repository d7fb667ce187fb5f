"""How components register themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import pytest
from pydantic_core import InitErrorDetails

from ppcls.config.base.choices import Keyed, Tagged
from ppcls.config.base.component import Component, find_sections, section_problems
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.problems import problem
from ppcls.config.base.section import Section
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


def test_alias_selects_the_component_but_not_its_subclasses() -> None:
    class Hammer(Thing):
        aliases: ClassVar[tuple[str, ...]] = ("Mallet",)

    class Sledgehammer(Hammer):
        pass

    assert THINGS["Mallet"] is THINGS["Hammer"] is Hammer
    assert THINGS["Sledgehammer"] is Sledgehammer


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


FACTS = RunFacts(class_num=3, architectures=("ResNet18",), epochs=2, evaluates=True, retrieval=False)
PARTS = Registry("part")


class Part(Component, registry=PARTS):
    size: int = 1

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        if self.size > facts.class_num:
            yield problem(f"at most {facts.class_num} in '{part}'", "size")


class Wheel(Part):
    pass


class Axle(Part):
    wheel: Annotated[Part, Tagged(PARTS)] = Wheel()


class Side(Section):
    axle: Annotated[Part, Tagged(PARTS)]


class Car(Section):
    left: Side
    spare: tuple[Annotated[Part, Keyed(PARTS)], ...] = ()

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        if len(self.spare) > facts.epochs - 1:
            yield problem(f"too many in '{part}'", "spare")


class Garage(Section):
    car: Car


def test_sections_are_found_with_their_part() -> None:
    tree = {"left": {"axle": {"name": "Axle", "wheel": {"name": "Wheel", "size": 4}}}}
    garage = Garage.model_validate({"car": {**tree, "spare": ["Wheel", {"Wheel": {"size": 5}}]}})
    found = [(loc, part, type(section).__name__) for loc, part, section in find_sections(garage)]
    assert found == [
        (("car",), "", "Car"),
        (("car", "left"), "", "Side"),
        (("car", "left", "axle"), "left", "Axle"),
        (("car", "left", "axle", "wheel"), "left.axle", "Wheel"),
        (("car", "spare", 0, "Wheel"), "spare", "Wheel"),
        (("car", "spare", 1, "Wheel"), "spare", "Wheel"),
    ]
    problems = [(each["loc"], str(each["type"])) for each in section_problems(garage, FACTS)]
    assert problems == [
        (("car", "spare"), "too many in ''"),
        (("car", "left", "axle", "wheel", "size"), "at most 3 in 'left.axle'"),
        (("car", "spare", 1, "Wheel", "size"), "at most 3 in 'spare'"),
    ]
