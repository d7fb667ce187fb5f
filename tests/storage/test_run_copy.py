"""A run and its copy in object storage: nothing is lost whenever a process is killed or a request fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from small_tree import small_tree

from ppcls.cli.command import write_output, write_status
from ppcls.errors import UserError
from ppcls.files import objects, print_error
from ppcls.files.objects import Objects, StorageError
from ppcls.files.urls import is_url, local_path
from ppcls.recipe.load import load_config
from ppcls.storage.models import model_path, weights_path
from ppcls.storage.run_copy import LINKS, RunCopy, RunUploader, open_run
from ppcls.weights.manifest import Manifest, verify
from ppcls.weights.store import BEST, LATEST, Store

URL = "memory://bucket/runs/pets"
REQUESTS = ("pipe_file", "put_file", "cat_file", "get_file", "rm_file", "find", "isfile")


class Killed(BaseException):
    """Ends a process at a request."""


@pytest.fixture(autouse=True)
def _storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0, 0.0))
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()


def save(folder: Path, update: int, roles: tuple[str, ...] = (LATEST,)) -> Path:
    """Saves a checkpoint as a run does, and a line of its log."""
    store = Store(folder)
    serials = store.folders().values()
    manifest = Manifest(
        serial=1 + max(serials, default=-1), update=update, epoch=update, step=0, versions={}, files={}
    )
    files = {"model.safetensors": b"%d" % update * 1000, "config.yaml": b"Global: {}\n"}
    checkpoint = store.write(((name, [content]) for name, content in files.items()), manifest)
    for role in roles:
        store.link(role, checkpoint)
    store.remove_unlinked()
    with (folder / "train.log").open("a") as log:
        log.write(f"update {update}\n")
    return checkpoint


def names() -> set[str]:
    return set(Objects(URL).sizes())


def on_requests(monkeypatch: pytest.MonkeyPatch, act: Callable[[str, int, bool], None]) -> None:
    """Calls ``act`` before and after each request, with its name, its number, and whether it is done."""
    count = iter(range(1_000_000))
    nested = []

    def wrap(name: str) -> Any:
        original = getattr(MemoryFileSystem, name)

        def request(self: MemoryFileSystem, *arguments: Any, **options: Any) -> Any:
            if nested:
                return original(self, *arguments, **options)
            number = next(count)
            act(name, number, False)
            nested.append(name)
            try:
                result = original(self, *arguments, **options)
            finally:
                nested.pop()
            act(name, number, True)
            return result

        return request

    for name in REQUESTS:
        monkeypatch.setattr(MemoryFileSystem, name, wrap(name))


def test_weights_of_a_folder_are_its_best_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("latest", "best_model"):
        (run / name).mkdir(parents=True)
        assert weights_path(str(run)) == run  # not a checkpoint yet
    for name in ("latest", "best_model"):
        (run / name / "model.safetensors").touch()
        (run / name / "manifest.json").write_text("{}")
        assert weights_path(str(run)) == run / name
    assert weights_path(str(run / "latest")) == run / "latest"
    assert weights_path("ResNet50") == Path("ResNet50")
    for address in ("https://example.com/w.pdparams", "HTTP://example.com/model"):
        with pytest.raises(UserError, match=f"{address}: not downloaded, because it is a web address"):
            weights_path(address)


def test_addresses_are_recognized_and_have_folders_of_their_own(tmp_path: Path) -> None:
    assert all(map(is_url, ("s3://b/x", "gs://b/x", "az://c/x", "abfss://c@a/x", "file:///x", "S3://b")))
    assert not any(map(is_url, ("hf-hub:timm/vit", "https://example.com/x", "runs/s3", "/data/s3://x", "")))
    assert local_path("runs/pets") == Path("runs/pets")
    folders = [local_path(url) for url in ("s3://a/runs/pets", "s3://b/runs/pets", "gs://a/runs/pets", URL)]
    assert len(set(folders)) == 4
    assert local_path(URL + "/") == local_path(URL)
    hostile = local_path("s3://bucket/../../etc/\x1b[31m")
    assert hostile.parent == tmp_path / "home" / "storage"
    assert hostile.name.isprintable()


def test_another_machine_continues_from_what_was_uploaded(tmp_path: Path) -> None:
    first = RunCopy(URL, tmp_path / "first")
    save(first.folder, 1, (LATEST, BEST, "epoch_1"))
    first.push()
    second = RunCopy(URL, tmp_path / "second")
    assert second.pull()
    assert {path.name for path in second.folder.iterdir()} == {"checkpoints", "train.log", LATEST, BEST}
    assert verify(second.folder / LATEST) == verify(first.folder / LATEST)
    save(second.folder, 2, (LATEST, BEST))
    second.push()
    links = json.loads(MemoryFileSystem.store["/bucket/runs/pets/links.json"].getvalue())
    step = "checkpoints/step_{:08d}".format
    assert links == {LATEST: step(2), BEST: step(2), "epoch_1": step(1)}, "checkpoints of epochs are kept"
    save(second.folder, 3, (LATEST,))
    second.push()
    assert not second.pull() or verify(second.folder / LATEST).update == 3
    assert {name.split("/")[1] for name in names() if name.startswith("checkpoints/")} == {
        *(f"step_{number:08d}" for number in (1, 2, 3))
    }
    save(second.folder, 4, (LATEST, BEST))
    second.push()
    assert not any("step_00000002" in name or "step_00000003" in name for name in names())
    third = RunCopy(URL, tmp_path / "third")
    third.pull()
    assert (third.folder / "train.log").read_text() == "update 1\nupdate 2\nupdate 3\nupdate 4\n"


def test_a_copy_that_is_ahead_of_the_storage_is_not_replaced(tmp_path: Path) -> None:
    copy = RunCopy(URL, tmp_path / "run")
    save(copy.folder, 1)
    copy.push()
    save(copy.folder, 2)  # its upload failed
    assert RunCopy(URL, copy.folder).pull()
    assert verify(copy.folder / LATEST).update == 2
    assert (copy.folder / "train.log").read_text() == "update 1\nupdate 2\n"


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_upload_killed_at_any_request_leaves_a_whole_checkpoint(
    done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old checkpoint or the new one; and the next upload completes it."""
    number = 0
    finished = False
    while not finished:
        MemoryFileSystem.store.clear()
        folder = tmp_path / f"run{number}"
        save(folder, 1, (LATEST, BEST))
        RunCopy(URL, folder).push()
        save(folder, 2, (LATEST, BEST))
        with monkeypatch.context() as patched:

            def kill(name: str, count: int, after: bool, at: int = number) -> None:
                if count == at and after == done:
                    raise Killed

            on_requests(patched, kill)
            try:
                RunCopy(URL, folder).push()
                finished = True
            except Killed:
                pass
        other = RunCopy(URL, tmp_path / f"other{number}")
        assert other.pull()
        assert verify(other.folder / LATEST).update in ((2,) if finished else (1, 2))
        RunCopy(URL, folder).push()
        last = RunCopy(URL, tmp_path / f"last{number}")
        last.pull()
        assert verify(last.folder / LATEST).update == 2
        assert not any("step_00000001" in name for name in names())
        number += 1
    assert number > 10


