from paths import ROOT

from ppcls.config.reference import render, render_models
from ppcls.registry import LOSSES, METRICS, OPTIMIZERS, SAMPLERS, SCHEDULES, TRANSFORMS

DOCUMENT = ROOT / "docs" / "config.md"


def test_the_committed_reference_is_the_schemas() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(), "run `make docs`"
    assert DOCUMENT.with_name("models.md").read_text(encoding="utf-8") == render_models(), "run `make docs`"


def test_every_name_of_every_registry_is_in_it() -> None:
    text = render()
    for registry in (TRANSFORMS, SAMPLERS, LOSSES, METRICS, OPTIMIZERS, SCHEDULES):
        for name in registry:
            assert f" {name}\n" in text, name
