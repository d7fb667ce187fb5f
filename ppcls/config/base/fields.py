"""Field types of the config: bounded numbers, and things chosen by name."""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema
from typing_extensions import Self

from ppcls.registry import Registry, UnknownNameError, nearest

_FRACTION = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*/\s*([\d.]+(?:[eE][-+]?\d+)?)\s*")


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 8


def show(value: Any) -> str:
    """Returns a value of the YAML as an error shows it: as it is, or shortened."""
    return _SHORT.repr(value)


def problem(text: str, *loc: int | str) -> InitErrorDetails:
    """Returns one error with its final text, at ``loc`` below the section that raises it."""
    return InitErrorDetails(
        type=PydanticCustomError("problem", "{text}", {"text": text}), loc=loc, input=None
    )


def explain(error: ErrorDetails) -> str:
    """Returns what was expected and what was found, in words for someone who wrote YAML."""
    context, got = error.get("ctx", {}), show(error["input"])
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
    """Whether a list is too short only because items in it are wrong, which have errors of their own."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


class Section(BaseModel):
    """A part of the config: frozen, refuses keys that it does not know, reports all errors at once."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    elsewhere: ClassVar[Mapping[str, str]] = {}  # keys that other trainers know, and what to write here
    without_effect: ClassVar[Mapping[str, str]] = {}  # keys that PaddleClas passes over too, and what has one
    _ignored_keys: tuple[str, ...] = PrivateAttr(())  # those of them that were given

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        known, problems = data, []
        if isinstance(data, dict):
            known = {key: value for key, value in data.items() if key in cls.model_fields}
            problems = [
                problem(f"unknown key{cls._instead(str(key))}", str(key))
                for key in data
                if key not in known and key not in cls.without_effect
            ]
        try:
            section = handler(known)
        except ValidationError as error:
            problems += [
                problem(explain(each), *each["loc"])
                for each in error.errors(include_url=False)
                if not _follows_from_items(each)
            ]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        if isinstance(data, dict):
            section._ignored_keys = tuple(key for key in data if key in cls.without_effect)
        return section

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """The given keys that have no effect, in PaddleClas neither."""
        return self._ignored_keys

    @classmethod
    def _instead(cls, key: str) -> str:
        known = cls.elsewhere.get(key)
        return f"; {known}" if known else nearest(key, list(cls.model_fields))


class Spec(Section):
    """A section that YAML chooses by its class's name: a transform, a loss, an optimizer."""

    @property
    def kind(self) -> str:
        """The name in YAML."""
        return type(self).__name__


def expected(what: str, got: Any) -> PydanticCustomError:
    """The error every field type here raises: what was expected, and what was found."""
    return PydanticCustomError("expected", "expected {what}, got {got}", {"what": what, "got": show(got)})


def read_number(value: Any) -> Any:
    """Reads ``"1.0/255.0"`` as PaddleClas's files write it; hands on anything else unchanged."""
    if isinstance(value, str) and (match := _FRACTION.fullmatch(value)):
        try:
            return float(match[1]) / float(match[2])
        except (ValueError, ZeroDivisionError):
            return value
    return value


@dataclass(frozen=True)
class Bound:
    """Bounds of an ``int`` or ``float`` field; its error names type and bounds together."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def describe(self, source: type) -> str:
        """Says what is expected, such as ``an integer > 0``."""
        limits = [
            f"{sign} {limit:.12g}"
            for sign, limit in ((">", self.gt), (">=", self.ge), ("<", self.lt), ("<=", self.le))
            if limit is not None
        ]
        noun = "an integer" if source is int else "a number"
        return " ".join([noun, " and ".join(limits)]).strip()

    def holds(self, value: float) -> bool:
        """Whether a number is within them."""
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
            and abs(value) <= sys.float_info.max  # neither infinite nor NaN
        )

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
    """Bounds of a field that may be ``auto`` in YAML, and is a number when it is checked."""

    def describe(self, source: type) -> str:
        """Says what is expected, such as ``an integer > 0 or auto``."""
        return f"{super().describe(source)} or auto"


Count = Annotated[int, Bound(gt=0)]
CountOrAuto = Annotated[int, BoundOrAuto(gt=0)]
Index = Annotated[int, Bound(ge=0)]
Number = Annotated[float, Bound()]
Positive = Annotated[float, Bound(gt=0)]
NonNegative = Annotated[float, Bound(ge=0)]
Fraction = Annotated[float, Bound(ge=0, le=1)]
Part = Annotated[float, Bound(gt=0, lt=1)]
Decay = Annotated[float, Bound(ge=0, lt=1)]


def _choose(registry: Registry, name: Any, params: Any) -> Spec:
    if not isinstance(name, str):
        raise expected(f"the name of the {registry.kind}", name)
    cls = cast(type[Spec], registry[name])
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise expected("a mapping of its parameters", params)
    return cls.model_validate(params)


@dataclass(frozen=True)
class Keyed:
    """A list item ``{Name: parameters}`` (or plain ``Name``), as in ``transform_ops``."""

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
                text = f"unknown {self.registry.kind}{error.hint}"
                raise ValidationError.from_exception_data(name, [problem(text, name)]) from None

        def write(value: Spec) -> dict[str, Any]:
            return {value.kind: value.model_dump(mode="json")}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


@dataclass(frozen=True)
class Variants:
    """A section that has other keys where its ``name`` is one of some; all others are plain."""

    plain: type[Section]
    others: Mapping[str, type[Section]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = (self.plain, *self.others.values())

        def read(value: Any) -> Section:
            if isinstance(value, kinds):
                return value
            name = value.get("name") if isinstance(value, dict) else None
            return self.others.get(name if isinstance(name, str) else "", self.plain).model_validate(value)

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(_dump)
        )


def _dump(section: Section) -> dict[str, Any]:
    return section.model_dump(mode="json")


@dataclass(frozen=True)
class Tagged:
    """A mapping that chooses by its key ``name``, as in ``Optimizer``; without it, the default."""

    registry: Registry
    default: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Spec:
            if isinstance(value, Spec):
                return value
            if isinstance(value, dict) and self.default is not None:
                value = {"name": self.default, **value}
            if not isinstance(value, dict) or "name" not in value:
                raise expected(f"a mapping with the key 'name', that of the {self.registry.kind}", value)
            params = {key: each for key, each in value.items() if key != "name"}
            try:
                return _choose(self.registry, value["name"], params)
            except UnknownNameError as error:
                raise ValidationError.from_exception_data("name", [problem(str(error), "name")]) from None

        def write(value: Spec) -> dict[str, Any]:
            return {"name": value.kind, **value.model_dump(mode="json")}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )
