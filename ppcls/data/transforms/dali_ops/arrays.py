"""Images that are numpy arrays in files, by DALI: their numbers are the file's last bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia.dali import fn, types

from ppcls.data.transforms.dali_ops.graph import Node, Place, lower
from ppcls.data.transforms.specs.arrays import DecodeNumpy

_TYPES = {"uint8": types.UINT8, "uint16": types.UINT16, "float32": types.FLOAT}


@lower.register
def _(spec: DecodeNumpy, node: Any, place: Place) -> Node:
    (shape,) = place.decided
    length = shape[0] * shape[1] * (spec.channels * np.dtype(spec.dtype).itemsize)
    begin = fn.cast(node.shape(device="cpu")[0], dtype=types.INT32) - length
    numbers = fn.slice(node, start=fn.reshape(begin, shape=[1]), axes=[0])
    images = fn.reinterpret(numbers, shape=shape, dtype=_TYPES[spec.dtype], layout="HWC")
    return images.gpu() if place.device == "gpu" else images
