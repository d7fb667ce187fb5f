"""Finds the keys and values in an LMDB file without mapping the file into memory.

The LMDB library maps a file into memory and follows page numbers without checking them. So a damaged or
truncated file can crash the process. This module checks every position, and reads parts of the file.

The file is an array of pages. The first two pages are meta pages, each of which describes a version of the
database; the version with the newer transaction is valid. Its meta page contains the number of the root of a
tree of branch pages and leaf pages. Leaf pages contain keys, each with its value or, for a large value, with
the number of the first page of the value (liblmdb, mdb.c, "Page header").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ppcls.data.records.shard import ShardFile

_HEADER = struct.Struct("<QHHHH")  # page number, padding, flags, end of the pointers, start of the nodes
# flags of pages
_BRANCH = 1
_LEAF = 2
_OVERFLOW = 4
_META = 8
_META_PAGE = struct.Struct("<II16x")  # magic number, version
_DATABASE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, three counts of pages, entries, root
_LAST = struct.Struct("<QQ")  # number of the last page, number of the transaction
_NODE = struct.Struct("<HHHH")  # low and high bits of the value's size, flags, size of the key in bytes
_MAGIC = 0xBEEFC0DE
_VERSION = 1
_NO_PAGE = 2**64 - 1
_BIG = 1  # flag of a node whose value is on overflow pages
_PAGE_SIZES = (4096, 8192, 16384, 32768, 65536)
_MIN_PAGE = 4096


class PageError(ValueError):
    """The file is not an LMDB file, or is damaged or not supported."""


class Entry(NamedTuple):
    """A key, and the offset and size of its value in the file, in bytes."""

    key: bytes
    offset: int
    size: int


def list_entries(file: ShardFile) -> Iterator[Entry]:
    """Yields all entries in the order of their keys.

    Raises:
        PageError: The file is damaged or truncated, or is not an LMDB file.
    """
    page_size, root, last = _read_meta(file)
    if file.size < (expected := (last + 1) * page_size):
        raise PageError(f"expected {expected} bytes, found {file.size}; the file is truncated")
    stack = [] if root == _NO_PAGE else [root]
    left = last + 1  # each page may occur only once in the tree
    while stack:
        number = stack.pop()
        left = left - 1
        if number > last or left < 0:
            raise PageError(
                f"damaged: the tree refers to page {number}, but the file has {last + 1} pages; or the tree "
                "has a loop"
            )
        page = file.read(number * page_size, page_size)
        kind, nodes = _list_nodes(page)
        if kind == _BRANCH:
            stack += [low | high << 16 | flags << 32 for low, high, flags, _, _ in reversed(nodes)]
            continue
        for low, high, flags, key_size, at in nodes:
            key = page[at : at + key_size]
            begin = at + key_size
            size = low | high << 16
            if flags == _BIG and begin + 8 <= page_size:
                first = int.from_bytes(page[begin : begin + 8], "little")
                offset = first * page_size + _HEADER.size
                end = file.size
            elif flags == 0:
                offset = number * page_size + begin
                end = (number + 1) * page_size
            else:
                raise PageError(
                    f"expected one value per key, found flags {flags} (several values or a nested database)"
                )
            if offset + size > end:
                raise PageError(f"damaged: a value of {size} bytes at byte {offset} ends beyond byte {end}")
            yield Entry(key, offset, size)


def _read_meta(file: ShardFile) -> tuple[int, int, int]:
    """Returns the page size in bytes, the number of the root page, and the number of the last page."""
    versions: list[tuple[int, int, int, int]] = []
    page_size = _MIN_PAGE
    for number in (0, 1):
        page = file.read(number * page_size, _MIN_PAGE)
        if len(page) < _MIN_PAGE:
            raise PageError(f"expected an LMDB file, found a file of only {file.size} bytes")
        at = _HEADER.size + _META_PAGE.size
        if _HEADER.unpack_from(page)[2] & _META == 0 or _META_PAGE.unpack_from(page, _HEADER.size) != (
            _MAGIC,
            _VERSION,
        ):
            raise PageError("expected a file of LMDB 0.9, found other data")
        page_size = _DATABASE.unpack_from(page, at)[0]
        _, flags, _, _, _, _, _, root = _DATABASE.unpack_from(page, at + _DATABASE.size)
        last, transaction = _LAST.unpack_from(page, at + 2 * _DATABASE.size)
        if page_size not in _PAGE_SIZES or flags:
            raise PageError(
                "expected pages of 4 to 64 KiB with one value per key, "
                f"found pages of {page_size} bytes, flags {flags}"
            )
        versions.append((transaction, page_size, root, last))
    return max(versions)[1:]


def _list_nodes(page: bytes) -> tuple[int, list[tuple[int, int, int, int, int]]]:
    """Returns the flag of a page, and the nodes of the page.

    Returns:
        Branch or leaf flag. For each node: low and high bits of the value's size, flags, size of the key in
        bytes, and position of the key in the page. Branch nodes use the first three words for a page number.
    """
    _, _, flags, lower, _ = _HEADER.unpack_from(page)
    if flags not in (_BRANCH, _LEAF) or not _HEADER.size <= lower <= len(page):
        raise PageError(f"damaged: expected a branch page or leaf page of the tree, found flags {flags}")
    nodes = []
    for (at,) in struct.iter_unpack("<H", page[_HEADER.size : lower - lower % 2]):
        if at + _NODE.size > len(page):
            raise PageError("damaged: an entry lies outside its page")
        words = _NODE.unpack_from(page, at)
        if at + _NODE.size + words[3] > len(page):
            raise PageError("damaged: a key extends beyond its page")
        nodes.append((*words, at + _NODE.size))
    return flags, nodes
