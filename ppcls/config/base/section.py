"""The base classes of all sections: `Section`, and `Spec`, which YAML selects by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails
from typing_extensions import LiteralString, Self

from ppcls.config.base.problems import EXPLAINED_KEY, UNKNOWN_KEY, explain, problem
from ppcls.registry import suggest

if TYPE_CHECKING:
    from ppcls.config.base.facts import RunFacts


def _follows_from_items(error: ErrorDetails) -> bool:
    """Returns whether a list is too short only because some of its items are invalid and reported."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _kind(error: ErrorDetails) -> LiteralString:
    """Returns the type of the error that replaces ``error``."""
    match error["type"]:
        case "unknown_key":
            return UNKNOWN_KEY
        case "explained_key":
            return EXPLAINED_KEY
        case _:
            return "problem"


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
                cls._unknown_key(str(key)) for key in data if key not in known and key not in cls.ignored
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
    def _unknown_key(cls, key: str) -> InitErrorDetails:
        if hint := cls.key_hints.get(key):
            return problem(f"unknown key; {hint}", key, kind=EXPLAINED_KEY)
        similar = suggest(key, list(cls.model_fields), "docs/config.md lists all keys")
        return problem(f"unknown key{similar}", key, kind=UNKNOWN_KEY)


class Spec(Section):
    """Base class of sections that YAML selects by their class names, such as transforms and losses."""

    @property
    def kind(self) -> str:
        """Name of the section in YAML."""
        return type(self).__name__
