"""Automatic augmentation with ``nvidia.dali.auto_aug``, which carries out the decisions of the specs."""

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

from ppcls.data.transforms.dali_ops.graph import LoweringContext, Node, lower, numpy_on_cpu
from ppcls.data.transforms.specs.policies import (
    AutoAugment,
    Policy,
    RandAugment,
    TimmAutoAugment,
    TrivialAugment,
)

DaliSuite = Mapping[str, Any]  # augmentations of nvidia.dali.auto_aug by name


@lower.register
@numpy_on_cpu
def lower_policy(spec: Policy, node: Any, context: LoweringContext) -> Node:
    suite = dali_suite(spec)
    operations, bins, negated, *sides = context.decisions
    options = {"shape": sides[0]} if sides else {}
    with _conditionals(node, *context.decisions) as select_operation:
        for stage, names in enumerate(spec.stages):
            node = select_operation(
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
def dali_suite(spec: Policy) -> DaliSuite:
    """Returns DALI's augmentations by the names in `Policy.stages`."""
    raise NotImplementedError(f"nvidia.dali.auto_aug has no {spec.kind}")


@dali_suite.register
def auto_augment_suite(spec: AutoAugment) -> DaliSuite:
    make = getattr(auto_augment, f"get_{spec.policy}_policy")
    policy = make(**_translation(spec)) if spec.translates else make()
    return {**policy.augmentations, "identity": augmentations.identity}


@dali_suite.register
def rand_augment_suite(spec: RandAugment) -> DaliSuite:
    kind = "" if spec.monotonic_mag else "non_monotonic_"
    make = getattr(rand_augment, f"get_rand_augment_{kind}suite")
    return {augmentation.name: augmentation for augmentation in make(**_translation(spec))}


@dali_suite.register
def trivial_augment_suite(spec: TrivialAugment) -> DaliSuite:
    return {
        augmentation.name: augmentation
        for augmentation in trivial_augment.get_trivial_augment_wide_suite(**_translation(spec))
    }


@dali_suite.register
def timm_suite(spec: TimmAutoAugment) -> DaliSuite:
    posterize = spec.suite["posterize"]
    return {
        **{
            augmentation.name: augmentation
            for augmentation in rand_augment.get_rand_augment_suite(**_translation(spec))
        },
        "posterize": augmentations.posterize.augmentation((posterize.low, posterize.high)),
        "solarize_add": augmentations.solarize_add,
        "invert": augmentations.invert,
    }


def _translation(spec: Policy) -> dict[str, Any]:
    furthest, relative = spec.translation
    return {"use_shape": relative, "max_translate_rel" if relative else "max_translate_abs": furthest}


@contextmanager
def _conditionals(*nodes: Node) -> Iterator[Callable[..., Node]]:
    """Enables ``pipeline_def(enable_conditionals=True)`` for a part of the current graph.

    The public decorator rewrites a whole pipeline's Python, including our code. These are the functions
    that it calls. They are private to DALI 2.4, and used nowhere else.

    Args:
        *nodes: Inputs of the part from the rest of the graph.

    Yields:
        `nvidia.dali.auto_aug.core.select`, for use within the block.
    """
    pipeline = Pipeline.current()
    dali_pipeline._preprocess_pipe_object(pipeline, True, nodes, {})
    tracing = dali_trace.is_tracing_enabled()
    dali_trace.set_tracing(enabled=False)  # it fails if only a part of the graph is rewritten
    try:
        with warnings.catch_warnings(record=True) as caught:  # DALI's own filter would show them all
            yield dali_pipeline._preprocess_pipe_func(select, True)
    finally:
        dali_trace.set_tracing(enabled=tracing)
        pipeline._conditionals_enabled = False
    for warning in caught:
        if not issubclass(warning.category, DeprecationWarning):  # auto_aug itself uses deprecated operators
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
