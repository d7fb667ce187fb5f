"""Field types of the config: numbers with bounds, and components selected by name."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema
from typing_extensions import LiteralString, Self

from ppcls.config.base.bounds import Bounds
from ppcls.registry import Registry, UnknownNameError, suggest

if TYPE_CHECKING:
    from ppcls.config.base.component import RunFacts

MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # text in YAML 1.1, but a number in YAML 1.2
_QUOTIENT = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*/\s*([\d.]+(?:[eE][-+]?\d+)?)\s*")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 8


def show(value: Any) -> str:
    """Returns a YAML value as text for error messages. Long values are shortened."""
    return _SHORT.repr(value)


UNKNOWN_KEY = "unknown_key"  # type of the errors about unknown keys


def problem(text: str, *loc: int | str, kind: LiteralString = "problem") -> InitErrorDetails:
    """Returns one validation error.

    Args:
        text: Message of the error.
        loc: Location of the error, relative to the section that raises it.
        kind: Type of the error.
    """
    return InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=loc, input=None)


def error_at(text: str, *loc: int | str) -> ValidationError:
    """Returns an exception with a single `problem`, which a validator can raise."""
    return ValidationError.from_exception_data("problem", [problem(text, *loc)])


def located(problems: Iterable[InitErrorDetails], *loc: int | str) -> Iterator[InitErrorDetails]:
    """Yields problems of a part of a section, located relative to the section.

    Args:
        problems: Problems, located relative to the part.
        loc: Location of the part in the section.
    """
    for error in problems:
        yield {**error, "loc": (*loc, *error.get("loc", ()))}


def explain(error: ErrorDetails) -> str:
    """Returns pydantic's error as a message with the terms of YAML: the expected and the actual value."""
    context = error.get("ctx", {})
    got = show(error["input"])
    match error["type"]:
        case "missing":
            return "missing; it has no default"
        case "bool_type" | "bool_parsing":
            return f"expected True or False, got {got}"
        case "string_type":
            return f"expected text, got {got}"
        case "literal_error":
            return f"expected {context['expected']}, got {got}"
        case "model_type" | "dict_type":
            return f"expected a mapping, got {got}"
        case "tuple_type" | "list_type":
            return f"expected a list, got {got}"
        case "too_short" | "too_long":
            few = error["type"] == "too_short"
            limit = f"at least {context['min_length']}" if few else f"at most {context['max_length']}"
            return f"expected {limit} item(s), got {got}"
        case "string_too_short":
            return f"expected at least {context['min_length']} character(s), got {got}"
        case "value_error":
            return str(context["error"])
        case _:
            return error["msg"]