def test_download_killed_at_any_request_leaves_nothing_that_counts_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "run", 1, (LATEST, BEST))
    RunCopy(URL, tmp_path / "run").push()
    number = 0
    finished = False
    while not finished:
        copy = RunCopy(URL, tmp_path / f"copy{number}")
        with monkeypatch.context() as patched:

            def kill(name: str, count: int, after: bool, at: int = number) -> None:
                if count == at and not after:
                    raise Killed

            on_requests(patched, kill)
            try:
                copy.pull()
                finished = True
            except Killed:
                assert not (copy.folder / LATEST).exists()
        assert copy.pull()
        assert verify(copy.folder / LATEST).update == 1
        assert not list(copy.folder.rglob(".*"))
        number += 1
    assert number > 5


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_download_during_which_the_run_saves_checkpoints_has_whole_ones(
    done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine replaces the latest and the best checkpoint at any request of the download."""
    number = 0
    finished = False
    while not finished:
        MemoryFileSystem.store.clear()
        run = RunCopy(URL, tmp_path / f"run{number}")
        save(run.folder, 1, (LATEST, BEST))
        run.push()
        save(run.folder, 2, (LATEST, BEST))
        finished = True
        with monkeypatch.context() as patched:

            def replace(name: str, count: int, after: bool, at: int = number, trained: RunCopy = run) -> None:
                nonlocal finished
                if count == at and after == done:
                    finished = False
                    trained.push()

            on_requests(patched, replace)
            copy = RunCopy(URL, tmp_path / f"copy{number}")
            assert copy.pull()
        assert verify(copy.folder / LATEST).update == verify(copy.folder / BEST).update
        number += 1
    assert number > 5


def test_download_from_a_run_that_saves_without_end_is_an_error_for_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunCopy(URL, tmp_path / "run")
    save(run.folder, 1)
    run.push()
    updates = iter(range(2, 1_000))
    saves = threading.Lock()

    def replace(name: str, count: int, after: bool) -> None:
        if name == "find" and after and saves.acquire(blocking=False):  # not for its own requests
            save(run.folder, next(updates))
            run.push()
            saves.release()

    on_requests(monkeypatch, replace)
    with pytest.raises(StorageError, match="another machine replaced checkpoints during each of 5 downloads"):
        RunCopy(URL, tmp_path / "copy").pull()


MODELS = "memory://bucket/models"


@pytest.mark.parametrize("address", [MODELS, f"{MODELS}/model.onnx"], ids=["folder", "file"])
def test_model_that_is_replaced_during_its_download_is_never_a_mixture(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects are replaced before any request, and one disappears."""
    objects_of_model = Objects(MODELS)
    number = 0
    finished = False
    while not finished:
        objects_of_model.write("model.onnx", b"old model")
        objects_of_model.write("inference.yml", b"old settings")
        objects_of_model.write("labels.txt", b"old names")
        finished = True
        with monkeypatch.context() as patched:

            def replace(name: str, count: int, after: bool, at: int = number) -> None:
                nonlocal finished
                if count == at and not after:
                    finished = False
                    objects_of_model.remove(["labels.txt"])
                    objects_of_model.write("model.onnx", b"new model")
                    objects_of_model.write("inference.yml", b"new settings")

            on_requests(patched, replace)
            path = model_path(address)
        files = [path] if path.is_file() else sorted(path.iterdir())
        contents = {file.name: file.read_bytes().partition(b" ")[0] for file in files}
        assert len(set(contents.values())) == 1, contents
        if path.is_dir():
            assert len(contents) == (3 if contents["model.onnx"] == b"old" else 2)
        number += 1
    assert number > 1


@pytest.mark.parametrize("failures", [1, 2])
def test_failed_requests_are_repeated(failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "run", 1)

    def fail(name: str, count: int, after: bool) -> None:
        if count % (failures + 1) < failures and not after:
            raise ConnectionResetError("the server has gone away")

    on_requests(monkeypatch, fail)
    RunCopy(URL, tmp_path / "run").push()
    copy = RunCopy(URL, tmp_path / "copy")
    assert copy.pull()
    assert verify(copy.folder / LATEST).update == 1


def test_storage_that_stays_away_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunCopy(URL, tmp_path / "run")
    uploader = RunUploader(copy)
    save(copy.folder, 1)
    uploader.after_checkpoint()
    save(copy.folder, 2)
    with monkeypatch.context() as patched:

        def fail(name: str, count: int, after: bool) -> None:
            raise PermissionError("ExpiredToken: the token has expired")

        on_requests(patched, fail)
        uploader.after_checkpoint()
        message = capsys.readouterr().err
        assert "ExpiredToken" in message
        assert f"the run continues, its files are in {copy.folder}" in message
        with pytest.raises(StorageError, match=r"all files of the run are in .*--resume") as raised:
            uploader.finish()
        assert raised.value.code == 75
        uploader.after_failure()
        assert "ExpiredToken" in capsys.readouterr().err
    save(copy.folder, 3)
    uploader.after_checkpoint()
    assert "uploaded after earlier failures" in capsys.readouterr().err
    other = RunCopy(URL, tmp_path / "other")
    other.pull()
    assert verify(other.folder / LATEST).update == 3


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"?", lambda data: data[:10], None])
def test_damaged_objects_are_reported(name: str, damage: Any, tmp_path: Path) -> None:
    save(tmp_path / "run", 1)
    RunCopy(URL, tmp_path / "run").push()
    path = f"/bucket/runs/pets/checkpoints/step_00000001/{name}"
    system = fsspec.filesystem("memory")
    if damage is None:
        system.rm(path)
    else:
        system.pipe_file(path, damage(system.cat_file(path)))
    copy = RunCopy(URL, tmp_path / "copy")
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        copy.pull()
    assert not Store(copy.folder).folders()


