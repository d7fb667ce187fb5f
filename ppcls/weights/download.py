"""Downloads published weights into the cache folder.

After a lost connection, a download resumes, even in a later run. The file is renamed to its final name only
after its content was checked, so that a file with this name is always complete. If several processes need a
file, one process downloads it and the other processes wait. Environment variables such as ``HTTPS_PROXY`` set
proxies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ppcls.errors import TryAgainError, UserError
from ppcls.files import write_text
from ppcls.weights.manifest import read_record
from ppcls.zoo import known_digest, suggest_installed

OFFLINE = "PPCLS_OFFLINE"
RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds before each retry
TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds to wait for data and for a connection
_GROWTH = 1 << 20  # number of received bytes after which all retries are available again
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses after which a retry often succeeds
_HTML = (b"<!doctype", b"<html", b"<?xml")


class _TemporaryError(Exception):
    """Raised when a download failed and a retry may succeed."""


def download(path: Path, url: str, check: Callable[[Path], object], *, retry: bool = True) -> None:
    """Downloads a file if it does not exist, and writes its SHA-256 to a file beside it.

    The file with the SHA-256 has the format of ``sha256sum``.

    Args:
        path: Path of the file.
        url: URL of the file.
        check: Function that reads the downloaded file and raises `UserError` if it is damaged.
        retry: Whether to retry after errors that may be temporary.

    Raises:
        UserError: The file can't be downloaded or stored, or its content is not the expected content. An
            incomplete download is kept for the next attempt.
    """
    if path.is_file():
        return
    if os.environ.get(OFFLINE, "0") not in ("", "0"):
        raise UserError(
            f"{path}: file not found, and {OFFLINE} forbids downloads; save {url} as this file"
            f"{suggest_installed()}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(path.with_name(f".{path.name}.lock")) as waited:
            if not path.is_file():
                _Download(path, url).run(check, RETRY_DELAYS if retry and not waited else ())
    except OSError as error:
        reason = error.strerror or error
        fix = "free some space" if error.errno == errno.ENOSPC else "set PPCLS_HOME to a writable folder"
        raise UserError(f"{path}: can't store the download of {url}: {reason}; {fix}") from None


def is_web_page(path: Path) -> bool:
    """Returns whether a file begins like an HTML or XML file."""
    with path.open("rb") as file:
        return file.read(100).lstrip().lower().startswith(_HTML)


def verify_download(path: Path) -> None:
    """Compares the SHA-256 of a file with that in the table of models, or with that of its first download.

    Raises:
        UserError: The SHA-256 differs.
    """
    expected = _read_digest(path)
    if expected and (digest := read_record(path).sha256) != expected:
        record = _digest_file(path)
        fix = f"remove the file to download it again, or remove {record.name} to accept the changed file"
        raise UserError(
            f"{path}: damaged or replaced: expected SHA-256 {expected}, found {digest}; "
            f"{fix if record.is_file() else 'reinstall the package of this file'}"
        )


def _digest_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _read_digest(path: Path) -> str:
    """Returns the SHA-256 of a file in the table of models or of its first download; "" if unknown."""
    if known := known_digest(path):
        return known
    try:
        return _digest_file(path).read_text(encoding="ascii").split()[0].lower()
    except (OSError, ValueError, IndexError):
        return ""


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Locks a file during the block, and yields whether another process held the lock before.

    Creates the file if it does not exist.
    """
    with path.open("a") as file:
        waited = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # without locks, two processes may download the file, which does no harm
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        yield waited


