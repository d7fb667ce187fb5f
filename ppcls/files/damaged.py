"""Errors that NumPy raises for damaged files."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

# NumPy passes on the errors of zipfile, such as RuntimeError for a flag of encryption, and its subclass
# NotImplementedError for an unknown compression. The header of an array is parsed as Python.
NUMPY_ERRORS = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, struct.error),
    *(RecursionError, RuntimeError, MemoryError, OverflowError, SyntaxError, tokenize.TokenError),
)
