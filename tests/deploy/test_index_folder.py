"""The folder of an index: costs of a change, changes in any order, killed processes, and damaged files."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_index import write_index

from ppcls.deploy import index_folder
from ppcls.deploy.image_index import ImageIndex
from ppcls.deploy.index_folder import add_images, create_index, load_index, remove_images
from ppcls.errors import UserError

WIDTH = 64
WRITER = """
import sys
from pathlib import Path
import numpy as np
from ppcls.deploy.index_folder import add_images, remove_images
folder = Path(sys.argv[1])
for number in range(1, 10_000):
    add_images(folder, {Path(f"new/{number}.jpg"): np.full(3, number, np.float32)})
    print(number, flush=True)
    if number % 3 == 0:
        remove_images(folder, [Path(f"new/{number}.jpg")])
"""


def vectors_of(count: int, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def content(index: ImageIndex) -> dict[str, list[float]]:
    kept = np.setdiff1d(np.arange(len(index.files)), index.removed)
    found = {str(index.files[row]): index.vectors[row].tolist() for row in kept}
    assert len(found) == len(index) == len(kept)
    return found


@contextmanager
def io_of() -> Iterator[dict[str, int]]:
    """Counts the bytes that this process reads and writes by system calls."""
    counted: dict[str, int] = {}

    def now() -> dict[str, int]:
        lines = Path("/proc/self/io").read_text().splitlines()
        return {name: int(value) for name, value in (line.split(": ") for line in lines)}

    before = now()
    yield counted
    after = now()
    counted["read"] = after["rchar"] - before["rchar"]
    counted["written"] = after["wchar"] - before["wchar"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Copies an index of 20,000 images, whose embeddings have 5 MB."""
    folder = tmp_path_factory.mktemp("index") / "large"
    files = [Path(f"folder {at % 50}/image {at}.jpg") for at in range(20_000)]
    create_index(folder, ImageIndex(files, vectors_of(len(files))))
    return lambda place: Path(shutil.copytree(folder, place / "large.index"))