@pytest.mark.parametrize(
    "links",
    [
        {LATEST: "../../etc"},
        {LATEST: "checkpoints/step_00000001/../../.."},
        {"../latest": "checkpoints/step_00000001"},
        {"train.log": "checkpoints/step_00000001"},
        {LATEST: 5},
        ["latest"],
        "[" * 100_000,
    ],
    ids=lambda links: str(links)[:40],
)
def test_links_of_strangers_lead_nowhere(links: Any, tmp_path: Path) -> None:
    content = links if isinstance(links, str) else json.dumps(links)
    Objects(URL).write(LINKS, content.encode())
    with pytest.raises(UserError, match=r"links\.json: (expected links|damaged)"):
        RunCopy(URL, tmp_path / "copy").pull()
    assert not (tmp_path / "copy").exists()


def test_objects_with_hostile_names_are_not_downloaded(tmp_path: Path) -> None:
    save(tmp_path / "run", 1)
    RunCopy(URL, tmp_path / "run").push()
    for name in (".hidden", "a/../../b", "a/.ssh/c", "notes.txt"):
        Objects(URL).write(name, b"x")
    copy = RunCopy(URL, tmp_path / "deep" / "copy")
    copy.pull()
    found = {path.relative_to(copy.folder).as_posix() for path in copy.folder.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith(("checkpoints", "latest"))} == {
        "notes.txt",
        "train.log",
    }
    assert not (tmp_path / "b").exists()


