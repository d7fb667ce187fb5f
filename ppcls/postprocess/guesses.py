"""Explains names that users of similar libraries guess: attributes of results, and arguments of methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ppcls.errors import ArgumentError, MissingAttributeError


class ExplainsGuesses:
    """Base class of the objects of the Python API, whose errors about unknown names say what to use.

    A subclass maps names to advice. A key may contain several names, separated by spaces.
    """

    guessed_attributes: ClassVar[Mapping[str, str]] = {}
    guessed_arguments: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raises the usual error about an unknown attribute, with advice."""
            advice = find_advice(type(self).guessed_attributes, name)
            message = f"{type(self).__name__!r} object has no attribute {name!r}{advice}"
            raise MissingAttributeError(message, name=name, obj=self)


def find_advice(guesses: Mapping[str, str], name: str) -> str:
    """Returns the end of an error message about an unknown name; "" if there is no advice."""
    advice = next((text for names, text in guesses.items() if name in names.split()), None)
    return "" if advice is None else f"; {advice}"


def check_arguments(
    method: Callable[..., Any],
    guesses: Mapping[str, str],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
) -> None:
    """Checks the number and the names of arguments before a call.

    Args:
        method: Function to call.
        guesses: Advice by the names of arguments.
        arguments: Positional arguments.
        options: Keyword arguments.

    Raises:
        ArgumentError: The function can't be called with these arguments.
    """
    signature = inspect.signature(method)
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for name in sorted(set(options) - {parameter.name for parameter in parameters}):
            raise ArgumentError(
                f"{method.__qualname__}() got an unexpected keyword argument {name!r}"
                f"{find_advice(guesses, name)}"
            )
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        # Without the first argument, which is the object.
        names = ", ".join(
            parameter.name for parameter in [*parameters][1:] if parameter.kind is not parameter.VAR_KEYWORD
        )
        raise ArgumentError(f"{method.__qualname__}(): {error}; its arguments are {names}") from None
