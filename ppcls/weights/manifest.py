"""The manifest of a checkpoint folder, which lists the size and SHA-256 of each file to detect damage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppcls.errors import UserError
from ppcls.files import atomic_write, one_line, open_regular, read_regular

MANIFEST = "manifest.json"
FORMAT = 2
_BLOCK = 1 << 20
FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # a name without a path
_REPAIR = "restore the file, or use another checkpoint"
_SELF = "sha256"  # key of the digest of the rest of the manifest


class DamagedError(UserError):
    """Raised when the files of a checkpoint differ from the files that were written."""


class FileRecord(BaseModel):
    """The size in bytes and the SHA-256 of one file."""

    model_config = ConfigDict(strict=True, extra="forbid")
    size: int = Field(ge=0)
    """Bytes."""
    sha256: str


class Manifest(BaseModel):
    """The content of ``manifest.json``, except for its own digest.

    Attributes:
        format: Version of the folder's format.
        serial: Number of the checkpoint within the run. The newest checkpoint has the highest number.
        update: Number of finished optimizer updates.
        epoch: Number of finished epochs.
        step: Number of finished batches in the current epoch.
        score: Score of the evaluation before this checkpoint; None without an evaluation.
        judge: Name of the metric of ``score``; None in older checkpoints.
        saved: Time of saving in UTC.
        versions: Versions of ppcls and Paddle.
        files: Records of all other files, by name.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    format: int = FORMAT
    serial: int = Field(ge=0)
    update: int = Field(ge=0)
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    score: float | None = None
    judge: str | None = None
    saved: str = Field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    versions: dict[str, str]
    files: dict[FileName, FileRecord]


def write_file(path: Path, *parts: bytes | memoryview) -> FileRecord:
    """Writes a file, syncs it to disk, and returns the record of its content.

    Args:
        parts: Parts of the content. Each element is a byte.

    Raises:
        OSError: The file can't be written.
    """
    digest = hashlib.sha256()
    size = 0
    with atomic_write(path) as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += len(part)
    return FileRecord(size=size, sha256=digest.hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest as the last file of a folder, then reads all files again to verify them.

    Raises:
        OSError: The manifest can't be written, or the disk returns data that differs from what was written.
    """
    content = manifest.model_dump(mode="json")
    text = json.dumps({**content, _SELF: _digest(content)}, indent=2) + "\n"
    with atomic_write(folder / MANIFEST) as file:
        file.write(text.encode())
    try:
        verify(folder)
    except DamagedError as error:
        raise OSError(f"the disk returns data that differs from what was written: {error}") from None


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a folder without checking the other files.

    Raises:
        DamagedError: The manifest is missing, damaged or in another format.
    """
    path = folder / MANIFEST
    try:
        tree = json.loads(read_regular(path))
    except FileNotFoundError:
        raise DamagedError(
            f"{path}: missing; the checkpoint is incomplete or was written by an older ppcls"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: damaged: {error}") from None
    if not isinstance(tree, dict):
        raise DamagedError(f"{path}: damaged: expected a JSON object, got {type(tree).__name__}")
    if isinstance(tree.get("format"), int) and tree["format"] != FORMAT:
        raise DamagedError(f"{path}: format {tree['format']} is not supported; this ppcls reads {FORMAT}")
    expected = tree.pop(_SELF, None)
    digest = _digest(tree)
    if expected != digest:
        raise DamagedError(f"{path}: damaged: expected SHA-256 {one_line(str(expected))}, found {digest}")
    try:
        return Manifest.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedError(f"{path}: damaged: {where}: {first['msg']}") from None


def verify(folder: Path, names: Collection[str] | None = None) -> Manifest:
    """Compares the files of a checkpoint with its manifest, and returns the manifest.

    Args:
        folder: Folder of the checkpoint.
        names: Names of the files to compare; None for all files. Names that are not in the manifest are
            ignored.

    Raises:
        DamagedError: A file in the manifest is missing or has changed. Other files are ignored.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        if names is None or name in names:
            _check_file(folder / name, expected)
    return manifest


def _check_file(path: Path, expected: FileRecord) -> None:
    if (problem := find_difference(path, expected)) is not None:
        raise DamagedError(f"{path}: {problem}; {_REPAIR}")


def find_difference(path: Path, expected: FileRecord, changed: str = "damaged") -> str | None:
    """Returns how a file differs from its record; None if it does not.

    Args:
        path: The file.
        expected: Its record.
        changed: What to call a file with another content.
    """
    try:
        actual = read_record(path)
    except FileNotFoundError:
        return f"missing; expected SHA-256 {expected.sha256}"
    except OSError as error:
        return f"can't be read ({error.strerror or error}); expected SHA-256 {expected.sha256}"
    if actual == expected:
        return None
    return (
        f"{changed}: expected {expected.size} bytes with SHA-256 {expected.sha256}, "
        f"found {actual.size} bytes with SHA-256 {actual.sha256}"
    )


def read_record(path: Path) -> FileRecord:
    """Returns the size and SHA-256 of a file.

    Raises:
        OSError: The file can't be read.
    """
    digest = hashlib.sha256()
    size = 0
    with open_regular(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileRecord(size=size, sha256=digest.hexdigest())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