def test_models_are_found_by_address(tmp_path: Path) -> None:
    save(tmp_path / "run", 1, (LATEST, BEST))
    save(tmp_path / "run", 2, (LATEST,))
    RunCopy(URL, tmp_path / "run").push()
    assert verify(weights_path(URL)).update == 1, "the best model"
    assert model_path("runs/pets") == Path("runs/pets")
    Objects("memory://bucket/bundle").write("model.onnx", b"1")
    Objects("memory://bucket/bundle").write("golden/1.png", b"2")
    folder = model_path("memory://bucket/bundle")
    assert (folder / "golden" / "1.png").read_bytes() == b"2"
    file = model_path("memory://bucket/bundle/model.onnx")
    assert (file.name, file.read_bytes()) == ("model.onnx", b"1")
    with pytest.raises(UserError, match="nothing found at this address"):
        model_path("memory://bucket/nothing")


def test_messages_name_the_address_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    address = "memory://bucket/bundle"
    Objects(address).write("model.onnx", b"1")
    copy = model_path(address)
    file = model_path(f"{address}/model.onnx")
    training = local_path(address)
    for write in (print_error, write_status, write_output):
        write(f"{copy}/model.onnx, {file}: {copy}s, {training}")
        printed = capsys.readouterr()
        shown = f"{address}/model.onnx, {address}/model.onnx: {copy}s, {training}"
        assert f"{printed.err}{printed.out}".rstrip() == shown
    copy.with_name(f"{copy.name}.address").unlink()
    print_error(str(copy))
    assert str(copy) in capsys.readouterr().err, "a copy of an earlier version has no address"


