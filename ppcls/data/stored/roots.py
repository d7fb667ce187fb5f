"""Finds the folders and list files that a data set names, and those in object storage on the local disk.

Decisions:
- A folder in object storage gets a local folder with an empty file for each object. Everything that finds
  classes, parts and images in folders then needs no second version, and reports the same errors.
- A process lists the objects once, although the config, the training and the evaluation need the list: a
  million objects take a minute. After two minutes, for example in a notebook, it lists them again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath

from ppcls.errors import UserError, raise_line_errors
from ppcls.files.object_cache import data_folder, lock
from ppcls.files.objects import ObjectInfo, Objects
from ppcls.files.temporary import temporary_sibling
from ppcls.files.urls import is_url

_LISTED = 120.0  # seconds for which a list of objects is used
_KEPT_TREES = 4  # other runs on this machine may use the earlier ones
_MAX_NAME_BYTES = 255  # of file systems of Linux


def data_root(text: str) -> Path:
    """Returns the folder of images that a user named, which may not exist.

    For an address in object storage, it has an empty file for each object, which `StoredFiles` replaces.

    Raises:
        UserError: There are no objects at the address, or a name is not possible on a disk.
        StorageError: The storage can't be read.
    """
    return _tree(*_key(text)) if is_url(text) else Path(text)


def stored_objects(url: str) -> dict[str, ObjectInfo]:
    """Returns the objects of a folder in object storage, by their names below it.

    Raises:
        StorageError: The storage can't be read.
    """
    return _list(*_key(url))


@contextmanager
def naming(name: str, path: Path) -> Iterator[None]:
    """Returns a context in which errors name an address instead of the path of its copy.

    Args:
        name: The address, or a description with it. If this is ``path``, errors are unchanged.
        path: The copy.
    """
    try:
        yield
    except UserError as error:
        if path != Path(name):
            error.args = (str(error).replace(str(path), name.rstrip("/")),)
        raise


def _key(url: str) -> tuple[str, Path, int]:
    """Returns an address, the folder of its data, and a number that changes when a list of objects is old."""
    return url.rstrip("/"), data_folder(url), int(time.monotonic() // _LISTED)


@lru_cache(maxsize=16)
def _list(url: str, folder: Path, period: int) -> dict[str, ObjectInfo]:  # noqa: ARG001
    return {name: info for name, info in Objects(url).infos().items() if not name.endswith("/")}


@lru_cache(maxsize=16)
def _tree(url: str, folder: Path, period: int) -> Path:
    names = sorted(_list(url, folder, period))
    if not names:
        raise UserError(f"{url}: no objects at this address; expected a folder of images")
    _check_names(url, names)
    digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=8).hexdigest()
    tree = folder / "trees" / digest
    with lock(tree):
        if not tree.is_dir():
            _build(tree, names)
    return tree


def _check_names(url: str, names: list[str]) -> None:
    """Raises `UserError` for names that can't be those of files in folders."""
    known = set(names)
    raise_line_errors(
        [
            f"{url}/{name}: expected a name that a file can have, without empty parts, '.' and '..', and "
            f"with parts of at most {_MAX_NAME_BYTES} bytes; rename this object"
            for name in names
            if any(
                part in ("", ".", "..") or "\0" in part or len(part.encode()) > _MAX_NAME_BYTES
                for part in name.split("/")
            )
        ]
        + [
            f"{url}/{parent}: is an object and a folder of objects; rename one of them"
            for parent in sorted({str(p) for name in names for p in PurePosixPath(name).parents} & known)
        ]
    )


def _build(tree: Path, names: list[str]) -> None:
    temporary = temporary_sibling(tree)
    temporary.mkdir(parents=True)
    try:
        for folder in sorted({name.rpartition("/")[0] for name in names}):
            (temporary / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            (temporary / name).touch()
        temporary.rename(tree)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    others = [path for path in tree.parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for old in sorted(others, key=lambda path: path.stat().st_mtime)[:-_KEPT_TREES]:
        shutil.rmtree(old, ignore_errors=True)