def test_a_change_costs_what_one_image_costs(large: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = large(tmp_path)
    one = vectors_of(1, seed=1)[0]
    for change in (
        lambda: add_images(folder, {Path("new.jpg"): one}),
        lambda: add_images(folder, {Path("folder 3/image 3.jpg"): one}),
        lambda: remove_images(folder, [Path("folder 7/image 7.jpg")]),
        lambda: load_index(folder),
    ):
        tracemalloc.start()
        with io_of() as counted:
            change()
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert max(counted["read"], counted["written"]) < 200_000, counted
        assert memory < 200_000
    index = load_index(folder)
    assert len(index) == 20_000
    for rerank in (False, True):
        (found,) = index.nearest(one[None], 3, rerank=rerank)
        assert {str(file) for file in found.files[:2]} == {"new.jpg", "folder 3/image 3.jpg"}


def test_a_search_copies_no_embeddings(
    large: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    folder = large(tmp_path)
    remove_images(folder, [Path("folder 7")])
    tracemalloc.start()
    index = load_index(folder)
    index.nearest(vectors_of(2, seed=1), 5)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(index) == 19_600
    assert memory < 2_000_000  # the embeddings have 5 MB


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_faiss_holds_no_second_copy(kind: Any, tmp_path: Path) -> None:
    """The embeddings have 8 MB, also in the file of a graph."""
    faiss = pytest.importorskip("faiss")
    if kind == "hnsw" and not hasattr(faiss, "IO_FLAG_MMAP_IFC"):
        pytest.skip("this version of FAISS can't map a graph")
    vectors = vectors_of(2000, 1024)
    folder = tmp_path / "x.index"
    create_index(folder, ImageIndex([Path(f"{at}.jpg") for at in range(2000)], vectors, kind))
    small = tmp_path / "small.index"
    create_index(small, ImageIndex([Path(f"{at}.jpg") for at in range(20)], vectors[:20], kind))
    load_index(small).nearest(vectors[:2], 5)  # FAISS allocates its own memory
    gc.collect()
    before = private_memory()
    index = load_index(folder)
    (found,) = index.nearest(vectors[7:8], 1)
    assert found.files == (Path("7.jpg"),)
    assert private_memory() - before < 4_000_000


def private_memory() -> int:
    """Returns the memory of this process without mapped files, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line)
    return 1024 * int(line.split()[1])


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True)),
            st.tuples(st.just("remove"), st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True)),
            st.tuples(st.just("folder"), st.integers(0, 3)),
        ),
        max_size=12,
    )
)
def test_changes_in_any_order_give_the_expected_index(
    tmp_path_factory: pytest.TempPathFactory, kind: Any, changes: list[tuple[str, Any]]
) -> None:
    """Files and graphs are written again after few changes here."""
    if kind == "hnsw":
        pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("changed") / "x.index"

    def name(number: int) -> Path:
        return Path(f"{number % 4}") / f"{number}.jpg"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_folder, "_MIN_REMOVED", 3)
        patch.setattr(index_folder, "_MIN_NEW", 3)
        patch.setattr(index_folder, "_BLOCK", 4)
        expected = {name(number): vector for number, vector in enumerate(vectors_of(10, 4))}
        create_index(folder, ImageIndex([*expected], np.stack([*expected.values()]), kind))
        for step, (change, argument) in enumerate(changes):
            opened = load_index(folder)
            before = content(opened)
            if change == "add":
                new = dict(zip(map(name, argument), vectors_of(len(argument), 4, step + 1), strict=True))
                add_images(folder, new)
                expected.update(new)
            else:
                paths = [Path(str(argument))] if change == "folder" else [*map(name, argument)]
                gone = [file for file in expected if file in paths or file.parent in paths]
                if len(gone) == len(expected) or not all(
                    any(path in (file, file.parent) for file in gone) for path in paths
                ):
                    with pytest.raises(UserError, match=r"not in the index|at least one image"):
                        remove_images(folder, paths)
                    gone = []
                else:
                    remove_images(folder, paths)
                for file in gone:
                    del expected[file]
            assert content(opened) == before  # a server that has mapped it
            assert content(load_index(folder)) == {
                str(file): vector.tolist() for file, vector in expected.items()
            }
        query = vectors_of(3, 4, 99)
        for found, by_numpy in zip(
            load_index(folder).nearest(query, 5),
            ImageIndex([*expected], np.stack([*expected.values()])).nearest(query, 5),
            strict=True,
        ):
            np.testing.assert_allclose(found.similarities, by_numpy.similarities, atol=1e-6)
            assert set(found.files) == set(by_numpy.files)


def test_a_killed_process_loses_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "x.index"
    create_index(folder, ImageIndex([Path("a.jpg")], np.ones((1, 3), np.float32)))
    finished = 0
    for kill_after in (1, 4):
        add_images(folder, {Path("new/0.jpg"): np.zeros(3, np.float32)})
        remove_images(folder, [Path("new")])
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = iter(process.stdout)
        finished = 0
        while finished < kill_after:
            finished = int(next(lines))
        process.send_signal(signal.SIGKILL)
        finished = max([finished, *(int(line) for line in process.stdout)])
        process.wait()
        found = content(load_index(folder))
        assert found["a.jpg"] == [1.0] * 3
        for number in range(1, finished + 1):
            if number % 3:
                assert found[f"new/{number}.jpg"] == [float(number)] * 3
        assert len(found) - 1 in range(finished - finished // 3, finished - finished // 3 + 3)


def test_the_file_of_an_older_version_is_searched_and_becomes_a_folder(tmp_path: Path) -> None:
    file = write_index(tmp_path / "old.index")
    before = content(load_index(file))
    assert file.is_file()
    add_images(file, {Path("e"): np.ones(8, np.float32)})
    assert file.is_dir()
    assert content(load_index(file)) == {**before, "e": [1.0] * 8}
    assert [path.name for path in tmp_path.iterdir()] == ["old.index"]


def test_an_interrupted_conversion_names_the_file_that_is_left(tmp_path: Path) -> None:
    file = write_index(tmp_path / "x.index")
    file.rename(tmp_path / "x.index.old")
    with pytest.raises(UserError, match=r"x\.index: no such index; .* rename it to"):
        load_index(file)
    (tmp_path / "x.index.old").rename(file)
    (tmp_path / "x.index.new").mkdir()
    with pytest.raises(UserError, match=r"x\.index\.new: exists already, but converting"):
        remove_images(file, [Path("a")])
    assert len(load_index(file)) == 4


def test_a_folder_without_an_index_is_an_error_and_stays_empty(tmp_path: Path) -> None:
    for act in (load_index, lambda path: add_images(path, {Path("a"): np.zeros(3, np.float32)})):
        with pytest.raises(UserError, match="expected a folder written by ppcls index"):
            act(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_index_that_may_not_be_written_is_searched(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write anything")
    folder = tmp_path / "x.index"
    create_index(folder, ImageIndex([Path("a")], vectors_of(1)))
    folder.chmod(0o500)
    assert len(load_index(folder)) == 1


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.full(4, np.nan, np.float32)])
def test_embeddings_that_do_not_fit_change_nothing(tmp_path: Path, wrong: np.ndarray) -> None:
    folder = tmp_path / "x.index"
    create_index(folder, ImageIndex([Path("a")], vectors_of(1, 4)))
    with pytest.raises(UserError, match="expected finite embeddings of 4 values"):
        add_images(folder, {Path("b"): wrong})
    assert list(load_index(folder).files) == [Path("a")]


USES: dict[str, Callable[[Path], object]] = {
    "search": load_index,
    "add": lambda folder: add_images(folder, {Path("new"): vectors_of(1, 4)[0]}),
    "remove": lambda folder: remove_images(folder, [Path("0.jpg")]),
}
PARTS = ["images.sqlite", "images.sqlite-journal", "vectors-0", "paths-0", "ends-0"]


def stranger(folder: Path) -> Path:
    create_index(folder, ImageIndex([Path(f"{at}.jpg") for at in range(40)], vectors_of(40, 4)))
    return folder


@pytest.mark.hostile
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["link", "folder"])
@pytest.mark.parametrize("part", PARTS)
def test_files_of_an_index_are_in_its_folder(part: str, kind: str, use: str, tmp_path: Path) -> None:
    folder = stranger(tmp_path / "x.index")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * 1000)
    content = secret.read_bytes()
    if part != "images.sqlite-journal":
        secret.write_bytes(content := (folder / part).read_bytes())
        (folder / part).unlink()
    if kind == "link":
        (folder / part).symlink_to(secret)
    else:
        (folder / part).mkdir()
    with pytest.raises(UserError, match=f"{part}: expected a file, found a link, a folder or a device"):
        USES[use](folder)
    assert secret.read_bytes() == content


@pytest.mark.hostile
@pytest.mark.parametrize("use", USES)
def test_journal_of_an_index_does_not_delete_a_file(use: str, tmp_path: Path) -> None:
    """SQLite deletes the file that an interrupted change of several databases names."""
    folder = stranger(tmp_path / "x.index")
    database = folder / "images.sqlite"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE about SET probe = zeroblob(100000)")
        files = {name: (folder / name).read_bytes() for name in ("images.sqlite", "images.sqlite-journal")}
        connection.execute("ROLLBACK")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    other = shutil.copytree(folder, tmp_path / "interrupted")
    USES[use](other)  # is repaired
    assert not (other / "images.sqlite-journal").exists()
    mine = tmp_path / "mine"
    mine.touch()
    name = os.fsencode(mine)
    end = struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    with (folder / "images.sqlite-journal").open("ab") as journal:
        journal.write(struct.pack(">I", (1 << 30) // 4096 + 1) + name + end)
    with pytest.raises(UserError, match="sqlite-journal: names another file, which SQLite would delete"):
        USES[use](folder)
    assert mine.exists()


@pytest.mark.hostile
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE about RENAME TO old; CREATE VIEW about AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT old.* FROM old, n WHERE i < 0",
        "CREATE TRIGGER t AFTER INSERT ON images BEGIN DELETE FROM images; END",
        "DROP TABLE removed; CREATE TABLE removed (row INTEGER PRIMARY KEY, x AS (row / 0))",
        "CREATE INDEX i ON images (row)",
    ],
)
def test_database_of_an_index_runs_no_statements_of_a_stranger(change: str, use: str, tmp_path: Path) -> None:
    folder = stranger(tmp_path / "x.index")
    with closing(sqlite3.connect(folder / "images.sqlite")) as connection:
        connection.executescript(change)
    with pytest.raises(UserError, match="expected the tables of an index, found"):
        USES[use](folder)


@pytest.mark.hostile
@pytest.mark.parametrize("part", ["images.sqlite", "vectors-0", "paths-0", "ends-0"])
def test_damaged_files_are_errors(tmp_path: Path, part: str) -> None:
    folder = tmp_path / "x.index"
    create_index(folder, ImageIndex([Path(f"{at}.jpg") for at in range(40)], vectors_of(40, 4)))
    remove_images(folder, [Path("3.jpg")])
    original = (folder / part).read_bytes()
    random = np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(original)
        if random.random() < 0.2:
            del data[random.integers(len(data)) :]
        for _ in range(random.integers(1, 5)):
            if data:
                data[random.integers(len(data))] = random.integers(256)
        (folder / part).write_bytes(data)
        try:
            index = load_index(folder)
            for found in index.nearest(vectors_of(2, index.vectors.shape[1]), 5):
                str(found)
        except UserError:
            pass
