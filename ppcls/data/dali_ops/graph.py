"""A graph of DALI's operators for a chain; each family's file registers how it does its transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import singledispatch
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn

from ppcls.config.transform import Transform
from ppcls.data.decisions import count_decisions
from ppcls.data.numpy_ops import apply
from ppcls.data.transforms import Op

Array = NDArray[Any]
Node = Any  # a DataNode of a graph under construction
Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Place:
    """Where an op stands in the graph.

    Attributes:
        device: Where pixels are.
        threads: CPU threads for what is not done by DALI's own.
        callbacks: Whether numpy_ops works from within the graph where it is faster than DALI's operator for
            the CPU. Never on a GPU: there a call into Python costs a third of the throughput.
        decided: Nodes of what `ppcls.data.decisions.decide` says of the images, on the CPU.
        decoder: More arguments of DALI's image decoders.
    """

    device: Device
    threads: int = 1
    callbacks: bool = True
    decided: tuple[Node, ...] = ()
    decoder: Mapping[str, Any] = field(default_factory=dict)

    @property
    def calls_numpy(self) -> bool:
        """Whether `by_numpy` may be used."""
        return self.device == "cpu" and self.callbacks


def lower_chain(ops: Sequence[Op], encoded: Node, decided: Sequence[Node], place: Place) -> Node:
    """Builds the graph of a whole chain.

    Args:
        ops: The chain, fused or not.
        encoded: Node of the files' bytes, on the CPU.
        decided: Nodes of all ops' decisions, one after the other, as `decide_chain` gives them.
        place: Device, threads and decoder options.

    Returns:
        Node of the images, on the place's device.
    """
    node, waiting = encoded, iter(decided)
    for op in ops:
        own = tuple(islice(waiting, count_decisions(op.spec)))
        node = lower(op.spec, node, replace(place, decided=own))
    return node


@singledispatch
def lower(spec: Transform, node: Node, place: Place) -> Node:
    """Adds one transform to the graph; ``node`` is the files' bytes for decoders, else images."""
    raise NotImplementedError(f"dali_ops knows no {spec.kind}")


def by_numpy(function: Callable[..., Array], images: Node, place: Place, *decided: Node) -> Node:
    """Calls ``function(image, *decisions)`` for each image of a batch, on the CPU.

    So pixels are exactly those of numpy_ops. OpenCV and numpy work without Python's lock, so threads share
    a batch.

    Args:
        function: From an image [H, W, C] and its rows of ``decided`` to an image [H, W, C].
        images: Node of the images.
        place: Whose threads do it.
        *decided: Nodes of decisions, one row an image.
    """
    threads = place.threads
    pool = ThreadPoolExecutor(max_workers=threads)

    def part(samples: list[tuple[Array, ...]]) -> list[Array]:
        return [np.ascontiguousarray(function(*sample)) for sample in samples]

    def whole(*batch: list[Array]) -> list[Array]:
        samples = list(zip(*batch, strict=True))
        done: list[Any] = list(samples)
        parts = pool.map(part, [samples[begin::threads] for begin in range(threads)])
        for begin, images in enumerate(parts):
            done[begin::threads] = images
        return done

    return fn.python_function(images, *decided, function=whole, batch_processing=True, output_layouts="HWC")


def transform_by_numpy(spec: Transform, images: Node, place: Place) -> Node:
    """Does a transform on the CPU as numpy_ops does it."""
    return by_numpy(lambda image, *decided: apply(spec, image, decided), images, place, *place.decided)
