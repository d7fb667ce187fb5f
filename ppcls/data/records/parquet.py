"""Reads images and labels from Parquet files, the format of image data sets on the Hugging Face Hub.

Decisions:

- The columns are kept in memory as Arrow arrays, which forked workers share, because Parquet compresses whole
  pages of rows: reading one image in random order would decompress all images of its page.
- The package pyarrow is imported only here, because only this format needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.errors import UserError, counted

_BYTES = "bytes"  # field of an image column of the package datasets, beside its path


class ParquetIndex:
    """Implements `ppcls.data.index.protocol.Index` for the rows of Parquet files.

    Args:
        files: The files.
        images: Encoded images of each file, as Arrow arrays of binary values.
        labels: Labels of each file, [N] int64 each.
    """

    def __init__(
        self, files: Sequence[Path], images: Sequence[Any], labels: Sequence[NDArray[np.int64]]
    ) -> None:
        self._files = tuple(files)
        self._images = tuple(images)
        self._ends = np.cumsum([len(part) for part in labels])
        self.labels: NDArray[np.int64] = np.concatenate(labels)
        self.source = files[0].parent if len(files) > 1 else files[0]

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:
        """Returns the path of the file that contains a sample."""
        return str(self._files[self._find(position)[0]])

    def where(self, position: int) -> str:
        """Returns the location of a sample, such as ``row 7``."""
        return f"row {self._find(position)[1]}"

    def read(self, position: int) -> bytes:
        """Returns the encoded image; see `ppcls.data.index.protocol.Index`."""
        file, row = self._find(position)
        content = self._images[file][row].as_py()
        if not content:
            raise DecodeError("the row has no image")
        return bytes(content)

    def _find(self, position: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, position, side="right"))
        return file, position - (int(self._ends[file - 1]) if file else 0)


def read_parquet(files: Sequence[Path], image_column: str, label_column: str) -> ParquetIndex:
    """Returns the rows of Parquet files.

    Args:
        files: The files, at least one.
        image_column: Column of the encoded images: binary values, or structures with the field ``bytes``.
        label_column: Column of the labels, whole numbers.

    Raises:
        UserError: pyarrow is not installed, or a file is missing or damaged, or lacks a column.
    """
    images = []
    labels = []
    for file in files:
        table = _read_table(file, [image_column, label_column])
        images.append(_encoded_images(file, table.column(image_column), image_column))
        labels.append(_whole_numbers(file, table.column(label_column), label_column))
    if not sum(map(len, labels)):
        raise UserError(f"{files[0]}: no rows; expected a file with at least one image")
    return ParquetIndex(files, images, labels)


def _read_table(file: Path, columns: list[str]) -> Any:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"{file}: Parquet needs the package pyarrow: pip install '.[parquet]' in the folder of ppcls, "
            "or: pip install pyarrow"
        ) from None
    try:
        with parquet.ParquetFile(file) as content:
            names = content.schema_arrow.names
            missing = [column for column in columns if column not in names]
            if missing:
                raise UserError(
                    f"{file}: no column {missing[0]!r}; expected one of {', '.join(map(repr, names))}; set "
                    "image_column and label_column of the dataset"
                )
            return content.read(columns=columns)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; check 'paths' of the dataset") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{file}: can't read this Parquet file: {error}; download it again") from None


def _encoded_images(file: Path, column: Any, name: str) -> Any:
    from pyarrow import compute, types

    kind = column.type
    if types.is_struct(kind) and kind.get_field_index(_BYTES) >= 0:
        column = compute.struct_field(column, _BYTES)
        kind = column.type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise UserError(
            f"{file}: column {name!r}: expected encoded images as binary values, or as structures with the "
            f"field {_BYTES!r}, found {kind}; set image_column of the dataset"
        )
    return column


def _whole_numbers(file: Path, column: Any, name: str) -> NDArray[np.int64]:
    from pyarrow import types

    if not types.is_integer(column.type) or column.null_count:
        actual = f"{counted(column.null_count, 'row')} without one" if column.null_count else str(column.type)
        raise UserError(
            f"{file}: column {name!r}: expected a whole number for each image, found {actual}; set "
            "label_column of the dataset, or write the number of each class into the file"
        )
    return np.asarray(column.to_numpy(), np.int64)
