"""Implements the transforms with NumPy, OpenCV and Pillow. Other backends must produce the same pixels."""

from ppcls.data.transforms.numpy_ops import augmentations, basic, policies
from ppcls.data.transforms.numpy_ops.chain import (
    Array,
    DecodeError,
    apply,
    decide_and_apply,
    run,
    run_on_pixels,
    run_steps,
)

__all__ = [
    "Array",
    "DecodeError",
    "apply",
    "augmentations",
    "basic",
    "decide_and_apply",
    "policies",
    "run",
    "run_on_pixels",
    "run_steps",
]