class _Download:
    """The download of one file."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url
        self._part = path.with_name(f".{path.name}.part")
        self._version_file = path.with_name(f".{path.name}.part.etag")

    def run(self, check: Callable[[Path], object], delays: tuple[float, ...]) -> None:
        """Downloads and checks the file, then renames it."""
        try:
            self._receive(delays)
        except _TemporaryError as error:
            kept = f"; {self._size() / 1e6:.1f} MB are kept for the next attempt" if self._size() else ""
            raise TryAgainError(
                f"{self._url}: the download failed: {error}{kept}; check the network and the proxy "
                f"(HTTPS_PROXY), or save the file as {self._path}{suggest_installed()}"
            ) from None
        try:
            self._check(check)
        except UserError:
            self._discard()
            raise
        self._part.replace(self._path)
        self._version_file.unlink(missing_ok=True)

    def _check(self, check: Callable[[Path], object]) -> None:
        if is_web_page(self._part):
            raise UserError(
                f"{self._url}: the server sent a web page instead of weights, perhaps the login page of a "
                f"proxy; save the file as {self._path}"
            )
        with self._part.open("rb") as file:
            os.fsync(file.fileno())
        try:
            check(self._part)
        except UserError as error:
            text = str(error).replace(str(self._part), self._url)
            raise UserError(text.replace(self._part.suffix, self._path.suffix)) from None
        digest = read_record(self._part).sha256
        expected = _read_digest(self._path)
        if not expected:
            write_text(_digest_file(self._path), f"{digest}  {self._path.name}\n")
        elif digest != expected:
            raise UserError(
                f"{self._url}: expected SHA-256 {expected}, got {digest}; if the published file was replaced "
                f"on purpose, remove {_digest_file(self._path)}"
            )

    def _receive(self, delays: tuple[float, ...]) -> None:
        """Downloads the file, with retries."""
        console = Console(stderr=True)
        console.print(
            f"downloading {self._url} to {self._path}", soft_wrap=True, highlight=False, markup=False
        )
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(self._path.name)
            attempt = 0
            while True:
                before = self._size()
                try:
                    self._request(lambda done, total: bar.update(task, completed=done, total=total))
                    return
                except (_TemporaryError, httpx.TransportError) as error:
                    attempt = 0 if self._size() - before >= _GROWTH else attempt
                    if attempt == len(delays):
                        raise _TemporaryError(str(error) or type(error).__name__) from None
                time.sleep(delays[attempt])
                attempt += 1

    def _request(self, report: Callable[[int, int | None], None]) -> None:
        """Requests the missing part of the file and appends it to the partial file."""
        headers = {"Accept-Encoding": "identity"}
        offset = self._size()
        version = self._version_file.read_text(encoding="utf-8") if self._version_file.is_file() else ""
        if offset and version:  # without a version, the partial file may be part of another version
            headers.update({"Range": f"bytes={offset}-", "If-Range": version})
        with httpx.stream(
            "GET", self._url, headers=headers, timeout=TIMEOUT, follow_redirects=True
        ) as response:
            status = response.status_code
            if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                self._discard()
                raise _TemporaryError("the server can't resume the download")
            if status in _TEMPORARY:
                raise _TemporaryError(f"the server answered {status} {response.reason_phrase}")
            if not response.is_success:
                raise UserError(
                    f"{self._url}: the server answered {status} {response.reason_phrase}; get the file "
                    f"elsewhere and save it as {self._path}"
                )
            resumed = response.headers.get("content-range", "").startswith(f"bytes {offset}-")
            if status != httpx.codes.PARTIAL_CONTENT or not resumed:
                self._discard()
                offset = 0
            self._append(response, offset, report)

    def _append(self, response: httpx.Response, done: int, report: Callable[[int, int | None], None]) -> None:
        """Appends the content of a response to the partial file."""
        length = response.headers.get("content-length", "")
        missing = int(length) if length.isdigit() else 0
        total = done + missing if missing else None
        if missing > shutil.disk_usage(self._part.parent).free:
            raise OSError(
                errno.ENOSPC,
                f"the download needs another {missing / 1e6:.0f} MB, but the disk has less free space",
            )
        version = response.headers.get("etag") or response.headers.get("last-modified", "")
        if not done and not version.startswith("W/"):  # a weak ETag does not allow resuming
            write_text(self._version_file, version)
        with self._part.open("ab") as file:
            for block in response.iter_raw():  # no chunk size, which would lose an incomplete last chunk
                file.write(block)
                done += len(block)
                report(done, total)

    def _size(self) -> int:
        return self._part.stat().st_size if self._part.is_file() else 0

    def _discard(self) -> None:
        for path in (self._part, self._version_file):
            path.unlink(missing_ok=True)
