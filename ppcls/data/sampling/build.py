"""Builds samplers from their configs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections import sampler as specs
from ppcls.data.index.protocol import Index
from ppcls.data.sampling.sampler import (
    BalancedClassSampler,
    EpochSampler,
    IdentitySampler,
    RepeatedAugmentationSampler,
    SequentialSampler,
    ShuffledSampler,
    WeightedRandomSampler,
)
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import read_regular


def build_sampler(spec: specs.SamplerSpec, index: Index, world: int) -> EpochSampler:
    """Builds the sampler of a training set.

    Args:
        spec: Config of the sampler.
        index: The samples.
        world: Number of processes, which determines the size of the global batch.

    Raises:
        UserError: The weights can't be read or don't match the dataset, or there are too few identities.
    """
    match spec:
        case specs.DistributedBatchSampler():
            return ShuffledSampler(len(index)) if spec.shuffle else SequentialSampler(len(index))
        case specs.MultiScaleSampler():
            return ShuffledSampler(len(index))
        case specs.ClassBalancedSampler():
            return BalancedClassSampler(index.labels, spec.samples or len(index))
        case specs.WeightedSampler():
            return _build_weighted(spec, index)
        case specs.RepeatedAugSampler():
            return RepeatedAugmentationSampler(len(index), spec.num_repeats, spec.global_batch(world))
        case specs.PKSampler():
            return _build_identity(spec, index, world)
    raise TypeError(f"no sampler for {spec.kind}")


def read_weights(file: Path, index: Index) -> NDArray[np.float64]:
    """Reads the weights of samples from a text file.

    Args:
        file: File with one weight per line, in the order of the samples. Empty lines are ignored.
        index: The samples.

    Returns:
        Weight of each sample, [N] float64, all >= 0, and at least one > 0.

    Raises:
        UserError: The file is missing, a line is not a number >= 0, all weights are 0, or the number of
            weights differs from the number of samples.
    """
    try:
        lines = read_regular(file).decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise UserError(
            f"{file}: can't read these weights: {error.strerror}; expected one number per line"
        ) from None
    weights: list[float] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            weight = float(line)
        except ValueError:
            weight = math.nan
        if 0 <= weight < math.inf:
            weights.append(weight)
        else:
            problems.append(f"{file}, line {number}: expected a number >= 0, got {line.strip()!r}")
    raise_line_errors(problems)
    if len(weights) != len(index):
        raise UserError(
            f"{file}: found {len(weights)} weights, but {index.source} has {len(index)} samples; "
            "expected one weight per sample, in the same order"
        )
    if not any(weights):
        raise UserError(f"{file}: all weights are 0; expected at least one > 0")
    return np.array(weights, np.float64)


def _build_weighted(spec: specs.WeightedSampler, index: Index) -> WeightedRandomSampler:
    samples = spec.samples or len(index)
    if spec.weights_file is not None:
        return WeightedRandomSampler(read_weights(Path(spec.weights_file), index), samples)
    weights = np.array(spec.class_weights, np.float64)[index.labels]
    if not weights.any():
        raise UserError(
            f"{index.source}: the classes of all samples have weight 0; "
            "increase DataLoader.Train.sampler.class_weights for a class that has samples"
        )
    return WeightedRandomSampler(weights, samples)


def _build_identity(spec: specs.PKSampler, index: Index, world: int) -> IdentitySampler:
    needed = spec.global_batch(world) // spec.sample_per_id
    identities = len(np.unique(index.labels))
    if identities < needed:
        name, size = spec.batch_setting
        ranks = f" x {world} processes" if name == "batch_size" else ""
        raise UserError(
            f"{index.source}: found {identities} identities, but PKSampler needs {needed} per step "
            f"({name} {size} / sample_per_id {spec.sample_per_id}{ranks}); "
            f"decrease DataLoader.Train.sampler.{name} or increase its sample_per_id"
        )
    return IdentitySampler(index.labels, spec.sample_per_id, needed)
