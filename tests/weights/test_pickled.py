"""Limits on what reading a pickle may cost."""

from __future__ import annotations

import pickle
import struct
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ppcls.errors import UserError
from ppcls.weights.files import read_pdparams
from ppcls.weights.pickled import unpickle

pytestmark = pytest.mark.hostile

PROTO = b"\x80\x04"


def text(content: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(content)) + content


def list_as_tuples(length: int, copies: int) -> bytes:
    """One list of numbers that is converted to many tuples."""
    numbers = b"]\x94(" + b"K\0" * length + b"e"
    return PROTO + b"(" + numbers + b"cbuiltins\ntuple\n\x94" + b"h\x01h\0\x85R" * copies + b"l."


def repeated_encode(length: int, copies: int) -> bytes:
    """One text that is encoded many times."""
    constants = text(b"a" * length) + b"\x94" + text(b"latin1") + b"\x94c_codecs\nencode\n\x94"
    return PROTO + b"(" + constants + b"h\x02h\0h\x01\x86R" * copies + b"l."


def repeated_ordered_dict(length: int, copies: int) -> bytes:
    """One list of pairs that is converted to many dicts."""
    pairs = b"]\x94(" + b"".join(text(b"%d" % n) + b"K\0\x86" for n in range(length)) + b"e"
    return PROTO + b"(" + pairs + b"ccollections\nOrderedDict\n\x94" + b"h\x01h\0\x85R" * copies + b"l."


def repeated_dtype_name(length: int, copies: int) -> bytes:
    """One long text that is parsed as the name of a dtype many times."""
    constants = text(b"f" * length) + b"\x94cnumpy\ndtype\n\x94"
    return PROTO + b"(" + constants + b"h\x01h\0\x85R" * copies + b"l."


def shared_array_bytes(length: int, copies: int) -> bytes:
    """One text of bytes that becomes many bfloat16 arrays."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR"
    dtype = b"cnumpy\ndtype\n\x8c\x02u2\x85R\x94"
    constants = b"B" + struct.pack("<I", length) + b"\0" * length + b"\x94" + dtype
    state = b"(K\x01J" + struct.pack("<i", length // 2) + b"\x85h\x01\x89h\0tb"
    entries = b"".join(text(b"%d" % n) + array + state for n in range(copies))
    return PROTO + constants + b"}(" + entries + b"u."


def repeated_shape(length: int, copies: int) -> bytes:
    """One tuple of many sides that is the shape of many arrays."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR"
    dtype = b"cnumpy\ndtype\n\x8c\x02f4\x85R\x94"
    constants = b"(" + b"K\0" * length + b"t\x94" + dtype
    return PROTO + constants + b"(" + (array + b"(K\x01h\0h\x01\x89C\0tb") * copies + b"l."


BOMBS: dict[str, Callable[[], bytes]] = {
    "list as tuples": lambda: list_as_tuples(200_000, 20_000),
    "encode": lambda: repeated_encode(2_000_000, 200_000),
    "OrderedDict": lambda: repeated_ordered_dict(60_000, 10_000),
    "dtype name": lambda: repeated_dtype_name(2_000_000, 100_000),
    "array bytes": lambda: shared_array_bytes(2_000_000, 20_000),
    "shape": lambda: repeated_shape(200_000, 20_000),
    "instructions": lambda: PROTO + b"(" + b"N" * 2_000_001 + b"l.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_unpickle_bomb_is_rejected_cheaply(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pdparams"
    path.write_bytes(BOMBS[name]())
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"net\.pdparams: (rejected|damaged)"):
            read_pdparams(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * 2**20
    assert time.process_time() - start < 60


def test_read_pdparams_converts_shared_bfloat16_once(tmp_path: Path) -> None:
    shared = np.arange(4, dtype=np.uint16) << 7
    (tmp_path / "net.pdparams").write_bytes(pickle.dumps({f"{n}": ("name", shared) for n in range(100)}))
    found = read_pdparams(tmp_path / "net.pdparams")
    assert len({id(array) for array in found.values()}) == 1


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_unpickle_of_large_arrays_stays_within_budget(tmp_path: Path, protocol: int) -> None:
    arrays = OrderedDict((f"layer{n}.weight", np.full((64, n + 1), 200, np.uint8)) for n in range(300))
    (tmp_path / "net.pdparams").write_bytes(pickle.dumps(arrays, protocol))
    found = unpickle(tmp_path / "net.pdparams")
    assert found.keys() == arrays.keys()
    np.testing.assert_array_equal(found["layer299.weight"], arrays["layer299.weight"])
