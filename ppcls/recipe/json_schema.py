"""Writes the JSON schema of the config, which editors use to complete keys and to mark invalid values.

    python -m ppcls.recipe.json_schema configs/schema.json
    python -m ppcls.recipe.json_schema mine.json my_parts      # with the components of your own modules

Decisions:
- The schema follows from the same classes as the validation and docs/config.md. Nothing is described twice.
- It accepts every valid config. Rules that involve several keys, and old keys that ppcls translates before
  the validation, are left to ppcls: an editor must not mark what a run accepts.
- Draft 7, because the YAML language server supports no newer draft completely.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from ppcls.config.base.choices import Keyed, Tagged, Variants
from ppcls.config.base.fields import Bound, BoundOrAuto
from ppcls.config.base.section import Section
from ppcls.errors import UserError
from ppcls.files import write_text
from ppcls.recipe.reference import description
from ppcls.recipe.schema import Config
from ppcls.registry import Registry, import_user_module
from ppcls.zoo import ZOO

Schema = dict[str, Any]
_TYPES: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
}
# Texts such as 1.0/255.0, as in PaddleClas's files; see `ppcls.config.base.fields.read_number`.
_QUOTIENT: Schema = {"type": "string", "pattern": "^[-+0-9.eE \\t]+/[-+0-9.eE \\t]+$"}


class SchemaWriter:
    """Collects the schemas of sections as definitions, which refer to each other by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def section(self, cls: type[Section]) -> Schema:
        """Returns a reference to the schema of a section, and adds that schema to the definitions."""
        name = cls.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # ends the recursion of sections that contain themselves
            self.definitions[name] = self._object(cls)
        return {"$ref": f"#/definitions/{name}"}

    def _object(self, cls: type[Section]) -> Schema:
        properties: dict[str, Schema] = {}
        for name, field in cls.model_fields.items():
            schema = self._field(cls, name, field)
            if "$ref" in schema:
                schema = {"allOf": [schema]}  # draft 7 ignores keys beside $ref, such as the description
            properties[name] = {**schema, "description": description(cls, name)}
        for name, reason in cls.ignored.items():
            properties[name] = {"description": f"Ignored: {reason}.", "deprecated": True}
        required = [name for name, field in cls.model_fields.items() if field.is_required()]
        section: Schema = {
            "type": "object",
            "description": " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()),
            "properties": properties,
            "additionalProperties": False,
        }
        return {**section, "required": required} if required else section

    def _field(self, cls: type[Section], name: str, field: FieldInfo) -> Schema:
        # A validator that runs before the others reads additional spellings, such as one number for a list of
        # equal numbers. They can't be derived from the type, so such a key accepts anything here. Components
        # have no other spellings.
        component = any(isinstance(item, (Keyed, Tagged)) for item in field.metadata)
        before = not component and any(
            name in decorator.info.fields and decorator.info.mode == "before"
            for decorator in cls.__pydantic_decorators__.field_validators.values()
        )
        return {} if before else self.type(field.annotation, tuple(field.metadata))

    def type(self, annotation: Any, metadata: tuple[Any, ...] = ()) -> Schema:
        """Returns the schema of the values that a type accepts."""
        for item in metadata:
            match item:
                case BeforeValidator():
                    return {}
                case Bound():
                    return self._number(annotation, item)
                case Keyed():
                    return self._keyed(item.registry)
                case Tagged():
                    return self._tagged(item.registry, item.default)
                case Variants():
                    return {"anyOf": [self.section(cls) for cls in (item.plain, *item.others.values())]}
        origin = get_origin(annotation)
        arguments = get_args(annotation)
        if hasattr(annotation, "__metadata__"):
            return self.type(annotation.__origin__, annotation.__metadata__)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, UnionType):
            return {"anyOf": [self.type(argument) for argument in arguments]}
        if origin is tuple and arguments[-1] is Ellipsis:
            return {"type": "array", "items": self.type(arguments[0])}
        if origin is tuple:
            count = len(arguments)
            items = [self.type(argument) for argument in arguments]
            return {"type": "array", "items": items, "minItems": count, "maxItems": count}
        if annotation is type(None):
            return {"type": "null"}
        if isinstance(annotation, type) and issubclass(annotation, Section):
            return self.section(annotation)
        return dict(_TYPES.get(annotation, {}))

    def _number(self, annotation: Any, bound: Bound) -> Schema:
        limits = {
            "exclusiveMinimum": bound.gt,
            "minimum": bound.ge,
            "exclusiveMaximum": bound.lt,
            "maximum": bound.le,
        }
        number: Schema = {"type": "integer" if annotation is int else "number"}
        number |= {key: limit for key, limit in limits.items() if limit is not None}
        choices = [number]
        if annotation is not int:
            choices.append(_QUOTIENT)
        if isinstance(bound, BoundOrAuto):
            choices.append({"const": "auto"})
        return choices[0] if len(choices) == 1 else {"anyOf": choices}

    def _keyed(self, registry: Registry) -> Schema:
        """Returns the schema of ``Name`` or ``{Name: parameters}``, a definition of its own."""
        key = f"{registry.kind}, keyed"
        if key not in self.definitions:
            self.definitions[key] = {}
            parameters = {
                name: {"anyOf": [self.section(registry[name]), {"type": "null"}]} for name in registry
            }
            keyed = {
                "type": "object",
                "properties": parameters,
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            }
            self.definitions[key] = {"anyOf": [{"enum": list(registry)}, keyed]}
        return {"$ref": f"#/definitions/{key}"}

    def _tagged(self, registry: Registry, default: str | None) -> Schema:
        """Returns the schema of ``{name: NAME, parameter: value}``, a definition of its own."""
        key = f"{registry.kind}, tagged"
        if key not in self.definitions:
            self.definitions[key] = {}
            choices = []
            for name in registry:
                self.section(registry[name])
                plain = self.definitions[registry[name].__name__]
                required = [*([] if name == default else ["name"]), *plain.get("required", [])]
                properties = {"name": {"const": name}, **plain["properties"]}
                choices.append({**plain, "properties": properties, "required": required})
            self.definitions[key] = {"anyOf": choices}
        return {"$ref": f"#/definitions/{key}"}


def write_schema() -> Schema:
    """Returns the JSON schema of a whole config."""
    writer = SchemaWriter()
    root = writer.section(Config)["$ref"]
    names = writer.definitions["Arch"]["properties"]["name"]
    names["examples"] = sorted(ZOO)  # not an enumeration: users register their own architectures
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A config of ppcls",
        "allOf": [{"$ref": root}],
        "definitions": writer.definitions,
    }


def main(arguments: Sequence[str]) -> None:
    """Writes the schema to a file, or to the standard output without arguments.

    Args:
        arguments: A file, then modules to import before, whose components the schema contains.
    """
    for module in arguments[1:]:
        import_user_module(module, "the module")
    text = json.dumps(write_schema(), indent=1, ensure_ascii=False) + "\n"
    if arguments:
        write_text(Path(arguments[0]), text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
