"""Images that are numpy arrays in files, by numpy."""

from __future__ import annotations

from ppcls.data.images.npy import read_npy
from ppcls.data.transforms.numpy_ops.chain import Array, apply
from ppcls.data.transforms.specs.arrays import DecodeNumpy
from ppcls.data.transforms.specs.decisions import Decided


@apply.register
def _(spec: DecodeNumpy, image: bytes, decided: Decided) -> Array:
    return read_npy(spec, image)
