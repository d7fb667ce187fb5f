"""Lists of bad images, and the advice how to skip such images."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.data.bad_images.lists import (
    BadImage,
    BadImageError,
    TooManyBadImagesError,
    read_bad_images,
    suggest_skipping,
    write_bad_images,
)
from ppcls.data.section import Split
from ppcls.errors import UserError

NAMES = st.binary(min_size=1).filter(lambda name: b"\0" not in name).map(os.fsdecode)
BAD = st.builds(BadImage, NAMES, NAMES, st.text(st.characters(codec="utf-8", exclude_characters="\0")))


@given(bad=st.lists(BAD))
@settings(max_examples=30)
def test_bad_image_list_round_trips(tmp_path_factory: pytest.TempPathFactory, bad: list[BadImage]) -> None:
    path = tmp_path_factory.mktemp("list") / "bad_images.txt"
    write_bad_images(path, bad)
    assert read_bad_images(path) == bad
    assert path.read_bytes().decode().count("\n") == len(bad)


def test_bad_image_list_escapes_only_special_characters(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.txt"
    write_bad_images(path, [BadImage("Käse \\ 猫\t1.jpg", "list.txt, line 3", "the file is empty")])
    assert path.read_text() == "Käse \\x5c 猫\\x091.jpg\tlist.txt, line 3\tthe file is empty\n"


def test_read_bad_images_names_the_wrong_line(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.txt"
    path.write_text("a\tb\tc\n\na b c\n")
    with pytest.raises(UserError, match=r"bad_images.txt, line 3: expected path, location and reason"):
        read_bad_images(path)
    with pytest.raises(UserError, match="gone: can't read this list of bad images: No such file"):
        read_bad_images(tmp_path / "gone")


def split(on_error: str) -> Split:
    return cast(Split, SimpleNamespace(dataset=SimpleNamespace(on_error=on_error, auditable_root=None)))


@pytest.mark.parametrize(
    ("train", "evaluation", "advised"),
    [
        ("raise", "raise", "Train.dataset.on_error=skip DataLoader.Eval.dataset.on_error=skip"),
        ("skip", "raise", "Eval.dataset.on_error=skip"),
    ],
)
def test_suggest_skipping_names_splits_that_raise(train: str, evaluation: str, advised: str) -> None:
    splits = {"Train": split(train), "Eval": split(evaluation)}
    pattern = rf"a\.jpg is bad; .* with --on-error skip \(-o DataLoader\.{advised}\); `ppcls dataset check -c"
    with pytest.raises(BadImageError, match=pattern), suggest_skipping(splits):
        raise BadImageError("a.jpg is bad")
    with pytest.raises(TooManyBadImagesError, match=r"^too many$"), suggest_skipping(splits):
        raise TooManyBadImagesError("too many")
