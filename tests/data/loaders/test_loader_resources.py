"""Conformance of all loaders: memory, threads and processes; and settings, which change no batch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_conformance import GREY_LEVELS, MAKERS, ORDER, TRAIN, Arrays, arrays, assert_equal, take
from numpy.typing import NDArray
from paths import ROOT
from runs import GUARD

from ppcls.data.index.protocol import Index
from ppcls.data.loaders import paddle as paddle_loader
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings, exit_with_parent
from ppcls.data.sampling.epoch_samplers import (
    SequentialSampler,
)
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs import (
    Op,
)
from ppcls.data.transforms.specs.decisions import Decisions


def test_retained_batch_is_not_overwritten(make: Callable[..., Loader]) -> None:
    kept, copies = [], []
    for _ in range(2):
        for batch in make():
            kept.append(batch)
            copies.append(arrays(batch))
    assert_equal([arrays(batch) for batch in kept], copies)


def test_release_frees_threads_and_iteration_continues(
    kind: str, make: Callable[..., Loader], uninterrupted: list[Arrays]
) -> None:
    tasks = Path("/proc/self/task")
    loader = make()
    found = [arrays(batch) for batch in islice(loader, 2)]
    during = len(list(tasks.iterdir()))
    loader.release()
    assert len(list(tasks.iterdir())) < during or "paddle" in kind
    found += take(loader)
    loader.release()
    found += take(loader)
    assert_equal(found, uninterrupted[:12])


VARIANTS: dict[str, dict[str, Any]] = {
    "static": {"exec_dynamic": False},
    "whole": {"decode_window": False},
    "fast": {"decoder": {"use_fast_idct": True}},
    "cached": {"decode_window": False, "decoder": {"cache_size": 64, "cache_type": "threshold"}},
}


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        *(("dali-cpu", variant) for variant in ("static", "whole", "fast")),
        *(
            pytest.param("dali-gpu", variant, marks=pytest.mark.gpu)
            for variant in ("static", "whole", "cached")
        ),
    ],
)
def test_dali_settings_keep_batches(
    kind: str, variant: str, index: Index, uninterrupted: list[Arrays]
) -> None:
    """Allows a grey level at the borders of windows, where chroma is scaled up from the decoded part."""
    settings = DaliSettings(None if kind == "dali-cpu" else 0, threads=2)
    varied = take(DaliLoader(index, ORDER, TRAIN, replace(settings, **VARIANTS[variant])), epochs=3)
    for a, b in zip(varied, uninterrupted, strict=True):
        assert (np.abs(a[0] - b[0]) * GREY_LEVELS).mean() < (0.0001 if variant == "static" else 1.0)
        np.testing.assert_array_equal(a[1], b[1])


def test_thread_count_keeps_pixels(index: Index) -> None:
    assert_equal(
        take(DaliLoader(index, ORDER, TRAIN, DaliSettings(threads=1))),
        take(DaliLoader(index, ORDER, TRAIN, DaliSettings(threads=4, prefetch=8))),
    )


def test_turns_keep_batches_and_positions(index: Index) -> None:
    """The pipelines that take turns get the batches of their positions, also after a resume in between."""
    settings = DaliSettings(threads=3, prefetch=6, turns=(False, True, False))
    loader = DaliLoader(index, ORDER, TRAIN, settings)
    expected = take(MAKERS["dali-cpu"](index, ORDER, TRAIN), epochs=2)
    assert_equal(take(loader, epochs=2), expected)
    for position in (1, 3, 8):
        loader.load_state_dict(ORDER.state_dict(Cursor(*divmod(position, 6))))
        assert_equal(take(loader), expected[position : 6 if position < 6 else 12])


@pytest.mark.parametrize("prefetch", [1, 3, 9])
def test_prefetch_keeps_batches(index: Index, prefetch: int) -> None:
    loader = DaliLoader(index, ORDER, TRAIN, DaliSettings(threads=2, prefetch=prefetch))
    assert_equal(take(loader, epochs=2), take(MAKERS["dali-cpu"](index, ORDER, TRAIN), epochs=2))
    loader.load_state_dict(ORDER.state_dict(Cursor(1, 4)))
    assert_equal(take(loader), take(MAKERS["dali-cpu"](index, ORDER, TRAIN), epochs=2)[-2:])


def test_shared_memory_off_keeps_batches(index: Index) -> None:
    assert_equal(
        take(PaddleLoader(index, ORDER, TRAIN, PaddleSettings(workers=1, use_shared_memory=False))),
        take(PaddleLoader(index, ORDER, TRAIN)),
    )


class CollectGarbage(Transform, abstract=True):
    """Collects garbage and keeps the image."""


@apply.register
def collect_garbage(spec: CollectGarbage, image: np.ndarray, decided: Decisions) -> NDArray[Any]:
    gc.collect()
    return image


def test_workers_do_not_inherit_dali_garbage(index: Index) -> None:
    """A forked worker that collects a pipeline hangs or crashes, because it lacks the pipeline's threads."""
    order = Order(SequentialSampler(2), batch_size=2)
    gc.disable()  # so that the pipeline still exists when the worker starts
    try:
        cycle: list[Any] = [MAKERS["dali-cpu"](index, order, TRAIN)]
        take(cycle[0])
        cycle.append(cycle)
        del cycle
        found = take(
            PaddleLoader(
                index, order, (*TRAIN[:1], Op(CollectGarbage(), 0), *TRAIN[1:]), PaddleSettings(workers=1)
            )
        )
    finally:
        gc.enable()
    assert_equal(found, take(MAKERS["paddle-0"](index, order, TRAIN)))


