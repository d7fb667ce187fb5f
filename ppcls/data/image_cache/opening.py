"""Opens the cache of a split for one of the loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ppcls.data.image_cache.cached_index import ImageCache
from ppcls.data.image_cache.decoding import (
    decode_by_dali,
    decode_by_numpy,
    describe_decoder,
    split_cached,
)
from ppcls.data.image_cache.place import CacheKind
from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.specs import Op
from ppcls.errors import UserError
from ppcls.runtime.hardware import usable_cores

if TYPE_CHECKING:  # training without DALI must not import it
    from ppcls.data.loaders.dali.settings import DaliSettings

Chain = tuple[Op, ...]


@dataclass(frozen=True)
class CacheRequest:
    """The cache that a config asks for.

    Attributes:
        kind: Where to store the images.
        key: Key of the config, for messages.
        sizes_change: Whether the transforms resize to a size that changes from step to step.
    """

    kind: CacheKind
    key: str
    sizes_change: bool = False


def open_cache(
    index: Index,
    ops: Chain,
    request: CacheRequest,
    settings: DaliSettings | None,
    wait: Callable[[], None] = lambda: None,
) -> tuple[Index, Chain]:
    """Returns decoded images of a data set, and the chain that makes the same samples from them.

    Args:
        index: The image files.
        ops: Chain for the image files.
        request: The cache.
        settings: Settings of DALI; None for ``paddle.io``.
        wait: Function to call repeatedly while images are decoded.

    Raises:
        UserError: The samples are not image files, or do not fit into the memory or on the disk.
    """
    if not isinstance(index, FileIndex):
        raise UserError(f"{request.key}: expected null: {index.source} has no image files; remove this key")
    # A GPU resizes to other pixels than the CPU, which fills the cache.
    on_gpu = settings is not None and settings.device_id is not None
    cached, rest = split_cached(ops, only_decoder=on_gpu or request.sizes_change)
    cores = usable_cores()  # the other processes of the machine wait
    if settings is None:
        decode = decode_by_numpy(index, cached, cores)
    else:
        decode = decode_by_dali(index, cached, replace(settings, threads=cores))
    cache = ImageCache(request.kind, request.key, index, cached, describe_decoder(settings))
    return cache.open(decode, wait), rest
