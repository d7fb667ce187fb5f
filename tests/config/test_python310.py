"""Python 3.10 evaluates the config's annotations more strictly than its successors."""

from __future__ import annotations

import inspect
import re
import sys

import ppcls.recipe.schema  # noqa: F401 - defines all sections
from ppcls.config.base.section import Section


def test_no_annotation_names_a_class_that_the_default_of_its_key_hides() -> None:
    sections, found = [Section], []
    for section in sections:  # grows by the subclasses
        sections += section.__subclasses__()
        for name, annotation in inspect.get_annotations(section).items():
            default = section.model_fields[name].default if name in section.model_fields else None
            module = sys.modules.get(section.__module__)  # None if another test removed its own module
            is_class = isinstance(getattr(module, name, None), type)
            if is_class and isinstance(default, Section) and re.search(rf"\b{name}\b", str(annotation)):
                found.append(f"{section.__name__}.{name}: {annotation}")
    assert len(sections) > 20
    assert found == []
