"""Decodes images with DALI as the loader does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.data.loaders.dali.headers import admit, peek
from ppcls.data.transforms.dali_ops import Device, LoweringContext, lower_chain
from ppcls.data.transforms.specs import DecodeImage, Op


def decode_by_dali(spec: DecodeImage, files: list[bytes], device: Device) -> list[NDArray[Any]]:
    """Decodes as the loader does: one pipeline looks at headers, and what they admit goes to a second."""
    device_id = 0 if device == "gpu" else None
    reader = Pipeline(len(files), 1, device_id=None, exec_dynamic=True)
    with reader:
        node = fn.external_source(lambda: [np.frombuffer(each, np.uint8) for each in files], batch=True)
        reader.set_outputs(node, *peek(spec, node))
    decoder = Pipeline(len(files), 1, device_id=device_id, exec_dynamic=True)
    with decoder:
        node = fn.external_source(lambda: encoded, batch=True)
        decoder.set_outputs(lower_chain([Op(spec, 0)], node, (), LoweringContext(device))[-1])
    encoded, *peeked = reader.run()
    sides = admit(spec, encoded, *peeked, on_gpu=device == "gpu")
    (images,) = decoder.run()
    found = [np.array(each) for each in (images.as_cpu() if device == "gpu" else images)]
    assert [list(image.shape[:2]) for image in found] == sides.tolist()
    return found
