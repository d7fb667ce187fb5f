"""Reads files that Paddle pickled, without running the code in them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppcls.errors import UserError
from ppcls.files import open_regular
from ppcls.weights.pickle_interpreter import PickleInterpreter, ReadBudget, RejectedFileError

# Exceptions that reading raises if a file is damaged or is not a pickle.
DAMAGED_FILE_ERRORS = (
    OSError,
    ArithmeticError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)


def unpickle(path: Path) -> Any:
    """Reads a file that Paddle pickled, without running the code in it.

    Returns:
        A dict, list, tuple, string, bytes object, number, None, or read-only NumPy array or scalar of
        numbers. Containers may be nested. Arrays that are not numeric are replaced by None.

    Raises:
        UserError: The file is missing or damaged, contains other objects, or is too expensive to read.
    """
    with (
        reading_weights(path),
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return PickleInterpreter(ReadBudget(len(data))).run(data)


def unpickle_bytes(data: bytes, path: Path) -> Any:
    """Reads a pickled dataset from the bytes of its file, in the same way as `unpickle`.

    Args:
        data: Bytes of the file.
        path: Path of the file, for messages.

    Raises:
        UserError: See `unpickle`.
    """
    with reading_weights(path, "a dataset", "download the dataset from its original source"):
        return PickleInterpreter(ReadBudget(len(data))).run(data)


@contextmanager
def reading_weights(
    path: Path,
    kind: str = "a file of weights",
    fix: str = "save only the state dict of the model, or convert the file to .safetensors",
) -> Iterator[None]:
    """Returns a context that converts errors while reading a file into `UserError`.

    Args:
        path: Path of the file, for messages.
        kind: Description of the file, for messages.
        fix: Advice for a file with objects that are not allowed, for messages.
    """
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected {kind}; correct the path") from None
    except RejectedFileError as error:
        raise UserError(
            f"{path}: rejected: expected {kind} with only arrays, numbers and text, found {error}; {fix}"
        ) from None
    except DAMAGED_FILE_ERRORS as error:
        # The message of a LookupError would only be a key.
        reason = (
            "expected only references to values of the file, found another one"
            if isinstance(error, LookupError)
            else str(error)[:200]
        )
        raise UserError(
            f"{path}: damaged, or not a {path.suffix} file: {reason}; copy or download the file again"
        ) from None
