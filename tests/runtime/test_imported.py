"""Paddle is imported once: what a later run may ask for, and what it is told."""

from __future__ import annotations

import pytest

from ppcls.config.sections.run import Global
from ppcls.errors import UserError
from ppcls.runtime.imported import Imported
from ppcls.runtime.memory import Asked

BY_RUN = Imported(threads=4, deterministic=False, by_run=True, asked=Asked(0.5))


@pytest.mark.parametrize(
    ("imported", "settings", "asked"),
    [
        (BY_RUN, Global(), None),
        (BY_RUN, Global(cpu_threads=4), Asked(0.5)),
        (BY_RUN, Global(), Asked(None)),
        (Imported(1, deterministic=True), Global(deterministic=True), None),
        (Imported(1, deterministic=True), Global(deterministic=False), None),
    ],
)
def test_the_same_again_and_defaults_are_taken(
    imported: Imported, settings: Global, asked: Asked | None
) -> None:
    imported.refuse_other(settings, asked)


@pytest.mark.parametrize(
    ("imported", "settings", "asked", "message"),
    [
        (
            BY_RUN,
            Global(cpu_threads=2),
            None,
            "Global.cpu_threads 2: Paddle computes with 4, which was fixed when this process's first run "
            "imported it; start a new process (in a notebook: restart the kernel), or leave the setting as "
            "it is",
        ),
        (
            Imported(1, deterministic=False),
            Global(deterministic=True),
            None,
            "Global.deterministic True: Paddle computes without it, which was fixed when it was imported, "
            "before ppcls could; start a new process (in a notebook: restart the kernel), without `import "
            "paddle` before the first run, or leave the setting as it is",
        ),
        (
            BY_RUN,
            Global(),
            Asked(0.25),
            "Global.gpu_memory_fraction 0.25: Paddle has 0.5, which was fixed when",
        ),
        (
            Imported(1, deterministic=False),
            Global(),
            Asked(0.25, setting="FLAGS_x"),
            "FLAGS_x 0.25: Paddle has no limit, which was fixed when it was imported, before ppcls could;",
        ),
    ],
)
def test_anything_else_is_refused(
    imported: Imported, settings: Global, asked: Asked | None, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        imported.refuse_other(settings, asked)
    assert str(caught.value).startswith(message)


def test_threads_that_came_too_early_are_told() -> None:
    early = " (Paddle was imported before ppcls could set more)"
    assert Imported(1, deterministic=False).describe(2) == early
    assert Imported(2, deterministic=False).describe(2) == ""
    assert Imported(1, deterministic=False, by_run=True).describe(2) == ""
