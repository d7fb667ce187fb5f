"""Writes a bundle as a zip file, and extracts a zip file that may come from a stranger."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ppcls.deploy.bundle.schema import BUNDLE, MAX_BUNDLE_BYTES, check_name, parse_bundle
from ppcls.errors import UserError, counted
from ppcls.files import atomic_path, new_folder, open_regular
from ppcls.files.temporary import temporary_folder

_TIME = (2020, 1, 1, 0, 0, 0)  # the same bundle has the same zip file
_MAX_FILES = 10_000
_MAX_BYTES = 1 << 32  # of all files together: 2 GiB are the limit of an ONNX file, and of golden samples
_MAX_OTHER_BYTES = 1 << 26  # of the files that bundle.json does not list: the model card and the runners
# A zip file may expand to this factor times its size plus this number of bytes. In bundles that we wrote, the
# weights had 1.1 to 1.3 times their compressed size, pixels 1.8 times and inputs of networks 4.6 times. The
# further bytes are for small bundles with golden samples of one color.
_MAX_RATIO = 20
_MORE_BYTES = 1 << 26
_BLOCK = 1 << 20


def write_zip(folder: Path, path: Path) -> None:
    """Writes all files of a folder to a zip file.

    Raises:
        OSError: A file cannot be read or written.
    """
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
    ):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink():
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                with archive.open(entry, "w", force_zip64=True) as target, file.open("rb") as source:
                    _copy(source, target)


@contextmanager
def opened_bundle(path: Path) -> Iterator[Path]:
    """Yields the folder of a bundle. A zip file is extracted to a temporary folder, which is removed later.

    Args:
        path: Folder or zip file of a bundle.

    Raises:
        UserError: See `extract`; or the path does not exist.
    """
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; expected a bundle of ppcls export --format bundle")
    if path.is_file() and not zipfile.is_zipfile(path) and (path.parent / BUNDLE).exists():
        raise UserError(f"{path}: expected a bundle, found a file of one; use its folder {path.parent}")
    with temporary_folder("bundle") as temporary:
        folder = temporary / "bundle"
        extract(path, folder)
        yield folder


def extract(path: Path, folder: Path) -> None:
    """Extracts a zip file to a new folder.

    Args:
        path: Zip file, which may come from a stranger.
        folder: Folder that does not exist.

    Raises:
        UserError: The zip file cannot be read, is damaged, contains links or other paths than
            `ppcls.deploy.bundle.schema.check_name` allows, or would be too large, which its directory and
            its ``bundle.json`` show before a file is written; or the folder cannot be written.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = _check_entries(path, archive)
            _check_size(path, entries, os.fstat(file.fileno()).st_size)
            _check_records(path, archive, entries)
            with new_folder(folder) as temporary:
                for entry in entries:
                    target = temporary / entry.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, target.open("xb") as written:
                        _copy(source, written, entry.file_size)
    except FileExistsError as error:
        raise UserError(f"{folder}: {error.strerror or error}; choose a new folder") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be extracted to {folder}: {error.strerror or error}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise UserError(
            f"{path}: not a zip file of a bundle, or damaged: {error}; copy or export it again"
        ) from None


def _check_entries(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Returns the files of a zip file."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > _MAX_FILES:
        raise UserError(f"{path}: {counted(len(entries), 'file')}; expected at most {_MAX_FILES:,}")
    names: set[str] = set()
    for entry in entries:
        name = entry.filename
        try:
            check_name(name)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise UserError(f"{path}: {name}: expected a file, found a link or a device")
        if name.lower() in names:
            raise UserError(f"{path}: {name} is contained twice")
        names.add(name.lower())
        if entry.flag_bits & 1:
            raise UserError(f"{path}: {name} is encrypted; write the zip file without a password")
    return entries


def _check_size(path: Path, entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Checks the sizes that a zip file declares. `_copy` checks that the files have these sizes.

    Args:
        path: Zip file, for messages.
        entries: Its files.
        size: Its size in bytes. The declared sizes with compression can be wrong, or files can overlap.
    """
    total = sum(entry.file_size for entry in entries)
    limit = min(_MAX_BYTES, _MAX_RATIO * size + _MORE_BYTES)
    if total > limit:
        raise UserError(
            f"{path}: {size:,} bytes expand to {total:,}, expected at most {limit:,}; nothing was extracted"
        )


def _check_records(path: Path, archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Checks that all large files have the sizes in ``bundle.json``, which fit its shapes."""
    sizes = {entry.filename: entry.file_size for entry in entries}
    if BUNDLE not in sizes:
        raise UserError(f"{path}: not a bundle: expected the file {BUNDLE} at the top of the zip file")
    with archive.open(BUNDLE) as file:
        bundle = parse_bundle(path / BUNDLE, file.read(MAX_BUNDLE_BYTES + 1))
    for name, record in bundle.files.items():
        if sizes.get(name) != record.size:
            actual = f"{sizes[name]:,}" if name in sizes else "no such file"
            raise UserError(
                f"{path}: {name}: expected {record.size:,} bytes, according to {BUNDLE}, found {actual}; "
                "copy or export it again"
            )
    others = sum(size for name, size in sizes.items() if name not in bundle.files)
    if others > _MAX_OTHER_BYTES:
        raise UserError(
            f"{path}: files that {BUNDLE} does not list have {others:,} bytes, expected at most "
            f"{_MAX_OTHER_BYTES:,}; remove them from the zip file"
        )


def _copy(reader: IO[bytes], writer: IO[bytes], size: int | None = None) -> None:
    """Copies a file in blocks.

    Args:
        reader: File to read.
        writer: File to write.
        size: Number of bytes that the zip file declares; None if it is unknown.

    Raises:
        ValueError: The file has another size.
    """
    copied = 0
    while block := reader.read(_BLOCK):
        copied += len(block)
        if size is not None and copied > size:
            break
        writer.write(block)
    if size is not None and copied != size:
        raise ValueError(f"a file has {copied:,} bytes or more, expected {size:,}")
