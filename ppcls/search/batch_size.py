"""Implements ``ppcls train --find-batch-size``, which finds the largest batch size that fits into memory."""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path

from ppcls.commands import set_keys
from ppcls.config.base.errors import ConfigError
from ppcls.config.base.tree import Tree
from ppcls.config.base.yaml import dump_yaml
from ppcls.data.sampling.base import Sampler
from ppcls.errors import UserError, child_error, counted
from ppcls.files import write_text
from ppcls.files.temporary import temporary_folder
from ppcls.recipe.load import load_config
from ppcls.runtime.launch import check_single_process
from ppcls.search.trials import last_lines, start_training


def find_batch_size(tree: Tree, sampler: Sampler, update_freq: int, report: Callable[[str], None]) -> str:
    """Finds the largest batch size that fits into memory, and returns it in a line of text.

    The candidates are the divisors of ``batch_size * update_freq``, so that the number of images per update
    does not change. Bisection selects a few candidates, and a dry run tests each of them.

    Args:
        tree: Config of the run as plain data.
        sampler: ``DataLoader.Train.sampler``, which defines the batch size.
        update_freq: Number of batches per update, ``Global.update_freq``.
        report: Function that receives a line about each dry run.

    Raises:
        UserError: Even the smallest batch does not fit, or training fails for another reason.
    """
    check_single_process("--find-batch-size")
    key, size = sampler.batch_setting
    name = f"DataLoader.Train.sampler.{key}"
    total = size * update_freq
    sizes = [
        batch
        for batch in range(total, 0, -1)
        if total % batch == 0 and _is_valid(tree, _overrides(name, batch, total))
    ]
    with temporary_folder("batch") as folder:
        file = folder / "config.yaml"
        write_text(file, dump_yaml(tree))

        def fits(batch: int) -> bool:
            fit, text = try_batch(file, _overrides(name, batch, total))
            report(f"{key} {batch}: {text}")
            return fit

        largest = largest_fitting(sizes, fits)
    if largest is None:
        raise UserError(
            f"--find-batch-size: even {key} {sizes[-1]} does not fit into memory; use smaller images or a "
            "smaller model"
        )
    freq = total // largest
    return (
        f"largest {key} that fits: {largest}; to keep {counted(total, 'image')} per update, use "
        f"{set_keys({name: largest, 'Global.update_freq': freq})}"
    )


def largest_fitting(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Returns the largest size that fits; None if no size fits.

    Args:
        sizes: Sizes in descending order.
        fits: Function that returns whether a size fits. If a size fits, all smaller sizes must fit too.
    """
    if not sizes or fits(sizes[0]):
        return sizes[0] if sizes else None
    position = bisect_left(sizes, True, lo=1, key=fits)
    return sizes[position] if position < len(sizes) else None


def try_batch(config: Path, overrides: list[str]) -> tuple[bool, str]:
    """Returns whether a dry run fits into memory, and a description of its result.

    Raises:
        UserError: The dry run fails for a reason other than memory.
    """
    log = config.with_name("dry_run.log")
    with start_training(config, overrides, log, ["--dry-run"]) as process:
        code = process.wait()
    if code == 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = [line.split(None, 1)[1].strip() for line in lines if line.startswith(("speed ", "memory "))]
        return True, f"fits; {'; '.join(shown)}"
    if code == -signal.SIGKILL:
        return False, "out of memory: the system ended the process"
    error = last_lines(log)
    if error.startswith("out of "):
        return False, error.partition(";")[0]
    raise child_error(code, f"--find-batch-size: {' '.join(overrides)}: {error}")


def _overrides(name: str, batch: int, total: int) -> list[str]:
    return [f"{name}={batch}", f"Global.update_freq={total // batch}"]


def _is_valid(tree: Tree, overrides: list[str]) -> bool:
    """Returns whether the sampler accepts the batch size. Some samplers accept only multiples of a number."""
    try:
        load_config(tree, overrides)
    except ConfigError:
        return False
    return True