def _follows_from_items(error: ErrorDetails) -> bool:
    """Returns whether a list is too short only because some of its items are invalid and reported."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _kind(error: ErrorDetails) -> LiteralString:
    """Returns the type of the error that replaces ``error``."""
    return UNKNOWN_KEY if error["type"] == UNKNOWN_KEY else "problem"


class Section(BaseModel):
    """Base class of config sections. Rejects unknown keys, reports all errors at once, and is frozen.

    Attributes:
        key_hints: Unsupported keys that users of other trainers may write, each with advice.
        ignored: Keys that neither PaddleClas nor ppcls uses, each with the reason or the key to use instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    key_hints: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Mapping[str, str]] = {}
    _ignored_keys: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        known = data
        problems = []
        if isinstance(data, dict):
            known = {key: value for key, value in data.items() if key in cls.model_fields}
            problems = [
                problem(f"unknown key{cls._hint(str(key))}", str(key), kind=UNKNOWN_KEY)
                for key in data
                if key not in known and key not in cls.ignored
            ]
        try:
            section = handler(known)
        except ValidationError as error:
            problems += [
                problem(explain(details), *details["loc"], kind=_kind(details))
                for details in error.errors(include_url=False)
                if not _follows_from_items(details)
            ]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        if isinstance(data, dict):
            section._ignored_keys = tuple(key for key in data if key in cls.ignored)
        return section

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Keys of `ignored` that the config contains."""
        return self._ignored_keys

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of this section with other sections, located relative to this section.

        Args:
            facts: What the rules may know about the run.
            part: Keys between the section of the config and this section, such as ``Train`` for
                ``Loss.Train``, ``Eval.Query`` for ``DataLoader.Eval.Query.sampler``, and "" for
                ``Optimizer``.
        """
        yield from ()

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields a line for each key that has no effect in this run, or a limited one.

        A line starts with the key. See `problems` for the arguments.
        """
        yield from ()

    @classmethod
    def _hint(cls, key: str) -> str:
        hint = cls.key_hints.get(key)
        return f"; {hint}" if hint else suggest(key, list(cls.model_fields), "docs/config.md lists all keys")


class Spec(Section):
    """Base class of sections that YAML selects by their class names, such as transforms and losses."""

    @property
    def kind(self) -> str:
        """Name of the section in YAML."""
        return type(self).__name__


def expected(what: str, got: Any) -> PydanticCustomError:
    """Returns the error that a field type raises, with the expected and the actual value."""
    return PydanticCustomError("expected", "expected {what}, got {got}", {"what": what, "got": show(got)})


def read_number(value: Any) -> Any:
    """Returns text such as ``"1.0/255.0"``, as in PaddleClas's files, as a number; other values unchanged.

    Text such as ``"2e-6"``, a number without a point, is also read, because ``yaml.safe_load`` returns it.
    """
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    if isinstance(value, str) and (match := _QUOTIENT.fullmatch(value)):
        try:
            return float(match[1]) / float(match[2])
        except (ValueError, ZeroDivisionError):
            return value
    return value


@dataclass(frozen=True)
class Bound(Bounds):
    """Bounds of a field, which is read and checked by pydantic; see `Bounds`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = (int,) if source is int else (int, float)

        def check(value: Any) -> Any:
            number = value if source is int else read_number(value)
            if isinstance(number, bool) or not isinstance(number, kinds) or not self.holds(number):
                raise expected(self.describe(source), value)
            return number

        return core_schema.no_info_before_validator_function(check, handler(source))


@dataclass(frozen=True)
class BoundOrAuto(Bound):
    """Bounds of a field that may also be ``auto`` in YAML. ``auto`` becomes a number before validation."""

    def describe(self, source: type) -> str:
        """Returns the accepted values as text, such as ``an integer > 0 or auto``."""
        return f"{super().describe(source)} or auto"


# The upper bounds reject mistyped numbers, which could otherwise exhaust the memory during the run.
MAX_SIDE = 16_384  # pixels
MAX_CLASSES = 10_000_000
Count = Annotated[int, Bound(gt=0)]
ClassCount = Annotated[int, Bound(gt=0, le=MAX_CLASSES)]
ClassCountOrAuto = Annotated[int, BoundOrAuto(gt=0, le=MAX_CLASSES)]
BatchSize = Annotated[int, Bound(gt=0, le=1_000_000)]
Workers = Annotated[int, Bound(gt=0, le=4096)]
Side = Annotated[int, Bound(gt=0, le=MAX_SIDE)]
Index = Annotated[int, Bound(ge=0)]
Number = Annotated[float, Bound()]
Positive = Annotated[float, Bound(gt=0)]
NonNegative = Annotated[float, Bound(ge=0)]
Fraction = Annotated[float, Bound(ge=0, le=1)]
Part = Annotated[float, Bound(gt=0, lt=1)]
Decay = Annotated[float, Bound(ge=0, lt=1)]


def _check_module(value: str) -> str:
    if not MODULE_NAME.fullmatch(value):
        raise ValueError(f"expected the name of a Python module such as my_parts, got {show(value)}")
    return value


ModuleName = Annotated[str, AfterValidator(_check_module)]


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
    others: Mapping[str, type[Section]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Section:
            if isinstance(value, (self.plain, *self.others.values())):
                return cast(Section, value)
            name = value.get("name") if isinstance(value, dict) else None
            return self.others.get(name if isinstance(name, str) else "", self.plain).model_validate(value)

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(_dump)
        )
