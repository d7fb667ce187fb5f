"""Field types for components that YAML selects by name: list items, mappings with ``name``, and variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ppcls.config.base.problems import error_at, expected
from ppcls.config.base.section import Section, Spec
from ppcls.registry import Registry, UnknownNameError


def _dump(section: Section) -> dict[str, Any]:
    return section.model_dump(mode="json")


def _choose(registry: Registry, name: Any, params: Any) -> Spec:
    if not isinstance(name, str):
        raise expected(f"the name of the {registry.kind}", name)
    cls = cast(type[Spec], registry[name])
    if not isinstance(params, (dict, type(None))):
        raise expected("a mapping of its parameters", params)
    return cls.model_validate(params or {})


@dataclass(frozen=True)
class Keyed:
    """Field type of a list item ``{Name: parameters}`` or ``Name``, as in ``transform_ops``."""

    registry: Registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Spec:
            if isinstance(value, Spec):
                return value
            if isinstance(value, str):
                value = {value: None}
            if not isinstance(value, dict) or len(value) != 1:
                raise expected(f"one {self.registry.kind} as 'Name: parameters'", value)
            ((name, params),) = value.items()
            try:
                return _choose(self.registry, name, params)
            except UnknownNameError as error:
                raise error_at(f"unknown {self.registry.kind}{error.hint}", name) from None

        def write(value: Spec) -> dict[str, Any]:
            return {value.kind: _dump(value)}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


@dataclass(frozen=True)
class Tagged:
    """Field type of a mapping whose key ``name`` selects the component, as in ``Optimizer``."""

    registry: Registry
    default: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Spec:
            if isinstance(value, Spec):
                return value
            if isinstance(value, dict) and self.default is not None:
                value = {"name": self.default, **value}
            if not isinstance(value, dict) or "name" not in value:
                raise expected(f"a mapping with the key 'name' of the {self.registry.kind}", value)
            params = {key: argument for key, argument in value.items() if key != "name"}
            try:
                return _choose(self.registry, value["name"], params)
            except UnknownNameError as error:
                raise error_at(str(error), "name") from None

        def write(value: Spec) -> dict[str, Any]:
            return {"name": value.kind, **_dump(value)}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


@dataclass(frozen=True)
class Variants:
    """Field type of a section whose class depends on the value of its key ``name``.

    Attributes:
        plain: Class for all names that are not in ``others``.
        others: Maps names to classes.
    """

    plain: type[Section]
    others: Mapping[str, type[Section]] = field(hash=False)  # `typing` hashes the parts of `X | None`

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Section:
            if isinstance(value, (self.plain, *self.others.values())):
                return cast(Section, value)
            name = value.get("name") if isinstance(value, dict) else None
            return self.others.get(name if isinstance(name, str) else "", self.plain).model_validate(value)

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(_dump)
        )
