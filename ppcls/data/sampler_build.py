"""From the config of a sampler to the sampler."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ppcls.config import sampler as specs
from ppcls.data.index import Index
from ppcls.data.sample_weights import read_weights
from ppcls.data.sampler import (
    ClassBalanced,
    IdentitiesByImages,
    InOrder,
    RepeatedAugmentation,
    Sampler,
    Shuffled,
    Weighted,
)
from ppcls.errors import UserError


def build_sampler(spec: specs.Sampler, index: Index, world: int) -> Sampler:
    """Builds the sampler of a dataset.

    Args:
        spec: Its config.
        index: The dataset.
        world: Number of processes; nothing depends on it but the size of the global batch.

    Raises:
        UserError: The weights can't be read or don't fit, or there are too few identities.
    """
    match spec:
        case specs.DistributedBatchSampler():
            return Shuffled(len(index)) if spec.shuffle else InOrder(len(index))
        case specs.MultiScaleSampler():
            return Shuffled(len(index))
        case specs.ClassBalancedSampler():
            return ClassBalanced(index.labels, spec.samples or len(index))
        case specs.WeightedSampler():
            return _weighted(spec, index)
        case specs.RepeatedAugSampler():
            return RepeatedAugmentation(len(index), spec.num_repeats, spec.global_batch(world))
        case specs.PKSampler():
            return _identities(spec, index, world)
    raise TypeError(f"no sampler for a {spec.kind}")


def _weighted(spec: specs.WeightedSampler, index: Index) -> Weighted:
    samples = spec.samples or len(index)
    if spec.weights_file is not None:
        return Weighted(read_weights(Path(spec.weights_file), index), samples)
    weights = np.array(spec.class_weights, np.float64)[index.labels]
    if not weights.any():
        raise UserError(
            f"{index.source}: all samples are of classes whose weight is 0; "
            "raise DataLoader.Train.sampler.class_weights of a class that is there"
        )
    return Weighted(weights, samples)


def _identities(spec: specs.PKSampler, index: Index, world: int) -> IdentitiesByImages:
    needed = spec.global_batch(world) // spec.sample_per_id
    found = len(np.unique(index.labels))
    if found < needed:
        name, size = spec.size_given
        ranks = f" x {world} processes" if name == "batch_size" else ""
        raise UserError(
            f"{index.source}: {found} identities, but PKSampler needs {needed} a step ({name} "
            f"{size} / sample_per_id {spec.sample_per_id}{ranks}), each once; "
            f"lower DataLoader.Train.sampler.{name} or raise its sample_per_id"
        )
    return IdentitiesByImages(index.labels, spec.sample_per_id, needed)
