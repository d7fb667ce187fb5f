"""Addresses in object storage, such as ``s3://bucket/runs/pets``, and the folders of their local copies.

Decisions:
- A config keeps the address. Everything that reads or writes files uses the local copy, so all promises
  about local files hold, and a run continues while the storage can't be reached.
- The folder of a copy follows from the address alone, so all processes of a machine share it.
- Messages to the user name the address that the user typed. Below its copy of a model, each path of a message
  is replaced where the message is printed, or where an error leaves the Python API, because errors come from
  functions that only know the path. A file beside the copy contains its address. Copies of runs that train
  here have messages of their own, because their files, such as report.html, are there before they are
  uploaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath

from ppcls.errors import UserError
from ppcls.files import MODEL_COPY
from ppcls.files.temporary import temporary_sibling
from ppcls.zoo import cache_folder

_URL = re.compile(r"(s3|s3a|gs|gcs|az|abfs|abfss|file|memory)://", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


_SCHEME = re.compile(r"([A-Za-z0-9]+):/(?!/)")


class UrlPath(PosixPath):
    """An address in object storage, for messages. Its text is that of the address; nothing reads it.

    A `Path` would lose one of the two slashes after the colon.
    """

    def __str__(self) -> str:
        return _SCHEME.sub(r"\1://", super().__str__(), count=1)


def is_url(text: str) -> bool:
    """Returns whether a text is an address in object storage. ``hf-hub:`` and web addresses are not."""
    return _URL.match(text) is not None


def lower_scheme(url: str) -> str:
    """Returns an address whose scheme is in lower case, as fsspec needs it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.lower()}{separator}{rest}"


def local_path(text: str) -> Path:
    """Returns the path of a file or folder, which for an address in object storage is that of its copy."""
    if not is_url(text):
        return Path(text)
    address = lower_scheme(text.rstrip("/"))
    digest = hashlib.blake2b(address.encode(), digest_size=6).hexdigest()
    name = _UNSAFE.sub("_", address.rsplit("/", 1)[-1])[:80]
    return cache_folder("storage") / f"{name}-{digest}"


def model_copy(url: str) -> Path:
    """Returns the folder for the copy of a model in object storage, for other purposes than its training.

    A run that trains on this machine has a copy of its own. Its last files may not be uploaded yet, so a
    download must never write there.
    """
    folder = local_path(url)
    return folder.with_name(f"{folder.name}{MODEL_COPY}")


def note_address(copy: Path, url: str) -> None:
    """Writes the address of the copy of a model to a file, for `show_addresses`."""
    file = _address_file(copy)
    temporary = temporary_sibling(file)
    try:
        temporary.write_text(url.rstrip("/"), encoding="utf-8", errors="surrogateescape")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def show_addresses(text: str) -> str:
    """Returns a text in which the folder of each copy of a model is replaced by its address."""
    if MODEL_COPY not in text:
        return text
    folder = re.escape(str(cache_folder("storage")))
    return re.sub(
        rf"{folder}/[A-Za-z0-9._-]+-[0-9a-f]{{12}}{MODEL_COPY}(?![A-Za-z0-9._-])", _show_address, text
    )


@contextmanager
def naming_addresses() -> Iterator[None]:
    """Returns a context in which errors name the address of a model instead of the folder of its copy.

    It is also a decorator of functions.
    """
    try:
        yield
    except UserError as error:
        error.args = tuple(show_addresses(each) if isinstance(each, str) else each for each in error.args)
        raise


def _show_address(found: re.Match[str]) -> str:
    try:
        return _address_file(Path(found[0])).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:  # of an earlier version
        return found[0]


def _address_file(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.address")
