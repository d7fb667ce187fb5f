"""Stores an index of images in a folder, so that adding or removing an image does not rewrite the others.

Decisions:
- Embeddings, paths and the ends of paths are in flat files, to which images are only appended. A search maps
  them into memory, so that it reads only what it uses, and all processes of a machine share the memory.
- SQLite finds the row of a path, and commits a change. What is in the flat files after the number of rows in
  SQLite was left by a process that was killed; the next change overwrites it.
- A row is never changed or used again, because a server may have mapped it. Removed rows are listed. When
  there are many, all files are written again under new names, which costs a constant time per removal.
- A graph of ``hnsw`` can't be extended in its file. It covers the first rows, and the others are compared
  with each query until there are enough of them for a new graph.
- An index may come from a stranger. Its files may not be links, its database has the tables of ppcls and
  nothing else, such as a view that computes for hours, and its journal may not name another file, which
  SQLite would delete.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, overload
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.image_index import Floats, ImageIndex, Kind, import_faiss
from ppcls.deploy.index_file import read_index_file
from ppcls.errors import UserError, counted
from ppcls.files import new_folder, one_line, open_regular

_DATABASE = "images.sqlite"
_FORMAT = 1
_JOURNAL = f"{_DATABASE}-journal"
_DATABASE_FILES = {_DATABASE, _JOURNAL, f"{_DATABASE}-wal", f"{_DATABASE}-shm"}
_FLAT_FILE = re.compile(r"(vectors|paths|ends)-\d+|graph-\d+-\d+")
# The end of a journal that names another file, as SQLite writes it if a transaction changes several databases
_NAMES_FILE = bytes.fromhex("d9d505f920a163d7")
_MIN_REMOVED = 1000  # number of removed rows up to which the files are not written again
_MIN_NEW = 1000  # number of new rows up to which no new graph is built
_TIMEOUT = 60.0  # seconds to wait for another process that changes the index
_BLOCK = 1 << 14  # number of rows that are copied together
_PAGE = 4096  # bytes of a path, at most
_SCHEMA = """
CREATE TABLE about (
    format INTEGER, kind TEXT, model BLOB, probe BLOB, width INTEGER, generation INTEGER, rows INTEGER,
    graph INTEGER
);
CREATE TABLE images (path BLOB PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE removed (row INTEGER PRIMARY KEY);
"""


@dataclass(frozen=True)
class _About:
    """The only row of the table ``about``.

    Attributes:
        kind: Kind of the index.
        model: Path of the model, as bytes.
        probe: Embedding of the test image, as bytes of float32.
        width: Number of values of an embedding.
        generation: Number in the names of the flat files.
        rows: Number of rows, including removed ones.
        graph: Number of rows that the graph covers; 0 without a graph.
    """

    kind: Kind
    model: bytes
    probe: bytes
    width: int
    generation: int
    rows: int
    graph: int

    def check(self) -> None:
        """Raises a ValueError if a value is not plausible."""
        sizes = (self.width, self.generation, self.rows, self.graph)
        if self.kind not in get_args(Kind) or not all(isinstance(size, int) for size in sizes):
            raise ValueError(f"found kind {self.kind!r} and sizes {sizes}")
        if not (self.width > 0 and self.rows > 0 and 0 <= self.graph <= self.rows and self.generation >= 0):
            raise ValueError(f"found impossible sizes {sizes}")
        if not (isinstance(self.model, bytes) and isinstance(self.probe, bytes)):
            raise ValueError("found a model or a test image of another type than bytes")
        if len(self.probe) not in (0, 4 * self.width):
            raise ValueError(f"found a test image of {len(self.probe)} bytes for {self.width} values")
        if not np.isfinite(np.frombuffer(self.probe, np.float32)).all():
            raise ValueError("found a test image with NaN or infinity")


class _StoredPaths(Sequence[Path]):
    """Paths in a file that is mapped into memory.

    Args:
        content: Bytes of all paths.
        ends: [N] end of each path in them.
        moved: Row of a path in the file, for each row that was moved.
        count: Number of paths.
    """

    def __init__(
        self, content: NDArray[np.uint8], ends: NDArray[np.int64], moved: Mapping[int, int], count: int
    ) -> None:
        self._content = content
        self._ends = ends
        self._moved = moved
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> Path: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Path]: ...

    def __getitem__(self, row: int | slice) -> Path | Sequence[Path]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(self._count))]
        row = range(self._count)[row]
        row = self._moved.get(row, row)
        start, end = (0 if row == 0 else int(self._ends[row - 1])), int(self._ends[row])
        if not 0 <= start < end <= len(self._content) or end - start > _PAGE:
            raise UserError(f"the index is damaged: the path of image {row} is from {start} to {end}")
        name = self._content[start:end].tobytes()
        if b"\0" in name:
            raise UserError(f"the index is damaged: the path of image {row} has a NUL character")
        return Path(os.fsdecode(name))


def load_index(path: Path) -> ImageIndex:
    """Returns the index in a folder, or in a file of an older version of ppcls.

    Raises:
        UserError: The index is missing, cannot be read, or is not an index.
    """
    if not path.is_dir():
        if not path.exists() and (old := _backup(path)).is_file():
            raise UserError(f"{path}: no such index; a change of {old} was interrupted: rename it to {path}")
        return read_index_file(path)
    with _errors_name(path):
        for _ in range(3):  # another process may write all files again meanwhile
            with closing(_connect(path)) as database:
                database.execute("BEGIN")  # so that both reads see the same state
                _check_tables(database)
                about = _read_about(database)
                rows = database.execute("SELECT row FROM removed ORDER BY row").fetchall()
            try:
                return _map_index(path, about, np.array([row for (row,) in rows], np.int64))
            except FileNotFoundError as error:
                missing = error
        raise missing


def create_index(path: Path, index: ImageIndex) -> None:
    """Writes an index to a new folder, atomically.

    Raises:
        FileExistsError: The path exists.
        UserError: The folder cannot be written.
    """
    with (
        _errors_name(path),
        new_folder(path, sync_each=True) as folder,
        closing(_connect(folder, "rwc")) as database,
    ):
        database.executescript(_SCHEMA)
        width = index.vectors.shape[1]
        model = os.fsencode(index.model)
        values = (_FORMAT, index.kind, model, index.probe.astype(np.float32).tobytes(), width, 0, 0, 0)
        database.execute("INSERT INTO about VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        database.execute("BEGIN")
        removed = set(index.removed.tolist())
        kept = (row for row in range(len(index.files)) if row not in removed)
        while rows := list(islice(kept, _BLOCK)):
            _append(folder, database, [index.files[row] for row in rows], index.vectors[rows])
        if index.kind == "hnsw":
            graph = None if removed else index.graph
            _write_graph(folder, database, graph)
        database.execute("COMMIT")


def add_images(path: Path, embeddings: Mapping[Path, Floats]) -> None:
    """Adds images to an index. Images that are already in it are replaced.

    Raises:
        UserError: The index cannot be read or written.
    """
    with _change(path) as (folder, database):
        items = iter(embeddings.items())
        while block := list(islice(items, _BLOCK)):
            _append(folder, database, [file for file, _ in block], np.stack([vector for _, vector in block]))


def remove_images(path: Path, removed: Sequence[Path]) -> None:
    """Removes the images at some paths or in some folders from an index.

    Raises:
        UserError: A path matches no image of the index, no image remains, or the index cannot be read or
            written.
    """
    with _change(path) as (_, database):
        matches = [_find(database, file) for file in removed]
        for file, rows in zip(removed, matches, strict=True):
            if not rows:
                (example,) = database.execute("SELECT path FROM images ORDER BY path LIMIT 1").fetchone()
                raise UserError(
                    f"{file}: not in the index; expected a path under which an image was added, such as "
                    f"{one_line(os.fsdecode(example))}, or a folder of such paths"
                )
        gone = dict(pair for rows in matches for pair in rows)
        database.executemany("DELETE FROM images WHERE path = ?", [(name,) for name in gone])
        database.executemany("INSERT INTO removed VALUES (?)", [(row,) for row in gone.values()])
        if database.execute("SELECT path FROM images LIMIT 1").fetchone() is None:
            raise UserError(
                "expected an index with at least one image, found none after the removal; delete the folder "
                "of the index instead"
            )


def _find(database: sqlite3.Connection, path: Path) -> list[tuple[bytes, int]]:
    """Returns path and row of an image, or of all images in a folder."""
    select = "SELECT path, row FROM images WHERE"
    if path == Path():  # all relative paths; "0" follows "/"
        return database.execute(f"{select} path < ? OR path >= ?", (b"/", b"0")).fetchall()
    name = os.fsencode(path)
    folder = name.rstrip(b"/")
    exact = database.execute(f"{select} path = ?", (name,)).fetchall()
    return [*exact, *database.execute(f"{select} path >= ? AND path < ?", (folder + b"/", folder + b"0"))]


@contextmanager
def _change(path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """Returns a context that changes an index, which is unchanged if the block raises an error."""
    if not path.is_dir():
        _convert(path)
    with _errors_name(path), closing(_connect(path)) as database:
        database.execute("BEGIN IMMEDIATE")  # other processes wait
        try:
            _check_tables(database)
            before = _read_about(database)
            used = _flat_files(path, before).values()
            for file in path.glob("*-[0-9]*"):  # left by processes that were killed
                if file not in used and _FLAT_FILE.fullmatch(file.name):
                    file.unlink()
            yield path, database
            after = _maintain(path, database)
            database.execute("COMMIT")
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
        # Processes that have mapped the old files keep their content.
        for file in set(used).difference(_flat_files(path, after).values()):
            file.unlink()


def _maintain(folder: Path, database: sqlite3.Connection) -> _About:
    """Writes all files again if there are many removed rows, or the graph if there are many new rows."""
    about = _read_about(database)
    (removed,) = database.execute("SELECT COUNT(*) FROM removed").fetchone()
    if removed > max(_MIN_REMOVED, about.rows // 4):
        files = database.execute("SELECT path, row FROM images ORDER BY row").fetchall()
        vectors = _map_index(folder, about, np.zeros(0, np.int64), with_graph=False).vectors
        database.execute("UPDATE about SET generation = generation + 1, rows = 0, graph = 0")
        database.execute("DELETE FROM removed")
        database.execute("DELETE FROM images")
        for start in range(0, len(files), _BLOCK):
            part = files[start : start + _BLOCK]
            rows = [row for _, row in part]
            _append(folder, database, [Path(os.fsdecode(name)) for name, _ in part], vectors[rows])
        about = _read_about(database)
    if about.kind == "hnsw" and about.rows - about.graph > max(_MIN_NEW, about.graph // 4):
        _write_graph(folder, database, None)
    return _read_about(database)


def _convert(path: Path) -> None:
    """Replaces the index file of an older version by a folder. The file is removed at the end."""
    index = read_index_file(path)
    backup = _backup(path)
    converted = path.with_name(f"{path.name}.new")
    for place in (backup, converted):
        if os.path.lexists(place):
            raise UserError(
                f"{place}: exists already, but converting {path} to a folder needs it; move it away"
            )
    create_index(converted, index)
    path.rename(backup)
    converted.rename(path)
    backup.unlink()


def _backup(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _append(folder: Path, database: sqlite3.Connection, files: Sequence[Path], vectors: NDArray[Any]) -> None:
    """Appends rows to the flat files, and records them."""
    about = _read_about(database, new=True)
    if vectors.ndim != 2 or vectors.shape[1] != about.width or not np.isfinite(vectors).all():
        raise UserError(
            f"expected finite embeddings of {about.width} values, as in the index, got {vectors.shape}"
        )
    names = [os.fsencode(file) for file in files]
    if long := [name for name in names if len(name) > _PAGE]:
        raise UserError(f"expected paths of at most {_PAGE} bytes, got {len(long[0])}: {long[0]!r}")
    places = _flat_files(folder, about)
    first = 0
    if about.rows:
        with places["ends"].open("rb") as stored:
            stored.seek(8 * (about.rows - 1))
            first = int.from_bytes(stored.read(8), "little")
    ends = first + np.cumsum([len(name) for name in names], dtype=np.int64)
    content = np.ascontiguousarray(vectors, np.float32).tobytes()
    for kind, offset, data in (
        ("vectors", 4 * about.width * about.rows, content),
        ("paths", first, b"".join(names)),
        ("ends", 8 * about.rows, ends.tobytes()),
    ):
        with places[kind].open("r+b" if about.rows else "wb") as file:
            file.seek(offset)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    if not about.rows:
        _sync_folder(folder)
    for row, name in enumerate(names, start=about.rows):
        database.execute("INSERT INTO removed SELECT row FROM images WHERE path = ?", (name,))
        database.execute("INSERT OR REPLACE INTO images VALUES (?, ?)", (name, row))
    database.execute("UPDATE about SET rows = rows + ?", (len(names),))


def _write_graph(folder: Path, database: sqlite3.Connection, graph: Any) -> None:
    """Writes the graph of all rows.

    Args:
        graph: The graph; None to build it.
    """
    faiss = import_faiss()
    about = _read_about(database)
    if graph is None:
        index = _map_index(folder, about, np.zeros(0, np.int64), with_graph=False)
        graph = ImageIndex(index.files, index.vectors, "hnsw").graph
    database.execute("UPDATE about SET graph = ?", (about.rows,))
    file = _flat_files(folder, _read_about(database))["graph"]
    faiss.write_index(graph, str(file))
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Writes the names of new files to the disk, before SQLite commits them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _map_index(
    folder: Path, about: _About, removed: NDArray[np.int64], *, with_graph: bool = True
) -> ImageIndex:
    """Maps the files of an index into memory.

    Args:
        removed: [R] removed rows, in ascending order.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is too short, or not what it should be.
    """
    places = _flat_files(folder, about)
    rows, width = about.rows, about.width
    if len(removed) and not (removed[0] >= 0 and removed[-1] < rows and len(removed) < rows):
        raise ValueError(f"found {counted(len(removed), 'removed row')} up to {removed[-1]} of {rows}")
    vectors = _map(places["vectors"], np.float32, rows * width).reshape(rows, width)
    ends = _map(places["ends"], np.int64, rows)
    content = _map(places["paths"], np.uint8, max(0, int(ends[-1])))
    moved: dict[int, int] = {}
    stored = None
    count = rows
    if about.kind == "hnsw" and with_graph:
        if not about.graph:
            raise ValueError("found no graph")
        stored = _read_graph(places["graph"], about)
    elif len(removed):
        # The last rows take the places of removed rows, in the memory of this process only.
        count = rows - len(removed)
        free = removed[removed < count]
        last = np.setdiff1d(np.arange(count, rows), removed)
        vectors[free] = vectors[last]
        vectors = vectors[:count]
        moved = dict(zip(free.tolist(), last.tolist(), strict=True))
        removed = removed[:0]
    probe = np.frombuffer(about.probe, np.float32)
    paths = _StoredPaths(content, ends, moved, count)
    return ImageIndex(paths, vectors, about.kind, os.fsdecode(about.model), probe, stored, removed)


def _read_graph(file: Path, about: _About) -> Any:
    faiss = import_faiss()
    if not file.is_file():
        raise FileNotFoundError(2, "No such file", str(file))
    # FAISS 1.9 can't map a graph.
    graph = faiss.read_index(str(file), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    if not isinstance(graph, faiss.IndexHNSWFlat) or (graph.ntotal, graph.d) != (about.graph, about.width):
        raise ValueError(
            f"{file}: expected IndexHNSWFlat with vectors of shape {(about.graph, about.width)}, got "
            f"{type(graph).__name__} with {(graph.ntotal, graph.d)}"
        )
    return graph


def _map(file: Path, dtype: type[Any], count: int) -> NDArray[Any]:
    """Maps the first values of a file into memory. Changes stay in this process."""
    needed = count * np.dtype(dtype).itemsize
    if (size := file.stat().st_size) < needed or not count:
        raise ValueError(f"{file}: expected at least {needed} bytes, found {size}")
    return np.asarray(np.memmap(file, dtype, "c", shape=(count,)))


def _flat_files(folder: Path, about: _About) -> dict[str, Path]:
    names = {kind: f"{kind}-{about.generation}" for kind in ("vectors", "paths", "ends")}
    if about.graph:
        names["graph"] = f"graph-{about.generation}-{about.graph}"
    return {kind: folder / name for kind, name in names.items()}


def _connect(folder: Path, mode: Literal["rw", "rwc"] = "rw") -> sqlite3.Connection:
    """Opens the database of a folder, which may be read-only.

    Args:
        folder: Folder of the index.
        mode: ``rwc`` to create the database.

    Raises:
        UserError: See `_check_files`.
    """
    if mode == "rw":
        _check_files(folder)
    address = f"file:{quote(os.fsencode((folder / _DATABASE).absolute()))}?mode={mode}"
    database = sqlite3.connect(address, timeout=_TIMEOUT, isolation_level=None, uri=True)
    # The file may be of a stranger.
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    return database


def _check_files(folder: Path) -> None:
    """Checks that the files of an index are its own.

    Raises:
        UserError: A file is a link, or something else than a regular file; or the journal names a file.
    """
    for file in folder.iterdir():
        known = file.name in _DATABASE_FILES or _FLAT_FILE.fullmatch(file.name)
        if known and (file.is_symlink() or (file.exists() and not file.is_file())):
            raise UserError(
                f"{file}: expected a file, found a link, a folder or a device; copy the index again"
            )
    try:
        with open_regular(folder / _JOURNAL) as journal:
            size = os.fstat(journal.fileno()).st_size
            journal.seek(max(0, size - len(_NAMES_FILE)))
            if journal.read() == _NAMES_FILE:
                raise UserError(
                    f"{folder / _JOURNAL}: names another file, which SQLite would delete; remove it"
                )
    except FileNotFoundError:  # no change was interrupted
        pass


def _check_tables(database: sqlite3.Connection) -> None:
    """Raises a ValueError if the database contains anything else than the tables of an index."""
    statements = (sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
    actual = sorted(" ".join(sql.split()) for sql in statements)
    expected = sorted(" ".join(sql.split()) for sql in _SCHEMA.split(";") if sql.strip())
    if actual != expected:
        raise ValueError(
            f"expected the tables of an index, found {counted(len(actual), 'other table')}, views or triggers"
        )


def _read_about(database: sqlite3.Connection, *, new: bool = False) -> _About:
    """Returns the row of the table ``about``.

    Args:
        new: Whether the index may be empty.
    """
    select = "SELECT format, kind, model, probe, width, generation, rows, graph FROM about"
    lines = database.execute(select).fetchall()
    if len(lines) != 1 or lines[0][0] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, found {[line[0] for line in lines]}")
    about = _About(*lines[0][1:])
    if not new:
        about.check()
    return about


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Returns a context that converts errors to a `UserError` with the path of the index."""
    try:
        yield
    except FileExistsError:
        raise
    except sqlite3.OperationalError as error:
        raise UserError(
            f"{path}: cannot be read or written as an index: {error}; expected a folder written by ppcls "
            "index"
        ) from None
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: cannot be read or written as a part of an index: "
            f"{error.strerror or error}; if it is missing, build the index again"
        ) from None
    except (sqlite3.DatabaseError, ValueError, TypeError, RuntimeError, MemoryError, OverflowError) as error:
        raise UserError(
            f"{path}: expected a folder written by ppcls index: {error}; build the index again"
        ) from None
