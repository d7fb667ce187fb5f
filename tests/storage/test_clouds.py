"""Data sets and runs in object storage of each kind, whose servers are slow, fail, and reject credentials.

The servers run on this machine: moto for S3, azurite for Azure, gcp-storage-emulator for Google.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cloud_servers import CLOUDS, FAULTS, Cloud
from fault_proxy import FaultProxy
from loader_conformance import MAKERS, ORDER, TRAIN, photo_files
from runs import assert_same_files
from small_tree import small_tree

from ppcls.api import fit
from ppcls.data.index.files import FileIndex
from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.index.records import WebDataset
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import ImageRecord
from ppcls.engine.core.hooks import RunHook
from ppcls.engine.loop import Run
from ppcls.files import objects
from ppcls.files.objects import Objects, StorageAccessError, StorageError
from ppcls.recipe.load import load_config
from ppcls.storage.run_copy import RunCopy
from ppcls.weights.manifest import Manifest, verify
from ppcls.weights.store import LATEST, Store

KINDS = ["s3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("azure", "google"))]
SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "azure", "google")]
SHOWN = 2  # images in tests that read them many times


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,) * 5)
    with CLOUDS[request.param](monkeypatch, tmp_path / "home") as server:
        yield server
        gc.collect()  # ends the threads of loaders, which would connect to the real storage


@pytest.fixture
def files(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> FileIndex:
    found = photo_files(photos, tmp_path_factory)
    assert isinstance(found, FileIndex)
    return found


def listed(files: FileIndex, url: str, count: int | None = None) -> ImageNetDataset:
    """Uploads images and their list, and returns the data set of the objects."""
    address = Objects(url)
    lines = files.source.read_text().splitlines()[:count]
    for position in range(len(lines)):
        address.write(Path(files.name(position)).name, files.read(position))
    address.write("list.txt", "".join(f"{line}\n" for line in lines).encode())
    return ImageNetDataset(image_root=url, cls_label_path=f"{url}/list.txt", **CHAIN)


CHAIN: dict[str, Any] = {"transform_ops": tuple(op.spec for op in TRAIN)}


def shards(files: FileIndex, url: str, folder: Path, count: int) -> WebDataset:
    """Uploads shards of one image each, and returns their data set."""
    form = FORMATS["webdataset"]
    folder.mkdir()
    for position in range(count):
        path = folder / f"train-{position:02}{form.suffix}"
        form.write(path, [ImageRecord("0.jpg", files.read(position), int(files.labels[position]))])
        Objects(url).upload(path, path.name)
    return WebDataset(paths=[f"{url}/*.tar"], **CHAIN)


def fail_often(proxy: FaultProxy) -> None:
    """Makes every third request fail, in each of the ways in which servers and networks fail."""
    proxy.fault = lambda method, path, number: None if number % 3 else FAULTS[number // 3 % len(FAULTS)]


def content(data: Any) -> list[tuple[bytes, int]]:
    index = data.read(21)
    return [(bytes(index.read(i)), int(index.labels[i])) for i in range(len(index))]


@pytest.mark.parametrize("cloud", SLOW_KINDS, indirect=True)
@pytest.mark.parametrize("source", ["list", "shards"])
def test_loaders_yield_the_batches_of_the_disk_although_requests_are_slow_and_fail(
    cloud: Cloud, files: FileIndex, tmp_path: Path, source: str
) -> None:
    url = cloud.url
    count = len(files)
    data = listed(files, url) if source == "list" else shards(files, url, tmp_path / "tar", count)
    cloud.proxy.delay = 0.05
    fail_often(cloud.proxy)
    loaders = [MAKERS["dali-cpu"](index, ORDER, TRAIN) for index in (data.read(21), files)]
    for ours, theirs in zip(*loaders, strict=True):
        np.testing.assert_array_equal(np.asarray(ours.image), np.asarray(theirs.image))
        np.testing.assert_array_equal(np.asarray(ours.label), np.asarray(theirs.label))


@pytest.mark.parametrize("cloud", SLOW_KINDS, indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_storage_that_stays_away_is_an_error_for_another_try(
    cloud: Cloud, files: FileIndex, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the credentials do not permit the requests."""
    kind = StorageAccessError if fault == "denied" else StorageError
    data = listed(files, cloud.url, SHOWN)
    index = data.read(21)
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,))
    cloud.proxy.fault = lambda method, path, number: fault
    with pytest.raises(kind, match=rf"{cloud.url}/.*: can't read this object: .") as caught:
        index.read(0)
    assert caught.value.code == (2 if fault == "denied" else 75)
    with pytest.raises(kind, match=rf"{cloud.url}/.*: can't write this object: ."):
        Objects(cloud.url).write("a", b"1")


def save(folder: Path, update: int) -> None:
    """Saves a checkpoint as a run does."""
    store = Store(folder)
    manifest = Manifest(serial=update, update=update, epoch=update, step=0, versions={}, files={})
    files = {"model.safetensors": b"%d" % update * 1000, "config.yaml": b"Global: {}\n"}
    store.link(LATEST, store.write(((name, [data]) for name, data in files.items()), manifest))
    store.remove_unlinked()


