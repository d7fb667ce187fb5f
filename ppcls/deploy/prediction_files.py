"""Files of predictions: CSV, JSON lines and Parquet.

Decisions:
- Scores in CSV have six digits, as in tables of mistakes. JSON lines and Parquet have all.
- CSV and JSON lines are written line by line, so that a later failure does not lose a result.
- Parquet files have a footer, which is written when the file is closed, also after an error or Ctrl-C. A
  process that is killed leaves no readable Parquet file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ppcls.errors import UserError
from ppcls.files.outputs import check_suffix

if TYPE_CHECKING:  # not needed for --help
    from ppcls.deploy.infer import FailedFile, PredictedFile

TABLE = ".csv"
LINES = ".jsonl"
PARQUET = ".parquet"
_SUFFIXES = (TABLE, LINES, PARQUET)
_BLOCK = 4096  # number of results that are written to a Parquet file together


class PredictionFile(Protocol):
    """A file to which results are written.

    Attributes:
        lines: Number of results that it received.
    """

    lines: int

    def __call__(self, result: PredictedFile | FailedFile) -> None:
        """Writes the result of one image.

        Raises:
            UserError: The result can't be written, or has no classes, which the columns of a table need.
        """

    def close(self) -> None:
        """Completes the file."""


@contextmanager
def open_results(name: Path | None, classes: int) -> Iterator[PredictionFile]:
    """Opens the file for the results, or /dev/null if ``name`` is None. At the end, deletes an empty file.

    Args:
        name: The new file, whose suffix selects the format.
        classes: Number of classes per image in a table.

    Raises:
        UserError: The suffix is unknown, the file exists or can't be created, or a package is missing.
    """
    path = name or Path("/dev/null")
    check_suffix("--out", path, *_SUFFIXES)
    suffix = path.suffix.lower()
    if suffix == PARQUET:
        _import_pyarrow(path)  # before the file is created
    device = path.exists() and not path.is_file() and not path.is_dir()
    try:
        file = path.open("wb" if device else "xb", buffering=0)
    except FileExistsError:
        state = "is a folder" if path.is_dir() else "exists already and is not overwritten"
        raise UserError(f"--out {name}: {state}; choose a new file") from None
    except OSError as error:
        raise UserError(f"--out {name}: cannot be created: {error.strerror}") from None
    with file:
        results: PredictionFile
        if suffix == PARQUET:
            results = _ParquetFile(path, file, classes)
        else:
            results = _TextFile(path, file, classes if suffix == TABLE else None)
        try:
            yield results
        finally:
            try:
                results.close()
            finally:
                if not results.lines and not device:
                    path.unlink(missing_ok=True)


class _TextFile:
    """A file to which each result is written at once.

    Args:
        path: Path of the file, for messages.
        file: The file, without a buffer.
        classes: Number of classes per image in a CSV table; None for JSON lines.
    """

    def __init__(self, path: Path, file: BinaryIO, classes: int | None) -> None:
        self._path = path
        self._file = file
        self._classes = classes
        self.lines = 0
        self._size = 0

    def __call__(self, result: PredictedFile | FailedFile) -> None:
        """Writes the result of one image."""
        from ppcls.deploy.infer import table_columns
        from ppcls.files.tables import format_row, format_table

        if self._classes is None:
            self._write(f"{result.as_json()}\n")
            return
        columns = table_columns(self._classes)
        row = {
            name: cell and f"{float(cell):.6f}" if name.startswith("score") else cell
            for name, cell in result.as_row().items()
        }
        self._write(format_row(columns, row) if self.lines else format_table(columns, [row]))

    def close(self) -> None:
        """Does nothing, because all results are written."""

    def _write(self, text: str) -> None:
        data = text.encode()
        size = self._size + len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            with suppress(OSError):  # a device has no size
                self._file.truncate(self._size)
            raise UserError(
                f"{self._path}: cannot be written: {error.strerror}; it contains the first {self.lines} "
                "results"
            ) from None
        self._size = size
        self.lines += 1


class _ParquetFile:
    """A Parquet file with the columns of the CSV table: texts, and float64 scores.

    Args:
        path: Path of the file, for messages.
        file: The file.
        classes: Number of classes per image.
    """

    def __init__(self, path: Path, file: BinaryIO, classes: int) -> None:
        from ppcls.deploy.infer import rank_columns, table_columns

        pyarrow, parquet = _import_pyarrow(path)
        scores = {rank_columns(rank)[1] for rank in range(1, classes + 1)}
        self._schema = pyarrow.schema(
            [
                (name, pyarrow.float64() if name in scores else pyarrow.string())
                for name in table_columns(classes)
            ]
        )
        self._scores = scores
        self._new_table = pyarrow.Table.from_pylist
        self._path = path
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._rows: list[dict[str, Any]] = []
        self.lines = 0

    def __call__(self, result: PredictedFile | FailedFile) -> None:
        """Adds the result of one image."""
        row = result.as_row()
        self._rows.append(
            {name: float(cell) if name in self._scores else _as_utf8(cell) for name, cell in row.items()}
        )
        self.lines += 1
        if len(self._rows) == _BLOCK:
            self._flush()

    def close(self) -> None:
        """Writes the remaining results and the footer."""
        with self._named():
            try:
                self._flush()
            finally:
                self._writer.close()

    def _flush(self) -> None:
        rows = self._rows
        self._rows = []
        if rows:
            with self._named():
                self._writer.write_table(self._new_table(rows, schema=self._schema))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raises a `UserError` that names the file if it can't be written."""
        try:
            yield
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror or error}") from None


def _as_utf8(text: str) -> str:
    """Returns a text with "?" for what UTF-8, in which Parquet stores texts, can't represent."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _import_pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"--out {path}: Parquet needs the package pyarrow: pip install '.[parquet]' in the folder of "
            f"ppcls, or: pip install pyarrow; or choose a file name that ends in {TABLE} or {LINES}"
        ) from None
    return pyarrow, parquet
