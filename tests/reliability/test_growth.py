"""Memory, open files and threads of a run stay what they are after its first epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from figures import Figure
from runs import begin, end, lines, said

FIRST, COUNTED = 40, 50  # epochs; caches fill and allocators settle in the first ones
# What the process has from the kernel varies by 5 MiB with its allocators, after they gave back all they
# could: 50 KiB an epoch is a slope's standard error. What is in use of it can be told to 7 KiB an epoch, but
# for what DALI and Paddle map for themselves. One batch of 13 float32 images at 96 px that is kept every
# epoch makes 1404; what the report remembers of an epoch, and a list that Paddle 3.3 loses with each tensor
# made of an array, make 7.
BOUND, BOUND_IN_USE = 250.0, 30.0  # KiB an epoch


def slope(kib: np.ndarray) -> tuple[float, float]:
    """Returns a line's slope through values, one an epoch, by least squares; and its standard error."""
    epochs = np.arange(len(kib)) - (len(kib) - 1) / 2
    found = float(epochs @ kib / (epochs @ epochs))
    rest = kib - kib.mean() - found * epochs
    return found, float(np.sqrt(rest @ rest / (len(kib) - 2) / (epochs @ epochs)))


def test_slope_of_a_noisy_line_is_within_its_error() -> None:
    noise = np.random.default_rng(0).normal(size=50)
    found, error = slope(100 + 3 * np.arange(50) + noise)
    assert found == pytest.approx(3, abs=4 * error)
    assert error == pytest.approx(1 / np.sqrt(np.sum((np.arange(50) - 24.5) ** 2)), rel=0.3)


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("loader", "workers"), [("dali", 0), ("paddle.io", 0), ("paddle.io", 2)], ids=lambda each: str(each)
)
def test_memory_of_a_long_run_does_not_grow(
    make_yaml: Callable[..., Path], tmp_path: Path, figure: Figure, loader: str, workers: int
) -> None:
    notes = tmp_path / "notes"
    config = make_yaml(
        "run",
        Arch__name="Net",
        Global__use_dali=loader == "dali",
        Global__epochs=FIRST + COUNTED,
        Global__save_interval=20,
        Global__keep_best=2,
        DataLoader__Train__dataset__transform_ops=[
            {"DecodeImage": None},
            {"RandCropImage": {"size": 96}},
            {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.25] * 3}},
        ],
        DataLoader__Train__sampler__batch_size=13,
        DataLoader__Train__loader__num_workers=workers,
        DataLoader__Eval__loader__num_workers=workers,
    )
    rest = f"REST={FIRST + 1},{FIRST + COUNTED}"
    assert end(begin("noting_run.py", config, notes, rest)) == 0, said(notes)
    held = np.array([[float(each) for each in line.split()] for line in lines(notes, "held")])[FIRST:]
    assert len(held) == COUNTED
    memory, used, files, threads = held.T
    (found, error), (more, its_error) = slope(memory), slope(used)
    figure(
        f"{loader}, {workers} workers, {COUNTED} epochs with evaluation after {FIRST} others: memory "
        f"{memory[0] / 1024:.0f} -> {memory[-1] / 1024:.0f} MiB, slope {found:+.1f} KiB an epoch (standard "
        f"error {error:.1f}; bound {BOUND:.0f}); in use {used[0] / 1024:.1f} -> {used[-1] / 1024:.1f} MiB, "
        f"slope {more:+.1f} (standard error {its_error:.1f}; bound {BOUND_IN_USE:.0f}); at rest open files "
        f"{files[0]:.0f} -> {files[-1]:.0f}, threads {threads[0]:.0f} -> {threads[-1]:.0f}"
    )
    assert found < BOUND
    assert more < BOUND_IN_USE
    assert files[-1] <= files[0]
    assert threads[-1] <= threads[0]
