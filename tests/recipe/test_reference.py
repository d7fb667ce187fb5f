"""The generated reference of the config."""

import re

from paths import ROOT

from ppcls.config.base.section import Section
from ppcls.recipe.reference import description, render, render_models
from ppcls.recipe.schema import Config
from ppcls.registry import LOSSES, METRICS, OPTIMIZERS, SAMPLERS, SCHEDULES, TRANSFORMS


def test_reference_document_equals_the_schema():
    docs = ROOT / "docs"
    assert (docs / "config.md").read_text(encoding="utf-8").endswith(f"\n\n{render()}"), "run `make docs`"
    assert (docs / "models.md").read_text(encoding="utf-8").endswith(f"\n\n{render_models()}"), (
        "run `make docs`"
    )


def test_reference_has_one_heading_for_each_name_and_no_broken_link():
    text = render()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert len(headings) == len(set(headings))
    for registry in (TRANSFORMS, SAMPLERS, LOSSES, METRICS, OPTIMIZERS, SCHEDULES):
        assert set(headings) >= {registry[name].__name__ for name in registry}
    anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    links = set(re.findall(r"\(#([^)]+)\)", text))
    assert links
    assert links <= anchors


def test_reference_every_key_has_a_description():
    assert not re.findall(r"^\|.*\|  \|$", render(), re.MULTILINE)


def test_description_is_inherited():
    class Base(Section):
        size: int = 1
        """Side of the image."""

    class Derived(Base):
        size: int = 2

    assert description(Derived, "size") == "Side of the image."
    assert description(Config, "Global") == "General settings of the run."
