"""Problems of a config: what validators raise, and their text in the terms of YAML."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from typing_extensions import LiteralString

UNKNOWN_KEY: Final = "unknown_key"  # type of the errors about unknown keys
EXPLAINED_KEY: Final = "explained_key"  # type of those whose message says what to write instead
UNKNOWN_KEYS = (UNKNOWN_KEY, EXPLAINED_KEY)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 8


def show(value: Any) -> str:
    """Returns a YAML value as text for error messages. Long values are shortened."""
    return _SHORT.repr(value)


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


def expected(what: str, got: Any) -> PydanticCustomError:
    """Returns the error that a field type raises, with the expected and the actual value."""
    return PydanticCustomError("expected", "expected {what}, got {got}", {"what": what, "got": show(got)})


def find_line_breaks(tree: Any, where: str = "") -> Iterator[str]:
    """Yields a problem for each text in plain data that contains a line break.

    Names in a file of a stranger could otherwise add lines to results and logs.

    Args:
        tree: Plain data, without cycles.
        where: Key of the data.
    """
    if isinstance(tree, str):
        if "\n" in tree:
            yield f"{where}: expected one line of text, got {show(tree)}"
    elif isinstance(tree, dict):
        for key, value in tree.items():
            name = show(key) if "\n" in str(key) else str(key)
            place = f"{where}.{name}" if where else name
            if name != str(key):
                yield f"{place}: expected a key of one line"
            yield from find_line_breaks(value, place)
    elif isinstance(tree, list):
        for position, value in enumerate(tree):
            yield from find_line_breaks(value, f"{where}[{position}]")
