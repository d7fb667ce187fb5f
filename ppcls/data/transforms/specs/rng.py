"""Generates random numbers that depend only on seed, epoch, index, repeat and slot.

The generator is SplitMix64 (Steele, Lea & Flood 2014), used as a counter-based hash. It has no state. So the
numbers do not depend on the order in which they are generated, or on the process, thread or library. For
random numbers that all ranks share at a step, the index is the number of the step.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increment of SplitMix64: 2^64 divided by the golden ratio
_ORDER_SLOT = 0  # for the order of an epoch; transforms use the slots after it
_FIRST_DRAW_SLOT = 1


class Purpose(IntEnum):
    """Slots of random numbers for purposes other than transforms. Transforms use much smaller slots."""

    CLASS = 2**32
    IMAGE = 2**32 + 1
    SIZE = 2**32 + 2
    STEP = 2**33  # also uses the slots after this one


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _hash(
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],
    slots: NDArray[np.int64],
    repeats: NDArray[np.int64] | None = None,
) -> NDArray[np.uint64]:
    """Returns a 64-bit hash for each index and slot, [N, S] uint64."""
    with np.errstate(over="ignore"):
        key = _mix(np.asarray([seed], np.uint64) + _GOLDEN)
        key = _mix(key ^ _mix(np.asarray([epoch], np.uint64) * _GOLDEN + _GOLDEN))
        rows = _mix(key + indices.astype(np.uint64) * _GOLDEN)
        if repeats is not None:
            rows ^= _mix(repeats.astype(np.uint64) * _GOLDEN)  # changes nothing for repeat 0
        return _mix(rows[:, None] + (slots.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _to_fractions(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    fractions: NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def uniforms(
    seed: int, epoch: int, indices: NDArray[np.int64], count: int, repeats: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Draws uniform random numbers for samples.

    Args:
        seed: Seed of the run, >= 0.
        epoch: Epoch, from 0.
        indices: [N], positions of the samples in the dataset.
        count: Number of random numbers per sample.
        repeats: [N], number of earlier occurrences of each sample in the epoch; None if all are 0.

    Returns:
        Random numbers in [0, 1), multiples of 2^-24, [N, count] float32.
    """
    slots = np.arange(_FIRST_DRAW_SLOT, _FIRST_DRAW_SLOT + count, dtype=np.int64)
    bits = _hash(seed, epoch, indices, slots, repeats) >> np.uint64(40)
    return bits.astype(np.float32) * np.float32(2.0**-24)


def normals(uniform: NDArray[np.float32]) -> NDArray[np.float32]:
    """Converts uniform random numbers into independent standard normal ones (Box & Muller 1958).

    Args:
        uniform: Uniform random numbers in [0, 1), [..., 2 * k] float32.

    Returns:
        Standard normal random numbers, [..., 2 * k] float32.
    """
    first, second = np.split(uniform.astype(np.float64), 2, axis=-1)
    radius = np.sqrt(-2 * np.log1p(-first))
    angle = 2 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).astype(np.float32)


def keys(seed: int, epoch: int, size: int, purpose: Purpose) -> NDArray[np.uint64]:
    """Draws a random 64-bit sort key for each number in ``range(size)``, [size] uint64."""
    return _hash(seed, epoch, np.arange(size, dtype=np.int64), np.asarray([purpose]))[:, 0]


def fractions(seed: int, epoch: int, size: int, purpose: Purpose) -> NDArray[np.float64]:
    """Draws a uniform random number in [0, 1) for each number in ``range(size)``, [size] float64."""
    return _to_fractions(keys(seed, epoch, size, purpose))


def step_fractions(
    seed: int, epoch: int, step: int, count: int, purpose: Purpose = Purpose.STEP
) -> NDArray[np.float64]:
    """Draws uniform random numbers in [0, 1) that all ranks share at a step, [count] float64."""
    slots = np.arange(purpose, purpose + count, dtype=np.int64)
    return _to_fractions(_hash(seed, epoch, np.asarray([step], np.int64), slots)[0])


def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """Returns a random order of ``range(size)``, [size] int64."""
    drawn = _hash(seed, epoch, np.arange(size, dtype=np.int64), np.asarray([_ORDER_SLOT]))
    return np.argsort(drawn[:, 0], kind="stable").astype(np.int64)
