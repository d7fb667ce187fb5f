"""How numpy, OpenCV and Pillow do each transform: the reference that other backends must match."""

from ppcls.data.transforms.numpy_ops import arrays, basic, erasing, geometry, photometric, policies
from ppcls.data.transforms.numpy_ops.chain import (
    Array,
    DecodeError,
    apply,
    apply_drawn,
    run,
    run_each,
    run_on_pixels,
)

__all__ = [
    "Array",
    "DecodeError",
    "apply",
    "apply_drawn",
    "arrays",
    "basic",
    "erasing",
    "geometry",
    "photometric",
    "policies",
    "run",
    "run_each",
    "run_on_pixels",
]
