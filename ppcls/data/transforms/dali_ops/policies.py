"""Automatic augmentation by ``nvidia.dali.auto_aug``, which is told what was decided."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

from nvidia.dali import Pipeline
from nvidia.dali import pipeline as dali_pipeline
from nvidia.dali._utils import dali_trace
from nvidia.dali.auto_aug import augmentations, auto_augment, rand_augment, trivial_augment
from nvidia.dali.auto_aug.core import select, signed_bin

from ppcls.data.transforms.dali_ops.graph import Node, Place, lower, numpy_on_cpu
from ppcls.data.transforms.specs.policies import AutoAugment, Policy, RandAugment, TrivialAugment
from ppcls.data.transforms.specs.timm_auto_augment import TimmAutoAugment

Operator = Any  # an Augmentation of nvidia.dali.auto_aug


@lower.register
@numpy_on_cpu
def _(spec: Policy, node: Any, place: Place) -> Node:
    suite = dali_suite(spec)
    operations, bins, negated, *sides = place.decided
    options = {"shape": sides[0]} if sides else {}
    with _conditionals(node, *place.decided) as select_each:
        for stage, names in enumerate(spec.stages):
            node = select_each(
                [suite[name] for name in names],
                operations[stage],
                data=node,
                magnitude_bin=signed_bin(bins[stage], negated[stage]),
                num_magnitude_bins=spec.bins,
                fill_value=spec.fill_value,
                **options,
            )
    return node


@singledispatch
def dali_suite(spec: Policy) -> Mapping[str, Operator]:
    """Returns DALI's operators by the names that `Policy.stages` has."""
    raise NotImplementedError(f"nvidia.dali.auto_aug has no {spec.kind}")


@dali_suite.register
def _(spec: AutoAugment) -> Mapping[str, Operator]:
    make = getattr(auto_augment, f"get_{spec.policy}_policy")
    policy = make(**_translation(spec)) if spec.translates else make()
    return {**policy.augmentations, "identity": augmentations.identity}


@dali_suite.register
def _(spec: RandAugment) -> Mapping[str, Operator]:
    kind = "" if spec.monotonic_mag else "non_monotonic_"
    make = getattr(rand_augment, f"get_rand_augment_{kind}suite")
    return {each.name: each for each in make(**_translation(spec))}


@dali_suite.register
def _(spec: TrivialAugment) -> Mapping[str, Operator]:
    return {each.name: each for each in trivial_augment.get_trivial_augment_wide_suite(**_translation(spec))}


@dali_suite.register
def _(spec: TimmAutoAugment) -> Mapping[str, Operator]:
    own = spec.suite["posterize"]
    usual = {each.name: each for each in rand_augment.get_rand_augment_suite(**_translation(spec))}
    return {
        **usual,
        "posterize": augmentations.posterize.augmentation((own.low, own.high)),
        "solarize_add": augmentations.solarize_add,
        "invert": augmentations.invert,
    }


def _translation(spec: Policy) -> dict[str, Any]:
    furthest, relative = spec.translation
    return {"use_shape": relative, "max_translate_rel" if relative else "max_translate_abs": furthest}


@contextmanager
def _conditionals(*nodes: Node) -> Iterator[Callable[..., Node]]:
    """Turns on what ``pipeline_def(enable_conditionals=True)`` does, for a part of the present graph.

    The public decorator rewrites a whole pipeline's Python, and our code with it. These are the functions
    that it calls, private to DALI 2.4, and used nowhere else.

    Args:
        *nodes: What the part takes from the rest of the graph.

    Yields:
        `nvidia.dali.auto_aug.core.select`, for use within the block.
    """
    pipeline = Pipeline.current()
    dali_pipeline._preprocess_pipe_object(pipeline, True, nodes, {})
    traced = dali_trace.is_tracing_enabled()
    dali_trace.set_tracing(enabled=False)  # it fails where only a part of the graph is rewritten
    try:
        with warnings.catch_warnings(record=True) as seen:  # DALI's own filter would show them all
            yield dali_pipeline._preprocess_pipe_func(select, True)
    finally:
        dali_trace.set_tracing(enabled=traced)
        pipeline._conditionals_enabled = False
    for each in seen:
        if not issubclass(each.category, DeprecationWarning):  # auto_aug itself uses old names of operators
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
