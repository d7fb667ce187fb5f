"""Reads and writes objects below one address, through fsspec, and retries what may be temporary.

Decisions:
- Every error is retried except those that waiting can't mend (a missing object, an unknown bucket, a missing
  package). The libraries behind fsspec raise classes of their own, so an allow list of temporary errors would
  miss some, and a run of days would end because of one of them.
- A connection is opened again after an error, and reads the credentials again. Those of rented machines
  expire after hours and are renewed in a file or by the machine.
- fsspec caches the lists of folders. Here, each list is read again, because another machine may have written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ppcls.errors import TryAgainError, UserError
from ppcls.files.temporary import temporary_sibling

RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each retry
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_PERMANENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, ImportError)
_Result = TypeVar("_Result")


class StorageError(TryAgainError):
    """Raised if object storage can't be read or written after all retries."""


class Objects:
    """The objects below an address such as ``s3://bucket/runs/pets``.

    Args:
        url: The address.

    Raises:
        UserError: The package for this kind of storage is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._system: Any = None  # None: not connected, or to connect again
        self._root = ""
        try:
            self._retry(self._connect, "open")
        except ImportError as error:
            kind = url.split(":", 1)[0].lower()
            raise UserError(
                f"{url}: {error}; install it with pip install '.[{_EXTRAS.get(kind, kind)}]'"
            ) from None

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each object, by its name below the address."""

        def find() -> dict[str, int]:
            self._system.invalidate_cache()
            try:
                entries = self._system.find(self._root, detail=True)
            except FileNotFoundError:  # an empty folder, or a bucket without objects
                return {}
            start = len(self._root) + 1
            return {
                path[start:]: int(entry["size"])
                for path, entry in entries.items()
                if entry["type"] == "file" and path.startswith(f"{self._root}/")
            }

        return self._retry(find, "list")

    def is_object(self) -> bool:
        """Returns whether the address is that of one object instead of a folder."""

        def check() -> bool:
            self._system.invalidate_cache()
            return bool(self._system.isfile(self._root))

        return self._retry(check, "read")

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object; None if it does not exist."""
        try:
            return self._retry(lambda: bytes(self._system.cat_file(self._path(name))), "read", name)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes an object. Readers see the old content or the new one, never a part."""
        self._replace(name, lambda path: self._system.pipe_file(path, content))

    def download(self, name: str, file: Path) -> None:
        """Copies an object to a file, which appears when it is complete. The name "" is the address."""
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_sibling(file)
        try:
            self._retry(lambda: self._system.get_file(self._path(name), str(temporary)), "read", name)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    def upload(self, file: Path, name: str) -> None:
        """Copies a file to an object, which appears when it is complete."""
        self._replace(name, lambda path: self._system.put_file(str(file), path))

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects one after another. An object that is missing already is no error."""
        for name in names:
            try:
                self._retry(lambda name=name: self._system.rm_file(self._path(name)), "remove", name)  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _replace(self, name: str, put: Callable[[str], object]) -> None:
        """Writes an object with ``put``, which is given its path.

        Object storage shows an object when it is complete. A disk needs a folder, and a name until then.
        """

        def write() -> None:
            path = self._path(name)
            if not self.url.lower().startswith("file:"):
                put(path)
                return
            folder, _, last = path.rpartition("/")
            self._system.makedirs(folder, exist_ok=True)
            put(f"{folder}/.{last}.new")
            self._system.mv(f"{folder}/.{last}.new", path)

        self._retry(write, "write", name)

    def _connect(self) -> None:
        """Connects if there is no connection. Some libraries already read the credentials here, and fail."""
        if self._system is not None:
            return
        import fsspec  # type: ignore[import-untyped]

        self._system, root = fsspec.url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)
        self._root = root.rstrip("/")

    def _retry(self, act: Callable[[], _Result], verb: str, name: str = "") -> _Result:
        """Calls ``act`` until it succeeds or all retries failed.

        Raises:
            StorageError: The last attempt failed.
            FileNotFoundError: There is no such object.
        """
        for delay in (*RETRY_DELAYS, None):
            try:
                self._connect()
                return act()
            except _PERMANENT:
                raise
            except Exception as error:  # noqa: BLE001 - each library raises classes of its own
                if delay is None:
                    place = f"{self.url}/{name}" if name else self.url
                    reason = " ".join(str(error).split()) or type(error).__name__
                    raise StorageError(f"{place}: can't {verb} this object: {reason}") from None
            self._system = None
            time.sleep(delay)
        raise AssertionError("unreachable: the last attempt returns or raises")
