"""Implements policies of automatic augmentation with ``nvidia.dali.auto_aug``.

The specs make the random decisions. DALI only executes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.auto_aug import augmentations, auto_augment, rand_augment, trivial_augment
from nvidia.dali.auto_aug.core import augmentation, signed_bin

from ppcls.data.transforms.dali_ops.graph import LoweringContext, Node, lower, numpy_on_cpu
from ppcls.data.transforms.dali_ops.internals import conditionals, without_conversion
from ppcls.data.transforms.specs.mixed_policies import AugMix, RandAugmentV4
from ppcls.data.transforms.specs.policies import (
    AutoAugment,
    Policy,
    RandAugment,
    RandAugmentV3,
    TimmAutoAugment,
    TrivialAugment,
)

DaliSuite = Mapping[str, Any]  # augmentations of nvidia.dali.auto_aug by name


@lower.register
@numpy_on_cpu
def lower_policy(spec: Policy, node: Any, context: LoweringContext) -> Node:
    suite = {name: without_conversion(entry) for name, entry in dali_suite(spec).items()}
    operations, bins, negated, *others = context.decisions
    options = {"shape": others[0]} if spec.translates and spec.translation[1] else {}

    def run_stage(stage: int, node: Node, select_operation: Callable[..., Node]) -> Node:
        squares = {"square": others[-1][stage]} if "cutout" in suite else {}
        return select_operation(
            [suite[name] for name in spec.stages[stage]],
            operations[stage],
            data=node,
            magnitude_bin=signed_bin(bins[stage], negated[stage]),
            num_magnitude_bins=spec.bins,
            fill_value=spec.fill_value,
            **options,
            **squares,
        )

    chains = [node]
    with conditionals(node, *context.decisions) as select_operation:
        if isinstance(spec, AugMix):
            chains = [node] * spec.mixture_width
            for chain, step in itertools.product(range(spec.mixture_width), range(spec.depth)):
                chains[chain] = run_stage(chain * spec.depth + step, chains[chain], select_operation)
        else:
            for stage in range(len(spec.stages)):
                chains[0] = run_stage(stage, chains[0], select_operation)
    return _mix(node, chains, others[-1]) if isinstance(spec, AugMix) else chains[0]


def _mix(node: Node, chains: list[Node], weights: Node) -> Node:
    """Returns the weighted sum of the chains and of the image, whose weight is 1 minus the other weights."""
    rest = 1.0 - fn.reductions.sum(weights)
    mixed = fn.brightness(node, brightness=rest, dtype=types.FLOAT)
    for number, chain in enumerate(chains):
        mixed = mixed + fn.brightness(chain, brightness=weights[number], dtype=types.FLOAT)
    return fn.cast(mixed, dtype=types.UINT8)


@singledispatch
def dali_suite(spec: Policy) -> DaliSuite:
    """Returns DALI's augmentations for a policy, by the names in `Policy.stages`."""
    raise NotImplementedError(f"the DALI backend does not implement {spec.kind}")


@dali_suite.register
def auto_augment_suite(spec: AutoAugment) -> DaliSuite:
    if spec.source == "paddleclas":
        return _paddleclas_suite(spec)
    make = getattr(auto_augment, f"get_{spec.policy}_policy")
    policy = make(**_translation(spec)) if spec.translates else make()
    return {**policy.augmentations, "identity": augmentations.identity}


@dali_suite.register
def rand_augment_suite(spec: RandAugment) -> DaliSuite:
    if spec.source == "paddleclas":
        return _paddleclas_suite(spec)
    kind = "" if spec.monotonic_mag else "non_monotonic_"
    make = getattr(rand_augment, f"get_rand_augment_{kind}suite")
    return {entry.name: entry for entry in make(**_translation(spec))}


@dali_suite.register
def trivial_augment_suite(spec: TrivialAugment) -> DaliSuite:
    return {
        entry.name: entry for entry in trivial_augment.get_trivial_augment_wide_suite(**_translation(spec))
    }


@dali_suite.register
def timm_suite(spec: TimmAutoAugment) -> DaliSuite:
    return {
        **{entry.name: entry for entry in rand_augment.get_rand_augment_suite(**_translation(spec))},
        **_point_operations(spec, "posterize"),
        "solarize_add": augmentations.solarize_add,
        "invert": augmentations.invert,
    }


@dali_suite.register
def rand_augment_v3_suite(spec: RandAugmentV3) -> DaliSuite:
    suite = rand_augment.get_rand_augment_suite(**_translation(spec))
    return {
        **{entry.name: entry for entry in suite},
        **_point_operations(spec, "solarize"),
        "invert": augmentations.invert,
    }


@dali_suite.register
def rand_augment_v4_suite(spec: RandAugmentV4) -> DaliSuite:
    return {
        **{entry.name: entry for entry in rand_augment.get_rand_augment_suite(**_translation(spec))},
        "invert": augmentations.invert,
        "cutout": _cutout,
    }


@dali_suite.register
def mixed_suite(spec: AugMix) -> DaliSuite:
    suite = rand_augment.get_rand_augment_suite(**_translation(spec))
    return {
        **{entry.name: entry for entry in suite},
        **_point_operations(spec, "posterize"),
    }


def _paddleclas_suite(spec: Policy) -> DaliSuite:
    """Returns DALI's augmentations with the ranges of PaddleClas."""
    suite = rand_augment.get_rand_augment_suite(**_translation(spec))
    names = spec.suite
    rotation = names["rotate"]
    return {
        **{entry.name: entry for entry in suite if entry.name in names},
        **_point_operations(spec, "posterize", "solarize"),
        "rotate": augmentations.rotate.augmentation((rotation.low, rotation.high), randomly_negate=False),
        "invert": augmentations.invert,
    }


def _point_operations(spec: Policy, *names: str) -> DaliSuite:
    """Returns DALI's augmentations with these names, with the ranges of magnitudes of ``spec``."""
    return {
        name: getattr(augmentations, name).augmentation((spec.suite[name].low, spec.suite[name].high))
        for name in names
    }


@augmentation(mag_range=(0, 20))  # type: ignore[untyped-decorator]
def _cutout(data: Node, _: Node, square: Node, fill_value: int) -> Node:
    """Fills the rectangle ``square``, [4]: top, left, height and width.

    The magnitude is not used here, because the rectangle was computed from it.
    """
    return fn.erase(data, anchor=square[:2], shape=square[2:], axis_names="HW", fill_value=[fill_value])


def _translation(spec: Policy) -> dict[str, Any]:
    furthest, relative = spec.translation
    return {"use_shape": relative, "max_translate_rel" if relative else "max_translate_abs": furthest}
