"""Each stage of a loader alone: read, decode, transform, hand over, with what it needs ready in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from ppcls.bench.loader.bottleneck import Stage
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.dali_stages import DALI_STAGES
from ppcls.bench.loader.feeds import opened
from ppcls.bench.loader.paddle_stages import PADDLE_STAGES
from ppcls.bench.loader.subject import Subject


@contextmanager
def opened_stage(stage: Stage, contender: Contender, subject: Subject) -> Iterator[Iterator[int]]:
    """Lends the batches of one stage of a contender as numbers of images, without end.

    Args:
        stage: Which; of the config's chain.
        contender: Our loader by DALI on the config's own device, or paddle.io.
        subject: The images.
    """
    if stage == "disk":
        reader = replace(contender, chain="read", backend="DALI CPU" if contender.by_dali else "paddle.io")
        with opened(reader, subject) as batches:
            yield batches
        return
    stages = PADDLE_STAGES if contender.backend == "paddle.io" else DALI_STAGES
    with closing(stages[stage](contender, subject)) as feed:
        yield feed
