"""Returns the problems of one config section."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError


def section_problems(cls: type[BaseModel], fields: dict[str, Any]) -> dict[str, str]:
    """Returns the messages of invalid fields by their place."""
    with pytest.raises(ValidationError) as caught:
        cls.model_validate(fields)
    return {
        ".".join(map(str, each["loc"])): each["msg"].removeprefix("Value error, ")
        for each in caught.value.errors()
    }