def workers() -> set[int | None]:
    gc.collect()  # ends the workers of the loaders of other tests
    return {worker.pid for worker in multiprocessing.active_children()}


def test_workers_stay_until_release(index: Index) -> None:
    """Across an interrupted iteration and the end of an epoch, whose next batches they have loaded."""
    loader = MAKERS["paddle-2"](index, ORDER, TRAIN)
    found = [arrays(batch) for batch in islice(loader, 1)]
    started = workers()
    assert len(started) == 2
    found += take(loader, epochs=2)
    assert workers() == started
    assert_equal(found, take(MAKERS["paddle-0"](index, ORDER, TRAIN), epochs=2))
    loader.release()
    assert workers() == set()


def test_workers_end_with_their_loader(index: Index) -> None:
    loader = MAKERS["paddle-2"](index, ORDER, TRAIN)
    assert len(list(islice(loader, 1))) == 1
    del loader
    assert workers() == set()


def test_workers_restart_at_another_position(index: Index) -> None:
    loader = MAKERS["paddle-2"](index, ORDER, TRAIN)
    expected = take(loader)
    loader.load_state_dict(ORDER.state_dict(Cursor(0, 1)))
    before = workers()
    assert_equal(take(loader), expected[1:])
    assert len(workers()) == 2
    assert not workers() & before
    loader.release()


def test_interrupted_iteration_frees_batches_that_were_not_received(index: Index) -> None:
    batches = iter(MAKERS["paddle-2"](index, ORDER, TRAIN))
    next(batches)
    workers = [worker.pid for worker in multiprocessing.active_children()]
    assert len(workers) == 2
    for worker in workers:  # a batch that it created while the iterator ended
        Path(f"/dev/shm/paddle_{worker}_0_1").write_bytes(b"a batch")
    batches.close()
    assert not [file for worker in workers for file in Path("/dev/shm").glob(f"paddle_{worker}_*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1])
def test_worker_survives_a_signal_to_the_group_while_it_starts(
    index: Index, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    expected = take(MAKERS["paddle-0"](index, ORDER, TRAIN))

    def start(worker: int) -> None:
        line = ["-c", f"import os; os.kill({os.getpid()}, {int(number)})"]  # not from the training process
        subprocess.run([sys.executable, *line], check=True)
        exit_with_parent(worker)

    monkeypatch.setattr(paddle_loader, "exit_with_parent", start)
    loader = MAKERS["paddle-2"](index, ORDER, TRAIN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert_equal(take(loader), expected)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    loader.release()


def start_worker_and_die(connection: Any) -> None:
    """Starts a worker with a batch that was received, and ends as a killed training process does."""
    worker = multiprocessing.get_context("fork").Process(target=wait_as_worker, args=[connection])
    worker.start()
    assert connection.recv() == "ready"
    os._exit(9)


def wait_as_worker(connection: Any) -> None:
    exit_with_parent(0)
    file = Path(f"/dev/shm/paddle_{os.getpid()}_0_1")
    file.write_bytes(b"a batch")
    connection.send(os.getpid())
    time.sleep(300)


def test_worker_of_a_killed_process_frees_batches_that_were_received() -> None:
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=start_worker_and_die, args=[there]).start()
    worker = here.recv()
    file = Path(f"/dev/shm/paddle_{worker}_0_1")
    assert file.exists()
    here.send("ready")
    while Path(f"/proc/{worker}").exists() and "Z (" not in state(worker):
        time.sleep(0.01)
    assert not file.exists()


def state(process: int) -> str:
    """Returns the line with the state of a process; empty if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next(line for line in lines if line.startswith("State:"))


@pytest.mark.hostile
@pytest.mark.parametrize("size", [pytest.param("4k", marks=pytest.mark.slow), "8k"])
def test_full_shared_memory_is_explained(make_yaml: Callable[..., Path], size: str) -> None:
    """4 KB are too small for the queues of the workers, and 8 KB for their batches."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may not create a mount namespace")
    config = make_yaml(Global__use_dali=False, DataLoader__Train__loader__num_workers=2)
    train = f"'{sys.executable}' '{ROOT / 'tools' / 'train.py'}' -c '{config}'"
    line = f"mount -t tmpfs -o size={size} none /dev/shm && exec {train}"
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", line], capture_output=True, text=True, timeout=GUARD, check=False
    )
    assert done.returncode == 2
    assert "/dev/shm is full: it has 0.00" in done.stderr
    assert "Traceback" not in done.stderr
