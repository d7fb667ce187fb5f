"""Any change of any file of a checkpoint is recognised, and what gets past ends in our own errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_checkpoints import checkpoints_of
from small_net import make_state, train_epochs

from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.checkpoint.resume import resume
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.weights.manifest import MANIFEST

TREE = {
    "Arch": {"name": "ResNet18", "class_num": 4},
    "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
    "Optimizer": {"name": "Momentum", "lr": {"name": "Constant", "learning_rate": 0.1}},
}


@pytest.fixture(scope="module")
def config() -> Config:
    return validate(TREE, "small")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, config: Config) -> Path:
    output = tmp_path_factory.mktemp("run")
    state = train_epochs(make_state(decay=0.9))
    next(iter(state.loader))
    checkpoints_of(output, config).save(state, [LATEST])
    return output


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy", symlinks=True))


FILES = [
    "model.safetensors",
    "optimizer.safetensors",
    "ema.safetensors",
    "state.json",
    "config.yaml",
    MANIFEST,
]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.integers(1, 64)),
        st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=16)),
        st.tuples(st.just("overwrite"), st.floats(0, 1), st.binary(min_size=1, max_size=64)),
        st.tuples(st.just("end"), st.floats(0, 1), st.none()),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, changes: list[tuple[str, float, object]]) -> bytes:
    for kind, where, value in changes:
        at = min(int(where * len(data)), max(len(data) - 1, 0))
        match kind, value:
            case "flip", int(bits) if data:
                data = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
            case "cut", int(count):
                data = data[:at] + data[at + count :]
            case "insert", bytes(more):
                data = data[:at] + more + data[at:]
            case "overwrite", bytes(more):
                data = data[:at] + more + data[at + len(more) :]
            case "end", _:
                data = data[:at]
    return data


def error_of(does: Callable[..., object], *arguments: object) -> str | None:
    """Returns what a UserError says; any other error ends the test."""
    try:
        does(*arguments)
    except UserError as error:
        return str(error)
    return None


def test_undamaged_copy_is_valid(copy: Path, config: Config) -> None:
    assert checkpoints_of(copy, config).find("auto") == copy / LATEST


@settings(max_examples=200)
@given(st.sampled_from(FILES), CHANGES)
def test_changed_byte_is_detected(
    saved: Path, tmp_path_factory: pytest.TempPathFactory, file: str, changes: list[tuple[str, float, object]]
) -> None:
    path = (saved / LATEST).resolve() / file
    whole = path.read_bytes()
    damaged = mutate(whole, changes)
    if damaged == whole:
        return
    checkpoints = checkpoints_of(saved, validate(TREE, "small"))
    try:
        path.write_bytes(damaged)
        said = [error_of(checkpoints.find, wanted) for wanted in ("auto", str(saved / LATEST))]
    finally:
        path.write_bytes(whole)
    for text in said:
        if text is None:  # blanks between a manifest's words are no damage
            assert file == MANIFEST
            assert json.loads(damaged) == json.loads(whole)
        else:
            assert file in text


@settings(max_examples=100)
@given(st.sampled_from(FILES[:-1]), CHANGES)
def test_forged_checkpoint_raises_only_user_errors(
    saved: Path, file: str, changes: list[tuple[str, float, object]]
) -> None:
    """As if the digests had been made to fit: what reads the files has to stand them."""
    path = (saved / LATEST).resolve() / file
    whole = path.read_bytes()
    try:
        path.write_bytes(mutate(whole, changes))
        said = error_of(resume, make_state(decay=0.9), saved / LATEST)
    finally:
        path.write_bytes(whole)
    assert said is None or str(saved) in said or "the checkpoint is in the middle of epoch" in said
