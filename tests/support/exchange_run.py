"""Trains on two ranks with one group and with several groups of gradients, and compares the weights.

On a GPU, the steps are CUDA graphs. On a CPU, the captured work runs again instead of a replay. Each rank
writes its weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from ppcls.recipe.load import load_config
from ppcls.runtime import start as runtime


@contextmanager
def recorded(events: list[str]) -> Iterator[None]:
    """Records starts of exchanges and replays of CUDA graphs."""
    import paddle
    from paddle.device.cuda.graphs import CUDAGraph

    reduce, replay = paddle.distributed.all_reduce, CUDAGraph.replay

    def all_reduce(tensor: paddle.Tensor, **options: Any) -> Any:
        events.append("exchange")
        return reduce(tensor, **options)

    def replay_graph(graph: CUDAGraph) -> None:
        events.append("replay")
        replay(graph)

    paddle.distributed.all_reduce = all_reduce
    CUDAGraph.replay = replay_graph
    try:
        yield
    finally:
        paddle.distributed.all_reduce = reduce
        CUDAGraph.replay = replay


def _series(events: list[str]) -> int:
    """Returns the number of series of exchanges without a replay between them."""
    return sum(event == "exchange" for event, _ in groupby(events))


def main(config: str, folder: Path) -> None:
    run = runtime.start(load_config(config).Global)
    import numpy as np
    from exchange_cases import CASES, GPU_CASES, GROUP_SIZE, Again, make_loader, train

    from ppcls.engine.cuda_graph.graph import GraphCapture

    on_gpu = run.device == "gpu"
    capture = GraphCapture() if on_gpu else Again
    results = {}
    for name, case in (CASES | (GPU_CASES if on_gpu else {})).items():
        one: list[str] = []
        several: list[str] = []
        with recorded(one):
            expected = train(case, None, capture, run, make_loader(case, run))
        with recorded(several):
            weights = train(case, GROUP_SIZE, capture, run, make_loader(case, run))
        for key, value in expected.items():
            np.testing.assert_array_equal(weights[key], value, err_msg=f"{name}: {key}")
        assert several.count("exchange") > one.count("exchange") > 0, name
        if on_gpu:
            assert several.count("replay") > one.count("replay"), name
            assert _series(several) > _series(one), f"{name}: exchanges lie between the parts of a graph"
        results[name] = {key: value.tolist() for key, value in weights.items()}
    (folder / f"rank_{run.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
