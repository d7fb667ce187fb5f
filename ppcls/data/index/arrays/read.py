"""Reads list files, whose arrays are cached if the list is long."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from ppcls.data.index.arrays.cache import ArrayCache, Arrays, Source, State, file_state
from ppcls.data.index.arrays.list_line import LineFormat
from ppcls.data.index.arrays.parse_list import ListArrays, parse_list
from ppcls.errors import UserError
from ppcls.files import open_regular

CACHED_BYTES = 1 << 22  # size of a list from which its arrays are cached; a smaller one is parsed in 0.1 s
_BLOCK = 1 << 20


def read_arrays(listing: Path, form: LineFormat) -> ListArrays:
    """Reads a list file.

    The arrays of a long list are parsed once per machine, stored beside the list or in ``$PPCLS_HOME``, and
    mapped into the memory that all processes share. They are read-only then.

    Args:
        listing: List file.
        form: Format of the lines.

    Raises:
        UserError: The list is empty or has invalid lines.
        OSError: The list can't be read.
    """
    with open_regular(listing) as file:
        status = os.fstat(file.fileno())
        if status.st_size < CACHED_BYTES:
            return parse_list(listing, file, form)
    general = replace(form, class_num=None)  # the number of classes is checked below
    path = os.path.realpath(listing)
    cache = ArrayCache(
        json.dumps([path, form.delimiter, form.labelled, form.roots]), str(listing), Path(path)
    )
    source = Source(
        lambda: _read_state(listing),
        max(status.st_mtime_ns, status.st_ctime_ns),
        lambda: _digest(listing),
    )
    try:
        stored = cache.get(source, lambda: _parse(listing, general))
    except UserError:
        if form == general:
            raise
        stored = None  # the list is parsed again, so that the error also counts labels that are too large
    arrays = None if stored is None else _to_list(stored)
    if arrays is None or not _has_classes(arrays, form):
        with open_regular(listing) as file:
            return parse_list(listing, file, form)
    return arrays


def _parse(listing: Path, form: LineFormat) -> Arrays:
    with open_regular(listing) as file:
        arrays = parse_list(listing, file, form)._asdict()
    return {name: array for name, array in arrays.items() if array is not None}


def _to_list(arrays: Arrays) -> ListArrays:
    names = ListArrays._fields
    return ListArrays(**{name: arrays.get(name) for name in names})  # type: ignore[arg-type]


def _has_classes(arrays: ListArrays, form: LineFormat) -> bool:
    """Returns whether all labels are those of the model's classes."""
    if form.class_num is None:
        return True
    if form.labelled == "per class":
        return bool(arrays.labels.shape[1] == form.class_num)
    return form.labelled == "none" or bool(arrays.labels.max() < form.class_num)


def _read_state(listing: Path) -> State:
    return file_state(listing.stat())


def _digest(listing: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(listing) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
