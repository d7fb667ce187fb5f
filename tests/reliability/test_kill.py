"""``kill -9`` at any instant of a save: the run has a whole checkpoint, the last one or the one before."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from ppcls.weights.manifest import DamagedError, Manifest, verify
from ppcls.weights.store import LATEST, Store

ROUNDS = 60


def content(update: int) -> list[tuple[str, bytes]]:
    return [(f"{part}.bin", bytes([update % 251]) * 200_000 * part) for part in range(1, 4)]


def save(store: Store, update: int) -> None:
    score = float(update % 5)
    manifest = Manifest(serial=update, update=update, epoch=0, step=0, score=score, versions={}, files={})
    folder = store.write([(name, [data]) for name, data in content(update)], manifest)
    store.link(LATEST, folder)
    store.link_best(folder, manifest, 2, best=score == 4)
    store.remove_unlinked()


def save_until_killed(root: Path, first: int, done: int) -> None:
    """Saves one after the other, and tells each that is done."""
    store = Store(root)
    for update in range(first, first + 10_000):
        save(store, update)
        os.write(done, update.to_bytes(4, "little"))


def newest_whole(root: Path) -> int:
    """Returns the update of the newest checkpoint, all of which have to be whole."""
    found = []
    for folder in Store(root).folders():
        manifest = verify(folder)
        assert {name: (folder / name).read_bytes() for name in manifest.files} == dict(
            content(manifest.update)
        )
        found.append(manifest.update)
    return max(found, default=-1)


@pytest.mark.slow
def test_save_killed_at_random_instants_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    chance, last, sure, within = random.Random(7), -1, -1, 0
    for _ in range(ROUNDS):
        ears, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_until_killed(tmp_path, last + 1, mouth)
            finally:
                os._exit(1)
        os.close(mouth)
        reported = b"".join(os.read(ears, 4) for _ in range(chance.randint(0, 3)))  # waits for these saves
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reported += os.read(ears, 1 << 20)
        os.close(ears)
        if reported:
            last = sure = int.from_bytes(reported[-4:], "little")
        found = newest_whole(tmp_path)
        assert found in (last, last + 1), "what was reported is there; at most the next one besides"
        if sure >= 0:  # those after it may have been killed before they were linked
            assert sure <= verify(tmp_path / LATEST).update <= found
        within += bool(list((tmp_path / "checkpoints").glob(".*")))
        last = found
    assert last > ROUNDS / 10
    assert within > 0, "some were killed in the middle of a save"
    save(Store(tmp_path), last + 1)
    assert not list((tmp_path / "checkpoints").glob(".*")), "what they left half-written is gone"


def test_folder_without_its_last_file_is_no_checkpoint(tmp_path: Path) -> None:
    """As a file system leaves it that renames before it writes, or a copy that was cut off."""
    save(Store(tmp_path), 1)
    (folder,) = Store(tmp_path).folders()
    (folder / "manifest.json").unlink()
    with pytest.raises(DamagedError, match="missing; the checkpoint is incomplete"):
        verify(folder)
