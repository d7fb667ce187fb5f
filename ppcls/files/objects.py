"""Reads and writes objects below one address, through fsspec, and retries what may be temporary.

Decisions:
- Every error is retried except those that waiting can't mend (a missing object, an unknown bucket, a missing
  package). The libraries behind fsspec raise classes of their own, so an allow list of temporary errors would
  miss some, and a run of days would end because of one of them.
- Rejected credentials and missing permissions are errors of the user, reported after three seconds: a machine
  may need a moment to provide its credentials. But if requests of the same kind succeeded before, they are
  retried like other errors, because credentials change during a run of days. Credentials that have expired
  are retried like other errors if any request succeeded before.
- gcsfs itself would repeat a request with rejected credentials six times within half a minute, with the same
  credentials, and has no option for it. So its session raises an error that gcsfs does not know, and a
  connection to it begins with its credentials.
- A connection is opened again after an error, and reads the credentials again. Those of rented machines
  expire after hours and are renewed in a file or by the machine.
- fsspec caches the lists of folders. Here, each list is read again, because another machine may have written.
- Threads share a connection. A forked process opens its own, because the loop of a connection runs in a
  thread, which the fork does not copy.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ppcls.errors import TryAgainError, UserError
from ppcls.files.object_errors import (
    Cause,
    Rejection,
    advise,
    explain,
    kind_of,
    list_one,
    raise_if_unauthorized,
    silence_libraries,
)
from ppcls.files.temporary import temporary_sibling
from ppcls.files.urls import lower_scheme

RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each retry
_NEW_RETRIES = 2  # of a rejected request, if no request of its kind has succeeded before
_REJECTED_SECONDS = 60.0  # after which a rejected request is not retried
_ACTS = {
    "open": "connect to this storage",
    "list": "list the objects at this address",
    "read": "read this object",
    "write": "write this object",
    "remove": "remove this object",
}
_PERMANENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, ImportError)
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime")
# s3fs opens 10 connections by default, which is too few for threads that read ahead.
# gcsfs ignores http_proxy and https_proxy by default.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"max_pool_connections": 64}},
    "gs": {"session_kwargs": {"trust_env": True, "raise_for_status": raise_if_unauthorized}},
}
_Result = TypeVar("_Result")


class StorageError(TryAgainError):
    """Raised if object storage can't be read or written after all retries."""


class StorageAccessError(UserError):
    """Raised if object storage rejects requests until the user changes something. The exit code is 2."""


@dataclass(frozen=True)
class ObjectInfo:
    """Properties of an object.

    Attributes:
        size: Size in bytes.
        version: Text that changes when the object is replaced, such as its ETag; empty if there is none.
    """

    size: int
    version: str


