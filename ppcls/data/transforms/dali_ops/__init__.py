"""Implements the transforms with DALI, on the CPU or a GPU: specs become nodes of a DALI graph."""

from ppcls.data.transforms.dali_ops import augmentations, basic, policies
from ppcls.data.transforms.dali_ops.graph import (
    Device,
    LoweringContext,
    Node,
    UnsupportedError,
    check_graph,
    lower,
    lower_chain,
)

__all__ = [
    "Device",
    "LoweringContext",
    "Node",
    "UnsupportedError",
    "augmentations",
    "basic",
    "check_graph",
    "lower",
    "lower_chain",
    "policies",
]
