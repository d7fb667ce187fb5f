"""How DALI does each transform, on the CPU or a GPU: specs become nodes of its graph."""

from ppcls.data.transforms.dali_ops import arrays, basic, erasing, geometry, photometric, policies
from ppcls.data.transforms.dali_ops.graph import (
    Device,
    Node,
    Place,
    UnsupportedError,
    draft,
    lower,
    lower_chain,
    lower_each,
)

__all__ = [
    "Device",
    "Node",
    "Place",
    "UnsupportedError",
    "arrays",
    "basic",
    "draft",
    "erasing",
    "geometry",
    "lower",
    "lower_chain",
    "lower_each",
    "photometric",
    "policies",
]
