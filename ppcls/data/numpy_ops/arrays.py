"""Images that are numpy arrays in files, by numpy."""

from __future__ import annotations

from ppcls.data.decisions import Decided
from ppcls.data.npy_file import read_npy
from ppcls.data.numpy_ops.chain import Array, apply
from ppcls.data.transforms.arrays import DecodeNumpy


@apply.register
def _(spec: DecodeNumpy, image: bytes, decided: Decided) -> Array:
    return read_npy(spec, image)
