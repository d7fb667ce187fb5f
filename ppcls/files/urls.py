"""Addresses in object storage, such as ``s3://bucket/runs/pets``, and the folders of their local copies.

Decisions:
- A config keeps the address. Everything that reads or writes files uses the local copy, so all promises
  about local files hold, and a run continues while the storage can't be reached.
- The folder of a copy follows from the address alone, so all processes of a machine share it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PosixPath

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
