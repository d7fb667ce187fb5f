"""Many graphs in one DALI pipeline: to build one takes seconds on a GPU, most of them for its decoders.

DALI does operators of the same inputs and arguments once, so what several branches decode is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.config.sections.transform import Transform
from ppcls.data.transforms.dali_ops import Device, LoweringContext, Node, lower_chain
from ppcls.data.transforms.numpy_ops import run, run_steps
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.fuse import DecodeRandCrop

Images = list[NDArray[Any]]


@dataclass(frozen=True)
class Branch:
    """A graph of its own.

    Attributes:
        inputs: What is fed: batches of one array an image.
        lower: From the nodes of these to the images' node.
    """

    inputs: Sequence[Any]
    lower: Callable[..., Node]


class Together:
    """Branches in one pipeline, which runs when the first one's images are asked for.

    Where it fails, each branch runs alone, so that the error is that of the branch that was asked for.

    Args:
        branches: By name; all of one batch size.
        device: Where they run.
        exec_dynamic: Whether DALI's dynamic executor runs them.
    """

    def __init__(self, branches: Mapping[Any, Branch], device: Device, exec_dynamic: bool = True) -> None:
        self._branches, self.device, self._exec_dynamic = branches, device, exec_dynamic
        self._made: dict[Any, Images] | None = None

    def images(self, name: Hashable) -> Images:
        """Returns the images of one branch."""
        if self._made is None:
            try:
                self._made = dict(zip(self._branches, self._run(*self._branches.values()), strict=True))
            except (RuntimeError, TypeError, ValueError):  # as DALI translates what goes wrong in C++
                self._made = {}
        return self._made[name] if self._made else self._run(self._branches[name])[0]

    def _run(self, *branches: Branch) -> list[Images]:
        batches = {_content(each): each for branch in branches for each in branch.inputs}
        fed = list(batches.values())
        pipeline = Pipeline(
            batch_size=len(fed[0]),
            num_threads=2,
            device_id=0 if self.device == "gpu" else None,
            prefetch_queue_depth=1,
            exec_dynamic=self._exec_dynamic,
        )
        with pipeline:
            nodes = fn.external_source(lambda: fed, num_outputs=len(fed), batch=True)
            of = dict(zip(batches, nodes, strict=True))
            pipeline.set_outputs(
                *(branch.lower(*(of[_content(each)] for each in branch.inputs)) for branch in branches)
            )
        pipeline.build()
        outputs = list(pipeline.run())
        return [self._arrays(outputs.pop(0)) for _ in branches]  # a copy at a time: there may be many

    def _arrays(self, batch: Any) -> Images:
        return [np.array(image) for image in (batch.as_cpu() if self.device == "gpu" else batch)]


def _content(batch: Any) -> Hashable:
    """Returns what two batches have in common where DALI may take them for one."""
    return tuple((each.dtype.str, each.shape, each.tobytes()) for each in batch)


def chain_branch(
    ops: tuple[Op, ...], files: Sequence[bytes], draws: NDArray[np.float32], place: LoweringContext
) -> Branch:
    """Makes a branch of a whole chain, fused or not, over encoded images."""
    first = ops[0].spec
    decoder = first.decode if isinstance(first, DecodeRandCrop) else first
    sides = np.array([_decode(decoder, file).shape[:2] for file in files])
    inputs = [[np.frombuffer(file, np.uint8) for file in files], *chain(*decide_chain(ops, draws, sides))]
    return Branch(inputs, lambda encoded, *decided: lower_chain(ops, encoded, decided, place)[-1])


def expected(ops: tuple[Op, ...], file: bytes, draws: NDArray[np.float32]) -> NDArray[Any]:
    """Returns what `ppcls.data.transforms.numpy_ops.run` does, and decodes each file once for all chains."""
    first = _decode(ops[0].spec, file).copy()
    *_, image = first, *run_steps(ops[1:], first, draws)
    return np.ascontiguousarray(image)


@cache
def _decode(decoder: Transform, file: bytes) -> NDArray[Any]:
    return run((Op(decoder, 0),), file, np.zeros(0, np.float32))
