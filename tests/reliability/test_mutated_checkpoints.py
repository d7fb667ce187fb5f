"""Checkpoints changed in any way, ours and PaddleClas's: refused in our own words, or read; none hangs.

`test_damage` changes bytes of one file. Here a checkpoint's whole folder is changed: what its JSON says, with
digests made to fit; files that are missing, swapped, links, folders or devices; and pickles by the byte.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import paddle
import pytest
from figures import Figure
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import TREE_CHANGE, Tally, change_tree
from run_checkpoints import checkpoints_of
from small_net import make_state, train_epochs
from test_damage import CHANGES, FILES, TREE, mutate

from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.checkpoint.resume import resume
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.weights.files import read_weights
from ppcls.weights.manifest import MANIFEST, Manifest, read_manifest, write_file, write_manifest

pytestmark = pytest.mark.hostile

FOLDER_CHANGE = st.tuples(
    st.sampled_from(["remove", "swap", "link out", "link to itself", "folder", "empty", "device", "zeros"]),
    st.sampled_from(FILES),
    st.sampled_from(FILES),
)


@pytest.fixture(scope="module")
def config() -> Config:
    return validate(TREE, "small")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, config: Config) -> Path:
    """A run's folder: in the middle of its second epoch."""
    output = tmp_path_factory.mktemp("run")
    state = train_epochs(make_state(decay=0.9))
    next(iter(state.loader))
    checkpoints_of(output, config).save(state, [LATEST])
    return output


def change_folder(folder: Path, change: tuple[str, str, str]) -> None:
    kind, name, other = change
    path = folder / name
    if not path.is_file() or not (folder / other).is_file():
        return
    match kind:
        case "swap":
            path.rename(folder / "x")
            if name != other:
                (folder / other).rename(path)
            (folder / "x").rename(folder / other)
            return
        case "empty":
            path.write_bytes(b"")
            return
        case "zeros":
            path.write_bytes(bytes(path.stat().st_size))
            return
    path.unlink()
    match kind:
        case "link out":
            path.symlink_to("/etc/hostname")
        case "link to itself":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/null")


def look(output: Path, config: Config) -> Callable[[], Any]:
    """Finds the newest whole checkpoint as ``auto`` does, and resumes from it."""

    def act() -> Any:
        found = checkpoints_of(output, config).find("auto")
        assert found is not None
        resume(replace(make_state(decay=0.9), config=config), found)

    return act


def forge(folder: Path) -> None:
    """Makes the manifest fit the files."""
    records = {
        name: write_file(folder / name, (folder / name).read_bytes()) for name in FILES if name != MANIFEST
    }
    known = read_manifest(folder).model_dump() | {"files": records}
    (folder / MANIFEST).unlink()
    write_manifest(folder, Manifest.model_validate(known))


FEW, MANY = 40, 350
COUNTS = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.reliability)]


@pytest.mark.parametrize("count", COUNTS)
def test_checkpoint_with_changed_files_is_read_or_rejected(
    saved: Path, tmp_path: Path, config: Config, figure: Figure, count: int
) -> None:
    tally = Tally()

    @settings(max_examples=count)
    @given(st.lists(FOLDER_CHANGE, min_size=1, max_size=3), st.sampled_from(FILES), CHANGES)
    def attack(changes: list[tuple[str, str, str]], name: str, bytes_of: Any) -> None:
        output = tmp_path / "copy"
        shutil.copytree(saved, output, symlinks=True)
        try:
            folder = (output / LATEST).resolve()
            for change in changes:
                change_folder(folder, change)
            if (folder / name).is_file() and not (folder / name).is_symlink():
                (folder / name).write_bytes(mutate((folder / name).read_bytes(), bytes_of))
            tally.note(look(output, config))
        finally:
            shutil.rmtree(output)

    attack()
    figure(f"checkpoints with files changed, swapped, missing, links, folders: {tally.describe()}")


@pytest.mark.parametrize("count", COUNTS)
def test_checkpoint_with_forged_state_is_read_or_rejected(
    saved: Path, tmp_path: Path, config: Config, figure: Figure, count: int
) -> None:
    """``state.json`` says anything, and all digests fit."""
    tally = Tally()

    @settings(max_examples=count)
    @given(st.lists(TREE_CHANGE, min_size=1, max_size=3))
    def attack(changes: list[tuple[str, float, Any]]) -> None:
        output = tmp_path / "copy"
        shutil.copytree(saved, output, symlinks=True)
        try:
            folder = (output / LATEST).resolve()
            path = folder / "state.json"
            tree = json.loads(path.read_text())
            for change in changes:
                change_tree(tree, change)
            path.write_text(json.dumps(tree, default=str, skipkeys=True))
            forge(folder)
            tally.note(look(output, config))
        finally:
            shutil.rmtree(output)

    attack()
    figure(f"checkpoints whose state says anything, with digests that fit: {tally.describe()}")


PICKLES = {
    "paddle.save": lambda path: paddle.save(make_state().model.state_dict(), str(path)),
    "arrays, protocol 2": lambda path: path.write_bytes(pickle.dumps(arrays(), 2)),
    "arrays, protocol 4": lambda path: path.write_bytes(pickle.dumps(arrays(), 4)),
    "arrays, protocol 0": lambda path: path.write_bytes(pickle.dumps(arrays(), 0)),
}


def arrays() -> dict[str, Any]:
    made = {name: tensor.numpy() for name, tensor in make_state().model.state_dict().items()}
    return {**made, "StructuredToParameterName@@": {name: name for name in made}}


@pytest.mark.parametrize("count", COUNTS)
def test_pdparams_with_changed_bytes_is_read_or_rejected(
    tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    tally, whole = Tally(), []
    path = tmp_path / "net.pdparams"
    for write in PICKLES.values():
        write(path)
        whole.append(path.read_bytes())
        read_weights(path)

    @settings(max_examples=count)
    @given(st.sampled_from(whole), CHANGES)
    def attack(data: bytes, changes: Any) -> None:
        path.write_bytes(mutate(data, changes))
        tally.note(lambda: read_weights(path))

    attack()
    assert [each.name for each in tmp_path.iterdir()] == ["net.pdparams"], "its code ran"
    figure(f".pdparams with changed bytes: {tally.describe()}")


def test_unchanged_checkpoint_is_read_and_damaged_one_is_rejected(
    saved: Path, tmp_path: Path, config: Config
) -> None:
    output = tmp_path / "copy"
    shutil.copytree(saved, output, symlinks=True)
    look(output, config)()
    forge((output / LATEST).resolve())
    look(output, config)()
    os.truncate((output / LATEST).resolve() / "state.json", 3)
    with pytest.raises(UserError, match="all checkpoints of this run are damaged"):
        look(output, config)()
