"""Search spaces of config keys: ``0.01..1``, ``log:1e-5..1e-2``, ``5..20`` or a list of choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppcls.config.base.yaml import dump_yaml
from ppcls.errors import UserError

if TYPE_CHECKING:
    from optuna import Trial

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(log:)?\s*({_NUMBER})\.\.({_NUMBER})")
_FORM = "expected LOW..HIGH, log:LOW..HIGH or a list of choices"


@dataclass(frozen=True)
class Choices:
    """The search space of a key with a few possible values.

    Attributes:
        values: Possible values as YAML text.
    """

    values: tuple[str, ...]

    def suggest(self, trial: Trial, key: str) -> str:
        """Returns the trial's value of ``key`` as YAML text."""
        chosen: str = trial.suggest_categorical(key, self.values)
        return chosen


@dataclass(frozen=True)
class NumberRange:
    """The search space of a key with a numeric value, an integer if both bounds are integers.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Whether values are drawn on a logarithmic scale.
    """

    low: float
    high: float
    log: bool

    def suggest(self, trial: Trial, key: str) -> str:
        """Returns the trial's value of ``key`` as YAML text."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return str(trial.suggest_int(key, self.low, self.high, log=self.log))
        return repr(trial.suggest_float(key, self.low, self.high, log=self.log))


Dimension = Choices | NumberRange


def read_space(settings: Mapping[str, Any]) -> dict[str, Dimension]:
    """Returns the search space of each key.

    Raises:
        UserError: A space is invalid, or ``settings`` is empty.
    """
    if not settings:
        raise UserError("no search space; write --search KEY=LOW..HIGH or --space FILE")
    return {str(key): _read_dimension(str(key), value) for key, value in settings.items()}


def _read_dimension(key: str, value: Any) -> Dimension:
    if isinstance(value, list) and value:
        return Choices(tuple(dump_yaml(item, in_one_line=True) for item in value))
    bounds = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if bounds is None:
        raise UserError(f"{key}: {_FORM}, got {value!r}")
    low, high = (int(text) if text.lstrip("+-").isdigit() else float(text) for text in bounds.group(2, 3))
    log = bounds[1] is not None
    if not low < high or (log and low <= 0):
        raise UserError(f"{key}: expected {'0 < ' if log else ''}LOW < HIGH, got {value!r}")
    return NumberRange(low, high, log)
