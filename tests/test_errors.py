"""Counts in messages."""

from __future__ import annotations

import pytest

from ppcls.errors import counted


@pytest.mark.parametrize(
    ("words", "one", "several"),
    [
        (["image"], "1 image", "2,000 images"),
        (["batch"], "1 batch", "2,000 batches"),
        (["epoch"], "1 epoch", "2,000 epochs"),
        (["damaged class"], "1 damaged class", "2,000 damaged classes"),
        (["identity"], "1 identity", "2,000 identities"),
        (["way"], "1 way", "2,000 ways"),
        (["epoch is", "epochs are"], "1 epoch is", "2,000 epochs are"),
    ],
)
def test_counted_has_the_plural_for_all_numbers_but_one(words: list[str], one: str, several: str) -> None:
    assert counted(1, *words) == one
    assert counted(2000, *words) == several
    assert counted(0, *words) == several.replace("2,000", "0")
