"""A store among other files: it neither fails because of them nor changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls.errors import UserError
from ppcls.weights.manifest import Manifest
from ppcls.weights.store import LATEST, Store

MANIFEST = Manifest(serial=0, update=3, epoch=1, step=0, score=None, judge="top1", versions={}, files={})


def write(root: Path) -> Path:
    store = Store(root)
    store.check_places()
    folder = store.write([("weights", [b"data"])], MANIFEST)
    store.link(LATEST, folder)
    store.remove_unlinked()
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "step_x",
        "step_00000003",
        "step_00000001",
        "step_1",
        ".12345678.step_00000001",
        "notes",
        "step_3",
    ],
)
@pytest.mark.parametrize("kind", ["file", "folder", "link", "loop"])
def test_files_of_the_user_are_kept(tmp_path: Path, name: str, kind: str) -> None:
    place = tmp_path / "checkpoints" / name
    place.parent.mkdir()
    if kind == "folder" and name.startswith("."):
        pytest.skip("a folder with this name is an incomplete checkpoint of a killed run")
    match kind:
        case "file":
            place.write_text("mine")
        case "folder":
            place.mkdir()
            (place / "notes").write_text("mine")
        case "link":
            (tmp_path / "elsewhere").mkdir()
            place.symlink_to("../elsewhere")
        case _:
            place.symlink_to(name)
    before = place.lstat()
    (tmp_path / "loop").symlink_to("loop")
    folder = write(tmp_path)
    assert (tmp_path / LATEST).resolve() == folder
    assert place.lstat().st_ino == before.st_ino
    assert kind != "folder" or (place / "notes").read_text() == "mine"
    assert folder in Store(tmp_path).folders()


@pytest.mark.parametrize("name", ["latest", "best_model", "best_model_2", "epoch_7", ".latest.new"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_place_of_a_link_must_be_free(tmp_path: Path, name: str, kind: str) -> None:
    place = tmp_path / name
    if kind == "file":
        place.touch()
    else:
        place.mkdir()
    with pytest.raises(
        UserError, match=f"{name}: expected a link to a checkpoint or nothing, found a {kind}"
    ):
        Store(tmp_path).check_places()


def test_folder_of_checkpoints_may_be_a_link_but_no_file_and_no_loop(tmp_path: Path) -> None:
    place = tmp_path / "run" / "checkpoints"
    place.parent.mkdir()
    place.touch()
    with pytest.raises(UserError, match="checkpoints: expected a folder or nothing"):
        Store(place.parent).check_places()
    place.unlink()
    place.symlink_to("checkpoints")
    with pytest.raises(UserError, match="checkpoints: expected a folder or nothing"):
        Store(place.parent).check_places()
    place.unlink()
    (tmp_path / "large disk").mkdir()
    place.symlink_to("../large disk")
    assert write(place.parent).is_dir()
