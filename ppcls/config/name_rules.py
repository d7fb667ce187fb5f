"""What holds for some of a model's parameters only, chosen by patterns of their names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from ppcls.config.fields import NonNegative, Positive, Section, expected


def _patterns(value: Any) -> Any:
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not listed:
        raise expected("a pattern such as 'blocks.*', or a list of them", value)
    for each in listed:
        if not isinstance(each, str) or not each.strip() or each != each.strip():
            raise expected("a pattern such as 'blocks.*'", each)
    return listed


Patterns = Annotated[tuple[str, ...], BeforeValidator(_patterns)]


class NameRule(Section):
    """What the parameters of one pattern have of their own; of several rules that match, all factors count.

    Attributes:
        pattern: Of whole names as in the model, one or a list: ``fc.*``, ``*.bias``; ``*`` stands for any
            text, ``?`` for one character, ``[01]`` for one of these.
        lr_mult: Factor of the learning rate.
        decay_mult: Factor of the weight decay.
    """

    pattern: Patterns
    lr_mult: Positive = 1.0
    decay_mult: NonNegative = 1.0

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not {"lr_mult", "decay_mult"} & self.model_fields_set:
            raise ValueError("expected lr_mult or decay_mult, for without them the rule changes nothing")
        return self