def test_prediction_never_writes_to_the_copy_of_a_run_that_trains_here() -> None:
    copy = RunCopy(URL)
    save(copy.folder, 1, (LATEST, BEST))
    copy.push()
    save(copy.folder, 2, (LATEST, BEST))  # not uploaded yet
    assert verify(weights_path(URL)).update == 1
    assert verify(copy.folder / BEST).update == 2
    assert (copy.folder / "train.log").read_text() == "update 1\nupdate 2\n"


def test_files_of_an_earlier_model_do_not_stay() -> None:
    address = Objects("memory://bucket/bundle")
    address.write("model.onnx", b"1")
    address.write("old.txt", b"1")
    model_path(address.url)
    address.remove(["old.txt"])
    assert [path.name for path in model_path(address.url).rglob("*")] == ["model.onnx"]


def test_library_that_fails_to_connect_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class TokenError(Exception):
        """As libraries raise them: no OSError."""

    connect = fsspec.url_to_fs
    left = [2]

    def fail(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise TokenError("no token")
        return connect(*arguments, **options)

    monkeypatch.setattr(fsspec, "url_to_fs", fail)
    assert Objects(URL).sizes() == {}
    left[0] = 3
    with pytest.raises(StorageError, match="can't connect to this storage: no token"):
        Objects(URL)


def test_new_run_needs_an_unused_address(tmp_path: Path) -> None:
    assert open_run(str(tmp_path), resumes=False) is None
    assert open_run(URL, resumes=False) is not None
    save(tmp_path / "run", 1)
    RunCopy(URL, tmp_path / "run").push()
    with pytest.raises(UserError, match="already holds a run; resume it with --resume"):
        open_run(URL, resumes=False)
    assert open_run(URL, resumes=True) is not None


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            FileNotFoundError("The specified bucket does not exist"),
            2,
            "bucket does not exist; create the bucket",
        ),
        (PermissionError("AccessDenied"), 75, "can't write this object: AccessDenied"),
    ],
)
def test_address_that_cannot_be_written_is_an_error_before_training(
    error: OSError, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, count: int, after: bool) -> None:
        if name == "pipe_file":
            raise error

    on_requests(monkeypatch, fail)
    with pytest.raises(UserError, match=text) as caught:
        open_run(URL, resumes=False)
    assert caught.value.code == code


@pytest.mark.parametrize("url", ["s3://", "s3:///run", "gs://", "az:// /run"])
def test_address_needs_a_bucket(url: str) -> None:
    with pytest.raises(UserError, match="expected an address with a bucket, such as s3://bucket/runs/pets"):
        open_run(url, resumes=False)


def test_scheme_may_be_in_upper_case(tmp_path: Path) -> None:
    upper = URL.replace("memory", "Memory")
    assert local_path(upper) == local_path(URL)
    Objects(upper).write("a", b"1")
    assert Objects(URL).read("a") == b"1"


@pytest.mark.parametrize("key", ["checkpoints", "checkpoint_fallback_dir"])
def test_folders_of_checkpoints_are_on_this_machine(key: str, images: Path) -> None:
    tree = small_tree(images, Path(URL))
    tree["Global"][key] = "s3://bucket/run"
    with pytest.raises(UserError, match=rf"{key}: expected a folder on this machine, got the address"):
        load_config(tree)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "url_to_fs", fail)
    with pytest.raises(UserError, match=r"Install s3fs to access S3; install it with pip install '\.\[s3\]'"):
        Objects("s3://bucket/x")


def test_files_on_a_shared_disk_are_never_half_written(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared/run"
    save(tmp_path / "run", 1)
    RunCopy(url, tmp_path / "run").push()
    copy = RunCopy(url, tmp_path / "copy")
    assert copy.pull()
    assert verify(copy.folder / LATEST).update == 1
    assert not list((tmp_path / "shared").rglob(".*"))
