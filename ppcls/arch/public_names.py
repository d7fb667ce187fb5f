"""Finds what a network declares about its names in timm and torchvision."""

from __future__ import annotations

from paddle import nn

from ppcls.arch.families.paddle_vision import PADDLE_VISION_NAMES
from ppcls.arch.public.names import PublicNames


def public_names(model: nn.Layer) -> PublicNames:
    """Returns the declaration of a network's family; an empty one for a family without weights elsewhere."""
    declared: PublicNames | None = getattr(type(model), "public_names", None)
    if declared is not None:
        return declared
    kinds = (kind for kind in type(model).__mro__ if kind in PADDLE_VISION_NAMES)
    kind = next(kinds, None)
    return PublicNames() if kind is None else PADDLE_VISION_NAMES[kind]
