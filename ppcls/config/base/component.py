"""The base class of components, and the search for components in a config.

Decisions:
- A component is one class. Its fields are its keys in YAML, its validators and `Section.problems` are its
  rules, and ``build`` makes the object that runs. Built-in components and users' own share the base classes.
- A subclass registers itself. There is no table of names, so a new component is one class in one file.
- Paddle is imported inside ``build``, because a config is checked before Paddle is imported: Paddle reads the
  number of threads and its share of GPU memory when it is imported.
- A rule about other sections reads `RunFacts`, not these sections. Components of different kinds therefore do
  not import each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias

from pydantic_core import InitErrorDetails

# Modules of users may import the first two from here, where they stood before.
from ppcls.config.base.facts import LabelsPerImage as LabelsPerImage
from ppcls.config.base.facts import ModelFacts as ModelFacts
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.problems import located
from ppcls.config.base.section import Section, Spec
from ppcls.registry import Registry

Location: TypeAlias = tuple[int | str, ...]


class Component(Spec):
    """Base class of config sections that YAML selects by their class names, such as losses and samplers.

    The base class of a kind names its registry: ``class Loss(Component, registry=LOSSES)``. Each other
    subclass registers itself under its name, unless it is the base class of several components:
    ``abstract=True``.

    Attributes:
        registry: All components of this kind, by name.
        aliases: More names that select the component. Subclasses do not inherit them.
    """

    registry: ClassVar[Registry]
    aliases: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def registered_name(cls) -> str:
        """Returns the name of the component in YAML: the name of the class."""
        return cls.__name__

    @property
    def kind(self) -> str:
        """Name of the component in YAML."""
        return self.registered_name()

    def __init_subclass__(
        cls, *, registry: Registry | None = None, abstract: bool = False, **config: Any
    ) -> None:
        super().__init_subclass__(**config)
        if registry is not None:
            cls.registry = registry

    @classmethod
    def __pydantic_init_subclass__(
        cls, *, registry: Registry | None = None, abstract: bool = False, **config: Any
    ) -> None:
        # Here the class is complete. A class whose fields are invalid must not be registered.
        super().__pydantic_init_subclass__(**config)
        if registry is None and not abstract:
            for name in (cls.registered_name(), *cls.__dict__.get("aliases", ())):
                cls.registry.register(name, cls)


def find_sections(section: Section, loc: Location = ()) -> Iterator[tuple[Location, str, Section]]:
    """Yields each section in a section: its location, ``part`` and the section itself.

    See `Section.problems` for ``part``.

    Args:
        section: A section of the config.
        loc: Location of the section.
    """
    for key, value in section:
        items: list[tuple[Location, Any]] = [((*loc, key), value)]
        part = loc[1:]
        if isinstance(value, tuple):
            specs = [(position, item) for position, item in enumerate(value) if isinstance(item, Spec)]
            items = [((*loc, key, position, item.kind), item) for position, item in specs]
            part = (*loc, key)[1:]
        for where, item in items:
            if isinstance(item, Section):
                yield where, ".".join(map(str, part)), item
                yield from find_sections(item, where)


def section_problems(section: Section, facts: RunFacts) -> Iterator[InitErrorDetails]:
    """Yields the `Section.problems` of all sections in a config."""
    for loc, part, item in find_sections(section):
        yield from located(item.problems(facts, part), *loc)
