"""Field types of the config: numbers with bounds, and names of modules."""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ppcls.config.base.bounds import Bounds
from ppcls.config.base.problems import expected, show

# Names that stood here before, which modules of users may import.
_MOVED = {
    **dict.fromkeys(("Keyed", "Tagged", "Variants"), "ppcls.config.base.choices"),
    **dict.fromkeys(("UNKNOWN_KEY", "error_at", "explain"), "ppcls.config.base.problems"),
    **dict.fromkeys(("located", "problem"), "ppcls.config.base.problems"),
    **dict.fromkeys(("Section", "Spec"), "ppcls.config.base.section"),
}
MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_QUOTIENT = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*/\s*([\d.]+(?:[eE][-+]?\d+)?)\s*")


def read_number(value: Any) -> Any:
    """Returns text such as ``"1.0/255.0"``, as in PaddleClas's files, as a number; other values unchanged.

    Text such as ``"2e-6"`` is also read, because ``yaml.safe_load`` returns numbers without a point so, and
    text such as ``"0.1"``, which templates and environment variables yield.
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value):
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
Depth = Annotated[int, Bound(gt=0, le=10_000)]  # layers
Width = Annotated[int, Bound(gt=0, le=1_000_000)]  # channels, or values per vector
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


def __getattr__(name: str) -> Any:
    """Returns a moved object by its former place, with a `DeprecationWarning`."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} moved to {_MOVED[name]}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(_MOVED[name]), name)