class Objects:
    """The objects below an address such as ``s3://bucket/runs/pets``.

    Args:
        url: The address.

    Raises:
        UserError: The address names no bucket, or the package for this kind of storage is not installed.
        StorageAccessError: The credentials are missing or invalid.
        StorageError: The storage can't be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = lower_scheme(url.rstrip("/"))
        if kind_of(url) and not url.partition("://")[2].partition("/")[0].strip():
            raise UserError(f"{url}: expected an address with a bucket, such as s3://bucket/runs/pets")
        self._succeeded: set[str] = set()  # kinds of requests
        self._system: Any = None  # None: not connected, or to connect again
        self._process = 0  # process of the connection
        self._connecting = threading.Lock()
        self._root = ""
        try:
            self._retry(bool, "open")
        except ImportError as error:
            raise UserError(f"{url}: {error}; install it with pip install '.[{kind_of(url)}]'") from None

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each object, by its name below the address."""
        return {name: info.size for name, info in self.infos().items()}

    def infos(self) -> dict[str, ObjectInfo]:
        """Returns the properties of each object, by its name below the address.

        Raises:
            StorageAccessError: The bucket is missing, or its objects may not be listed.
            StorageError: The storage can't be read.
        """

        def find(system: Any) -> dict[str, ObjectInfo]:
            system.invalidate_cache()
            try:
                entries = system.find(self._root, detail=True)
            except FileNotFoundError:  # an empty folder, or a bucket without objects
                entries = {}
            if not entries:
                self.check_bucket()
            start = len(self._root) + 1
            return {
                path[start:]: _info(entry)
                for path, entry in entries.items()
                if entry["type"] == "file" and path.startswith(f"{self._root}/")
            }

        return self._retry(find, "list")

    def info(self, name: str) -> ObjectInfo:
        """Returns the properties of an object. The name "" is the address.

        Raises:
            FileNotFoundError: There is no such object.
        """

        def read(system: Any) -> ObjectInfo:
            system.invalidate_cache()
            return _info(system.info(self._path(name)))

        return self._retry(read, "read", name)

    def is_object(self) -> bool:
        """Returns whether the address is that of one object instead of a folder."""

        def check(system: Any) -> bool:
            system.invalidate_cache()
            try:
                return bool(system.info(self._root)["type"] == "file")  # isfile() would hide other errors
            except FileNotFoundError:
                return False

        return self._retry(check, "read")

    def read(self, name: str) -> bytes | None:
        """Returns the content of an object; None if it does not exist."""
        try:
            return self._retry(lambda system: bytes(system.cat_file(self._path(name))), "read", name)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes an object. Readers see the old content or the new one, never a part."""
        self._replace(name, lambda system, path: system.pipe_file(path, content))

    def download(self, name: str, file: Path, size: int | None = None) -> None:
        """Copies an object to a file, which appears when it is complete. The name "" is the address.

        Args:
            name: Name of the object.
            file: The file.
            size: Expected size in bytes. Another size counts as a failed attempt. Default: any size.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_sibling(file)

        def copy(system: Any) -> None:
            system.get_file(self._path(name), str(temporary))
            if size is not None and (received := temporary.stat().st_size) != size:
                raise OSError(f"expected {size} bytes, received {received}")

        try:
            self._retry(copy, "read", name)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    def upload(self, file: Path, name: str) -> None:
        """Copies a file to an object, which appears when it is complete."""
        self._replace(name, lambda system, path: system.put_file(str(file), path))

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects one after another. An object that is missing already is no error."""
        for name in names:
            try:
                self._retry(lambda system, name=name: system.rm_file(self._path(name)), "remove", name)  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def check_bucket(self) -> None:
        """Checks that the bucket exists, if the credentials permit to know that.

        Raises:
            StorageAccessError: It does not exist.
        """
        try:
            list_one(self.url, self._connect(), self._root)
            return
        except FileNotFoundError as error:
            rejection = Rejection(Cause.BUCKET, " ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 - of any library; only the bucket is asked for
            other = explain(self.url, error)
            if other is None or other.cause is not Cause.BUCKET:
                return
            rejection = other
        raise self._error(FileNotFoundError(), rejection, "open", "")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _replace(self, name: str, put: Callable[[Any, str], object]) -> None:
        """Writes an object with ``put``, which is given the file system and the path of the object.

        Object storage shows an object when it is complete. A disk needs a folder, and a name until then.
        """

        def write(system: Any) -> None:
            path = self._path(name)
            if not self.url.startswith("file:"):
                put(system, path)
                return
            folder, _, last = path.rpartition("/")
            system.makedirs(folder, exist_ok=True)
            put(system, f"{folder}/.{last}.new")
            system.mv(f"{folder}/.{last}.new", path)

        self._retry(write, "write", name)

    def _connect(self) -> Any:
        """Returns the file system, after connecting to it if there is no connection of this process.

        Some libraries already read the credentials here, and fail.
        """
        if self._process != os.getpid():
            # A thread of the process before the fork may hold the other lock.
            self._connecting = threading.Lock()
            self._system = None
            self._process = os.getpid()
        with self._connecting:
            if self._system is None:
                self._system = self._open()
            return self._system

    def _open(self) -> Any:
        import fsspec  # type: ignore[import-untyped]

        silence_libraries()
        options = {"skip_instance_cache": True, "use_listings_cache": False} | _OPTIONS.get(
            kind_of(self.url), {}
        )
        system, root = fsspec.url_to_fs(self.url, **options)
        if kind_of(self.url) == "gs":
            system.credentials.maybe_refresh()
        self._root = root.rstrip("/")
        return system

    def _retry(self, act: Callable[[Any], _Result], verb: str, name: str = "") -> _Result:
        """Calls ``act`` with the file system until it succeeds or all retries failed.

        Raises:
            StorageAccessError: The storage rejects the request, and the user must change something.
            StorageError: The last attempt failed.
            FileNotFoundError: There is no such object.
            OSError: The local disk is full.
        """
        began = time.monotonic()
        for number, delay in enumerate((*RETRY_DELAYS, None)):
            system = None
            try:
                system = self._connect()
                result = act(system)
            except StorageAccessError:
                raise
            except _PERMANENT:
                if verb == "write":
                    self.check_bucket()
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                rejection = self._explain(system, error)
                seconds = time.monotonic() - began
                if delay is None or (rejection and self._is_final(rejection, verb, number, seconds)):
                    raise self._error(error, rejection, verb, name) from None
            else:
                self._succeeded.add(verb)
                return result
            if self._system is system:  # otherwise, another thread has connected again
                self._system = None
            time.sleep(delay)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _explain(self, system: Any, error: Exception) -> Rejection | None:
        """Returns why a request was rejected; None if the error may be temporary."""
        rejection = explain(self.url, error)
        if rejection is not None and rejection.brief and system is not None:
            try:
                list_one(self.url, system, self._root)
            except Exception as other:  # noqa: BLE001 - of any library, and the first error is known
                return explain(self.url, other) or rejection
        return rejection

    def _is_final(self, rejection: Rejection, verb: str, retries: int, seconds: float) -> bool:
        """Returns whether it is of no use to repeat a rejected request."""
        if rejection.cause in (Cause.BUCKET, Cause.ACCOUNT, Cause.CLOCK) or seconds > _REJECTED_SECONDS:
            return True
        # Connecting sends no request to most servers.
        expired = rejection.cause is Cause.EXPIRED
        succeeded = bool(self._succeeded - {"open"}) if expired else verb in self._succeeded
        return not succeeded and retries >= _NEW_RETRIES

    def _error(self, error: Exception, rejection: Rejection | None, verb: str, name: str) -> UserError:
        """Returns the error for a request that failed after all retries."""
        place = f"{self.url}/{name}" if name else self.url
        if rejection is None:
            reason = " ".join(str(error).split()) or type(error).__name__
        else:
            reason = f"{rejection.cause.value} ({rejection.reply})"
        text = f"{place}: can't {_ACTS[verb]}: {reason}; {advise(self.url, rejection, verb)}"
        renewed = (Cause.CREDENTIALS, Cause.MISSING) if verb in self._succeeded else ()
        if rejection is None or rejection.cause in (Cause.EXPIRED, *renewed):
            return StorageError(text)
        return StorageAccessError(text)


def _info(entry: Mapping[str, Any]) -> ObjectInfo:
    """Returns the properties in an entry of fsspec, whose keys depend on the kind of storage."""
    version = next((str(entry[key]) for key in _VERSIONS if entry.get(key)), "")
    return ObjectInfo(int(entry["size"]), version)
