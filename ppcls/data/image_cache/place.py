"""The folder of a cache: its name, its locks, the free space, and its removal."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TextIO

from ppcls.errors import UserError
from ppcls.zoo import cache_folder

CacheKind = Literal["memory", "disk"]
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_WAIT = 0.2  # seconds between two attempts to lock
_FILL = "fill.lock"
_USE = "use.lock"


def caches_folder(kind: CacheKind) -> Path:
    """Returns the folder of all caches of this user."""
    return SHARED_MEMORY / f"ppcls-images-{os.getuid()}" if kind == "memory" else cache_folder("images")


def _make_folder(folder: Path) -> None:
    """Creates the folder of a cache if it is missing. Other users can't read it.

    Raises:
        UserError: It can't be created, or belongs to another user.
    """
    try:
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Shared memory is writable for all users, so another one may have created this name.
            if place.is_symlink() or place.stat().st_uid != os.getuid():
                raise UserError(f"{place}: belongs to another user, so images can't be cached here")
    except OSError as error:
        raise UserError(f"{folder}: can't create this folder for cached images: {error.strerror}") from None


@contextmanager
def filling(folder: Path, wait: Callable[[], None]) -> Iterator[bool]:
    """Returns a context in which no other process of the machine fills the cache.

    Args:
        folder: Folder of the cache.
        wait: Function to call while another process fills it.

    Yields:
        Whether this process had to wait.
    """
    with (folder / _FILL).open("a") as file:
        waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = True
                wait()
                time.sleep(_WAIT)
        yield waited


def use(folder: Path, kind: CacheKind) -> TextIO:
    """Marks a cache as used until this process ends, and creates its folder if it is missing.

    The last process that uses shared memory frees it. A process that is killed does not free it, so the next
    run finds the images.

    Returns:
        The lock, for `used_alone`.

    Raises:
        UserError: The folder can't be created, or belongs to another user.
        OSError: The file of the lock can't be used.
    """
    file = _lock_shared(folder)
    owner = os.getpid()

    def release() -> None:
        if os.getpid() == owner:  # not in a worker that was forked
            with file:
                if kind == "memory" and _lock_exclusively(file):
                    shutil.rmtree(folder, ignore_errors=True)

    atexit.register(release)
    return file


@contextmanager
def used_alone(lock: TextIO) -> Iterator[bool]:
    """Returns a context in which no other process uses a cache.

    Args:
        lock: Result of `use`.

    Yields:
        Whether this is so. If another process uses the cache, the context changes nothing.
    """
    alone = _lock_exclusively(lock)
    try:
        yield alone
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def remove_unused(kept: Path) -> None:
    """Removes all caches in shared memory that no process uses, which killed runs left, except one."""
    for folder in caches_folder("memory").iterdir():
        if folder != kept and folder.is_dir() and not folder.is_symlink():
            with (folder / _USE).open("a") as file:
                if _lock_exclusively(file):
                    shutil.rmtree(folder, ignore_errors=True)


def _lock_shared(folder: Path) -> TextIO:
    path = folder / _USE
    while True:
        _make_folder(folder)
        with suppress(FileNotFoundError):  # another process has just removed the folder
            file = path.open("a")
            fcntl.flock(file, fcntl.LOCK_SH)
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
            file.close()


def _lock_exclusively(file: TextIO) -> bool:
    """Returns whether no other process uses the cache."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def free_bytes(folder: Path, kind: CacheKind) -> int:
    """Returns the number of bytes that a cache can still use."""
    free = shutil.disk_usage(folder).free
    return min(free, *_available_memory()) if kind == "memory" else free


def _available_memory() -> Iterator[int]:
    """Yields the free memory of the machine, and of the container if it has a limit, in bytes."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # another version, or no limit
            yield int((group / limit).read_text()) - int((group / used).read_text())
