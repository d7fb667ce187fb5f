"""Copies objects of a storage to the local disk, which all processes of the machine share, within a limit.

Decisions:
- The name of a copy follows from the name and the version of its object, so a replaced object is another
  copy, and no process needs a list of the copies.
- A lock per object keeps processes from downloading the same object at the same time.
- The time of the last access is stored in the file, because most disks do not record it. If the copies exceed
  the limit, the least recently used ones are removed. On Linux, who still reads a removed file can finish.
- A process looks at the size of all copies only after it has added a part of the limit itself, because there
  can be millions of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ppcls.errors import UserError
from ppcls.files.objects import ObjectInfo, Objects
from ppcls.files.temporary import temporary_sibling
from ppcls.files.urls import local_path

GIB = 1 << 30
_PARTS = 64  # a process looks at the size of all copies after it has added this part of the limit
_KEPT = 7 / 8  # part of the limit that remains after old copies were removed
_FRESH = 60.0  # seconds during which the time of access is not written again
_DAY = 86_400.0  # seconds after which a download counts as one of a process that was killed


class ObjectCache:
    """Copies of the objects below an address.

    Args:
        url: The address.
        limit: Largest size of all copies, in bytes.

    Attributes:
        url: The address.
        folder: Folder of the copies.
        limit: Largest size of all copies, in bytes.

    Raises:
        UserError: The package for this kind of storage is not installed.
        StorageError: The storage can't be reached.
    """

    def __init__(self, url: str, limit: int) -> None:
        self.url = url.rstrip("/")
        self.folder = data_folder(url) / "copies"
        self.limit = limit
        self.objects = Objects(url)
        self._added = limit  # the first process of a run removes what an earlier run left

    def path(self, name: str, version: str) -> Path:
        """Returns the path of the copy of an object, which may not exist."""
        digest = hashlib.blake2b(f"{name}\0{version}".encode("utf-8", "surrogateescape"), digest_size=16)
        key = digest.hexdigest()
        return self.folder / key[:2] / key[2:]

    def read(self, name: str, version: str = "") -> bytes:
        """Returns the content of an object.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: The storage can't be read.
            UserError: The local disk is full.
        """
        while True:
            path = self.fetch(name, ObjectInfo(-1, version))
            with suppress(FileNotFoundError):  # another process has just removed the copy
                return path.read_bytes()

    def fetch(self, name: str, info: ObjectInfo) -> Path:
        """Downloads an object unless there is a copy, and returns the path of the copy.

        Args:
            name: Name of the object below the address.
            info: Its size in bytes, or -1 if it is unknown, and its version.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: The storage can't be read.
            UserError: The local disk is full.
        """
        path = self.path(name, info.version)
        if _touch(path):
            return path
        with lock(path):
            if _touch(path):
                return path
            try:
                self.objects.download(name, path, None if info.size < 0 else info.size)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise UserError(
                    f"{self.folder}: can't store a copy of {self.url}/{name}: {error.strerror}; free space, "
                    "or set storage_cache of this data set to fewer GiB"
                ) from None
            size = path.stat().st_size
        # No lock: a process that is forked meanwhile would wait for it without end. A lost sum does no harm.
        self._added += size
        if self._added >= self.limit // _PARTS:
            self._added = 0
            self._remove_old()
        return path

    def _remove_old(self) -> None:
        """Removes the least recently used copies, if there are more than the limit allows."""
        with lock(self.folder / "removing"):
            _remove_leftovers(self.folder)
            copies = sorted(_copies(self.folder))
            total = sum(size for _, size, _ in copies)
            if total <= self.limit:
                return
            for _, size, path in copies[:-1]:  # the newest copy stays, whatever the limit is
                if total <= self.limit * _KEPT:
                    return
                with suppress(OSError):
                    path.unlink()
                    total -= size


def data_folder(url: str) -> Path:
    """Returns the folder on this machine for copies of the data at an address."""
    run = local_path(url)
    return run.with_name(f"{run.name}-data")


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Returns a context that only one thread of all processes enters for the same path."""
    file = path.with_name(f"{path.name}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                break
        os.close(descriptor)  # who had the lock before has removed its file
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        # Not only by closing it: a process that was forked meanwhile has the file open, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def write_new(path: Path, content: bytes) -> None:
    """Writes a file, which appears when it is complete. Its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _touch(path: Path) -> bool:
    """Returns whether a copy exists, and stores that it was used now."""
    try:
        status = path.stat()
        now = time.time()
        if now - status.st_atime > _FRESH:
            os.utime(path, (now, status.st_mtime))
    except FileNotFoundError:
        return False
    return True


def _copies(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yields the time of the last use, the size in bytes and the path of each copy."""
    for part in folder.iterdir():
        for entry in os.scandir(part) if part.is_dir() else ():
            if "." not in entry.name:  # neither a lock nor a download in progress
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    yield status.st_atime, status.st_size, Path(entry.path)


def _remove_leftovers(folder: Path) -> None:
    """Removes what processes that were killed have left of their downloads."""
    for path in folder.glob("*/.*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _DAY:
                path.unlink()