def run_killed(cloud: Cloud, number: int, *, after: bool, act: Any) -> bool:
    """Runs ``act`` in a process that is killed at a request, and returns whether it ended before that."""
    proxy = cloud.proxy
    start, killed = os.pipe()
    child = os.fork()
    if not child:
        code = 2
        try:
            os.read(start, 1)
            act()
            code = 0
        finally:
            os._exit(code)
    proxy.count, proxy.kill_at, proxy.kill_after, proxy.victim = 0, number, after, child
    os.write(killed, b".")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    proxy.victim = None
    os.close(start)
    os.close(killed)
    assert code in (0, -9)
    return code == 0


@pytest.mark.parametrize(
    "after", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"]
)
@pytest.mark.parametrize("source", ["list", pytest.param("shards", marks=pytest.mark.slow)])
@pytest.mark.parametrize("cloud", KINDS, indirect=True)
def test_data_are_complete_after_a_process_was_killed_at_any_request(
    cloud: Cloud,
    files: FileIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    after: bool,
) -> None:
    """The next process reads the same samples, with the copies that the killed one has left."""
    if source == "list":
        data: Any = listed(files, cloud.url, SHOWN)
    else:
        data = shards(files, cloud.url, tmp_path / "tar", SHOWN)
    expected = [(bytes(files.read(i)), int(files.labels[i])) for i in range(SHOWN)]
    number = 0
    done = False
    while not done:
        number += 1
        home = tmp_path / f"home{number}"
        monkeypatch.setenv("PPCLS_HOME", str(home))
        done = run_killed(cloud, number, after=after, act=lambda: content(data))
        assert content(data) == expected
        assert not list(home.rglob("*.lock"))
        shutil.rmtree(home)
    assert number > SHOWN


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("cloud", SLOW_KINDS, indirect=True)
def test_upload_killed_at_any_request_leaves_a_whole_checkpoint(
    cloud: Cloud, tmp_path: Path, after: bool
) -> None:
    number = 0
    done = False
    while not done:
        number += 1
        url = f"{cloud.url}/{after}/{number}"
        folder = tmp_path / f"run{number}"
        save(folder, 1)
        copy = RunCopy(url, folder)
        copy.push()
        save(folder, 2)
        done = run_killed(cloud, number, after=after, act=copy.push)
        other = RunCopy(url, tmp_path / f"other{number}")
        assert other.pull()
        assert verify(other.folder / LATEST).update in ((2,) if done else (1, 2))
        RunCopy(url, folder).push()
        last = RunCopy(url, tmp_path / f"last{number}")
        assert last.pull()
        assert verify(last.folder / LATEST).update == 2
        assert not any("step_00000001" in name for name in Objects(url).sizes())
    assert number > 8


class ExpireCredentials(RunHook):
    """Lets the credentials expire within the first epoch, and renews them after 20 rejected requests."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._lock = threading.Lock()
        self.rejected = 0

    def on_update(self, run: Run) -> None:
        if run.state.update == 2:
            self._cloud.proxy.fault = self._reject

    def _reject(self, method: str, path: str, number: int) -> str | None:
        with self._lock:
            self.rejected += 1
            return "expired" if self.rejected <= 20 else None


@pytest.mark.parametrize("cloud", SLOW_KINDS, indirect=True)
def test_run_whose_data_and_checkpoints_are_remote_survives_expired_credentials(
    cloud: Cloud, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,) * 25)
    undisturbed = small_tree(images, tmp_path / "undisturbed")
    fit(load_config(undisturbed))
    for file in images.iterdir():
        if file.is_file():
            Objects(f"{cloud.url}/data").upload(file, file.name)
    tree = small_tree(images, Path("unused"))
    url = f"{cloud.url}/run"
    tree["Global"].update(output_dir=url, save_steps=1)
    for split in tree["DataLoader"].values():
        listing = Path(split["dataset"]["cls_label_path"]).name
        split["dataset"] |= {
            "image_root": f"{cloud.url}/data",
            "cls_label_path": f"{cloud.url}/data/{listing}",
        }
    hook = ExpireCredentials(cloud)
    fit(load_config(tree), hooks=[hook])
    assert hook.rejected > 20
    copy = RunCopy(url, tmp_path / "copy")
    assert copy.pull()
    assert_same_files(tmp_path / "undisturbed" / LATEST, copy.folder / LATEST)


@pytest.mark.parametrize(
    "cloud", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "azure")], indirect=True
)
def test_renewed_credentials_are_read_again(
    cloud: Cloud, files: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of Google's emulator are not checked."""
    index = listed(files, cloud.url, SHOWN).read(21)
    index.read(0)
    cloud.proxy.expired = credentials_of(cloud)
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,))
    with pytest.raises(StorageError):
        index.read(1)
    cloud.renew()
    assert index.read(1) == files.read(1)


def credentials_of(cloud: Cloud) -> str:
    """Returns the text by which the proxy recognizes the earlier credentials."""
    if cloud.url.startswith("s3:"):
        return "Credential=EARLIER/"
    signature = os.environ["AZURE_STORAGE_CONNECTION_STRING"].partition("SharedAccessSignature=")[2]
    return dict(part.split("=", 1) for part in signature.split("&"))["sig"]
