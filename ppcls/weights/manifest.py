"""What a checkpoint's folder holds, by size and SHA-256: whether it is whole, and what is not."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppcls.errors import UserError
from ppcls.files import atomic_write

MANIFEST = "manifest.json"
FORMAT = 2
_BLOCK = 1 << 20
_Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # of a file in the folder itself
_OWN = "sha256"  # the manifest's own digest, over all else in it


class DamagedError(UserError):
    """A checkpoint that is not what was written."""


class FileRecord(BaseModel):
    """One file, as it was meant to be written."""

    model_config = ConfigDict(strict=True, extra="forbid")
    size: int = Field(ge=0, description="bytes")
    sha256: str


class Manifest(BaseModel):
    """What ``manifest.json`` holds, beside a digest of itself.

    Attributes:
        format: Of the folder.
        serial: Counts a run's checkpoints: the highest is the newest.
        update: Optimizer updates done.
        epoch: Epochs done.
        step: Batches done in the running epoch.
        score: Of the evaluation that this checkpoint followed; None without one.
        judge: Name of the metric that ``score`` is of; None where that was not written down.
        saved: When, in UTC.
        versions: Of ppcls and Paddle.
        files: By name; without the manifest.
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
    files: dict[_Name, FileRecord]


def put(path: Path, data: bytes) -> FileRecord:
    """Writes a file, synced, and returns what is in it: the digest is of ``data``, not of what is read back.

    Raises:
        OSError: It can't be written.
    """
    with atomic_write(path) as file:
        file.write(data)
    return FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def seal(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, the last file of a folder, and reads all of them back.

    Raises:
        OSError: It can't be written, or the disk does not hold what was written.
    """
    content = manifest.model_dump(mode="json")
    text = json.dumps({**content, _OWN: _digest(content)}, indent=2) + "\n"
    with atomic_write(folder / MANIFEST) as file:
        file.write(text.encode())
    try:
        verify(folder)
    except DamagedError as error:
        raise OSError(f"what was written does not read back: {error}") from None


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest; looks at no other file.

    Raises:
        DamagedError: It is missing, damaged, or of another format.
    """
    path = folder / MANIFEST
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DamagedError(f"{path}: missing; the checkpoint is half-written or of an older ppcls") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: damaged: {error}") from None
    if not isinstance(tree, dict):
        raise DamagedError(f"{path}: damaged: not an object")
    if isinstance(tree.get("format"), int) and tree["format"] != FORMAT:
        raise DamagedError(f"{path}: format {tree['format']}; this ppcls reads format {FORMAT}")
    expected, found = tree.pop(_OWN, None), _digest(tree)
    if expected != found:
        raise DamagedError(f"{path}: damaged: expected SHA-256 {expected}, found {found}")
    try:
        return Manifest.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedError(f"{path}: damaged: {where}: {first['msg']}") from None


def verify(folder: Path) -> Manifest:
    """Reads every file of a checkpoint and compares it with the manifest, which it returns.

    Raises:
        DamagedError: A file is missing, or not what was written; the text has both digests.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        check_file(folder / name, expected)
    return manifest


def check_file(path: Path, expected: FileRecord) -> None:
    """Compares one file with its record; raises as `verify` does."""
    try:
        found = _read(path)
    except FileNotFoundError:
        raise DamagedError(f"{path}: missing; expected SHA-256 {expected.sha256}") from None
    except OSError as error:
        raise DamagedError(
            f"{path}: can't be read ({error.strerror or error}); expected SHA-256 {expected.sha256}"
        ) from None
    if found != expected:
        raise DamagedError(
            f"{path}: damaged: expected {expected.size} bytes of SHA-256 {expected.sha256}, "
            f"found {found.size} bytes of SHA-256 {found.sha256}"
        )


def _read(path: Path) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileRecord(size=size, sha256=digest.hexdigest())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
