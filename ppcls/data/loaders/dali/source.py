"""What feeds DALI's decoding pipeline: encoded images, their labels, and what was decided for each."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from nvidia.dali import fn

from ppcls.config.sections.sampler import InputSize
from ppcls.config.sections.transform import Transform
from ppcls.data.index.read import Index
from ppcls.data.loaders.dali.reader import EncodedBatch, build_reader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.input_size import resize_chain, size_at
from ppcls.data.sampling.order import BatchOrder, Cursor
from ppcls.data.transforms.specs import Op, count_draws
from ppcls.data.transforms.specs.decisions import count_decisions, decide_chain
from ppcls.data.transforms.specs.rng import uniforms

Node = Any  # a DataNode of a graph under construction


@dataclass
class _Decoding:
    """A batch in the pipeline. It keeps the bytes, which DALI uses in place, until the images are out."""

    batch: EncodedBatch
    told: set[str] = field(default_factory=set)  # what of it the pipeline has


class Source:
    """Answers DALI's questions for the next batch, and remembers which batches are under way.

    Args:
        index: The samples.
        order: Which of them when.
        decoder: The chain's first transform.
        ops: The chain, as it is lowered.
        settings: Of DALI.
        sizes: Of the images, where they change from step to step.
        stride: Of as many batches this one makes one.
    """

    def __init__(
        self,
        index: Index,
        order: BatchOrder,
        decoder: Transform,
        ops: tuple[Op, ...],
        settings: DaliSettings,
        sizes: InputSize | None,
        stride: int = 1,
    ) -> None:
        self._index, self._order, self._ops, self._sizes = index, order, ops, sizes
        self.pool = ThreadPoolExecutor(max_workers=settings.threads)
        self.reader = build_reader(index, order, settings, decoder, self.pool, stride)
        self._draws = count_draws(ops)
        self._decoding: deque[_Decoding] = deque()

    @property
    def under_way(self) -> list[Cursor]:
        """Batches asked for and not yet taken, in order."""
        return [each.batch.cursor for each in self._decoding] + [
            cursor for cursor, _ in self.reader.under_way
        ]

    def seek(self, cursor: Cursor) -> None:
        """Goes on from another position; what is under way still comes first."""
        self.reader.seek(cursor)

    def taken(self) -> Cursor:
        """Returns which batch just came out of the pipeline."""
        return self._decoding.popleft().batch.cursor

    def close(self) -> None:
        """Ends its threads."""
        self.reader.close()
        self.pool.shutdown(wait=False)

    def nodes(self) -> tuple[Node, list[Node]]:
        """Returns nodes of the bytes, and of labels and all ops' decisions, in the graph under construction.

        Bytes are many, and the reader's own, so the pipeline uses them where they are; arrays are copied.
        """
        count = 1 + sum(count_decisions(op.spec) for op in self._ops)
        files = fn.external_source(self._files, batch=True, no_copy=True)
        return files, list(fn.external_source(self._arrays, batch=True, num_outputs=count))

    def _files(self) -> Any:
        return self._next("files").files

    def _arrays(self) -> list[Any]:
        batch = self._next("arrays")
        indices = batch.step.indices
        draws = uniforms(self._order.seed, batch.cursor.epoch, indices, self._draws, batch.step.repeats)
        ops = self._ops
        if self._sizes is not None:
            ops = resize_chain(ops, size_at(self._sizes, self._order.seed, batch.cursor))
        decided = decide_chain(ops, draws, batch.sides)
        return [self._index.labels[indices], *chain.from_iterable(decided)]

    def _next(self, part: str) -> EncodedBatch:
        """Returns the first batch whose ``part`` the pipeline does not have: it asks in any order."""
        decoding = next((each for each in self._decoding if part not in each.told), None)
        if decoding is None:
            decoding = _Decoding(self.reader.read())
            self._decoding.append(decoding)
        decoding.told.add(part)
        return decoding.batch
