"""Translates older key names of PaddleClas's files, and warns about keys without effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ppcls.arch.distillation_model import AnyArch, NamedModel
from ppcls.config.base.component import find_sections
from ppcls.config.base.errors import place
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.section import Section, Spec
from ppcls.data.transforms.base import check_chain
from ppcls.recipe.pixel_values import pixel_warnings
from ppcls.registry import ARCHITECTURES

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.section import Split
    from ppcls.loss.base import Loss
    from ppcls.optimizer.base import Optimizer
    from ppcls.postprocess.section import Infer
    from ppcls.recipe.schema import Config
    from ppcls.recipe.settings import Global


_SHIFTED = ("RandCropImageV2", "Cutout", "RandomRotation")  # transforms with other positions in PaddleClas


def config_warnings(config: Config) -> list[str]:
    """Returns a warning for each key in ``config`` that has no effect or whose effect is limited."""
    lines = [*_ignored_keys(config, ""), *_section_warnings(config, config.facts)]
    lines += _overridden_keys(config.Global, config.Arch, config.Infer)
    lines += pixel_warnings(config.chains)
    facts = config.facts
    if config.LinearHead is not None:
        lines += _unused_by_head(facts)
    if facts.from_paddleclas:
        lines += _paddleclas_differences(
            config.Arch, config.Loss.Train, config.DataLoader.Train, facts.mixed_by
        )
        lines += _optimizer_differences(config.Optimizer)
    return [f"warning: {line}" for line in lines]


def _paddleclas_differences(
    arch: AnyArch, losses: Sequence[Loss], train: Split | None, mixed_by: str
) -> Iterator[str]:
    """Yields a line for each difference from PaddleClas that a file of PaddleClas uses.

    `ppcls.data.sampling.epoch_ends` describes differences that depend on the number of images.

    Args:
        arch: The section ``Arch``.
        losses: Losses of ``Loss.Train``.
        train: The section ``DataLoader.Train``; None without training data.
        mixed_by: Batch transform that mixes the training images; "" for none.
    """
    if arch.frozen:
        yield (
            f"Arch.models: PaddleClas runs frozen models ({', '.join(arch.frozen)}) in training mode, with "
            "the BatchNorm statistics of each batch; ppcls runs them in evaluation mode"
        )
    if mixed_by and any(loss.differs_for_mixed_labels for loss in losses):
        yield (
            f"Loss.Train: PaddleClas applies softmax to the labels that {mixed_by} mixes, if CELoss has no "
            "epsilon, which makes them almost uniform; ppcls uses the mixed labels"
        )
    yield from _loss_differences(losses)
    if train is None:
        return
    names = {transform.kind for transform in train.dataset.transform_ops}
    for name in _SHIFTED:
        if name in names:
            yield (
                f"DataLoader.Train.dataset.transform_ops.{name}: positions can differ from PaddleClas's by "
                "half a pixel"
            )


def _loss_differences(losses: Sequence[Loss]) -> Iterator[str]:
    """Yields a line for each difference from the loss that PaddleClas computes from the same labels."""
    if len(losses) == 1 and losses[0].weight != 1:
        yield (
            f"Loss.Train[0].{losses[0].kind}.weight: PaddleClas ignores the weight of a single loss; ppcls "
            f"multiplies the loss by {losses[0].weight:g}"
        )
    if len(losses) == 1 and losses[0].terms > 1:
        yield (
            f"Loss.Train[0].{losses[0].kind}: PaddleClas uses only the first of its {losses[0].terms} terms, "
            f"because Loss.Train has no other loss; ppcls uses their sum"
        )
    for position, loss in enumerate(losses):
        if loss.sums_over_images:
            yield (
                f"Loss.Train[{position}].{loss.kind}.reduction: PaddleClas sums over the images of a batch, "
                "ppcls averages; unless the optimizer adapts to the size of gradients, as AdamW does, "
                "multiply the learning rate by the batch size"
            )


def _optimizer_differences(optimizer: Optimizer) -> Iterator[str]:
    """Yields a line if PaddleClas applies weight decay to other parameters."""
    flat = optimizer.one_dim_param_no_weight_decay and not optimizer.no_weight_decay_name
    if flat and optimizer.kind == "Momentum" and optimizer.decay:
        yield (
            "Optimizer.one_dim_param_no_weight_decay: PaddleClas's Momentum ignores this key if "
            "no_weight_decay_name is not set; ppcls applies no weight decay to one-dimensional parameters"
        )


def _unused_by_head(facts: RunFacts) -> Iterator[str]:
    """Yields settings of Loss.Train and DataLoader.Train that a linear head does not use."""
    if facts.mixed_by:
        yield (
            f"DataLoader.Train.dataset.batch_transform_ops: {facts.mixed_by} has no effect, because "
            "LinearHead mixes no images"
        )
    unused = [f"Loss.Train: {text}" for text in facts.weightings]
    if facts.rebalanced_by:
        unused.append(f"DataLoader.Train.sampler.name: {facts.rebalanced_by}")
    for text in unused:
        yield (
            f"{text} has no effect, because LinearHead gives each training image the same weight; train "
            "without LinearHead (--head) for other weights of the classes"
        )


def _section_warnings(sections: Section, facts: RunFacts) -> Iterator[str]:
    """Yields the warnings of all subsections of a section, with the path of each key."""
    for loc, part, section in find_sections(sections):
        for line in section.warnings(facts, part):
            yield f"{place(None, loc)}.{line}"


def _overridden_keys(settings: Global, arch: AnyArch, infer: Infer | None) -> Iterator[str]:
    """Yields keys that another key overrides or limits."""
    if settings.to_static is True and not arch.single_network:
        yield f"Global.to_static has no effect; {arch.name} is never compiled"
    if infer is not None:
        state = check_chain(infer.transforms)
        shape = [state.channels, *(state.size or ())]
        stated = list(settings.image_shape)
        if shape != stated:
            yield (
                f"Global.image_shape ({stated}) has no effect on prediction and export; Infer.transforms "
                f"produces images of {shape} and takes precedence"
            )
    if settings.re_ranking and settings.eval_mode != "retrieval":
        yield "Global.re_ranking has no effect without Global.eval_mode: retrieval"


def _ignored_keys(value: Any, path: str) -> Iterator[str]:
    """Yields keys below ``path`` that neither PaddleClas nor ppcls uses."""
    if isinstance(value, NamedModel):
        yield from _ignored_keys(value.arch, f"{path}.{value.name}")
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            name = f".{item.kind}" if isinstance(item, Spec) else ""
            yield from _ignored_keys(item, f"{path}[{position}]{name}")
    elif isinstance(value, Section):
        for key in value.ignored_keys:
            yield f"{path}.{key}".lstrip(".") + f" has no effect; {value.ignored[key]}"
        for key, child in value:
            yield from _ignored_keys(child, f"{path}.{key}".lstrip("."))


_LEVELS = {True: "O2", False: "O1"}


def translate_old_keys(tree: dict[str, Any]) -> None:
    """Replaces older names of sections and keys with the current ones, in place, before validation.

    - ``AMP.use_pure_fp16`` and ``AMP.amp_level`` become ``AMP.level``.
    - The section ``AMP_BF16`` becomes ``AMP`` with ``dtype: bfloat16``.
    - ``PPLCNet`` with a ``scale`` becomes the architecture of this scale.
    - ``Global.class_num`` becomes ``Arch.class_num``.
    - The name of the architecture is appended to ``Global.output_dir: ./output/``, as in PaddleClas.
    - ``Global.save_inference_dir: ./inference`` is removed, so the default of ppcls applies: ``inference`` in
      the output folder.

    Keys with invalid values are not changed, and validation reports them. The same applies to older keys if
    the current key exists too.

    Args:
        tree: The YAML, which may be invalid.
    """
    if "AMP" not in tree and isinstance(tree.get("AMP_BF16"), dict):
        tree["AMP"] = {"dtype": "bfloat16", **tree.pop("AMP_BF16")}
    if isinstance(tree.get("AMP"), dict):
        _translate_level(tree["AMP"])
    if isinstance(tree.get("Arch"), dict):
        _translate_scale(tree["Arch"])
        if isinstance(tree.get("Global"), dict):
            _translate_class_num(tree["Global"], tree["Arch"])
            _translate_output(tree["Global"], tree["Arch"])


def _translate_level(amp: dict[str, Any]) -> None:
    if "level" in amp:
        return
    pure = [key for key in ("use_pure_fp16", "use_pure_bf16") if isinstance(amp.get(key), bool)]
    if amp.get("amp_level") in _LEVELS.values():
        amp["level"] = amp.pop("amp_level")  # takes precedence; in files with both, they agree
    elif pure:
        amp["level"] = _LEVELS[amp[pure[0]]]
    if "level" in amp and len(pure) == 1:
        del amp[pure[0]]


def _translate_scale(arch: dict[str, Any]) -> None:
    name = f"PPLCNet_x{arch.get('scale')}".replace(".", "_")
    default_act = arch.get("act", "hardswish") == "hardswish"
    if arch.get("name") == "PPLCNet" and name in ARCHITECTURES and default_act:
        arch["name"] = name
        del arch["scale"]
        arch.pop("act", None)


def _translate_output(settings: dict[str, Any], arch: dict[str, Any]) -> None:
    name = arch.get("name")
    default = settings.get("output_dir", "./output") in ("./output", "./output/")
    if default and isinstance(name, str) and name in ARCHITECTURES:
        settings["output_dir"] = f"./output/{name}"
    if settings.get("save_inference_dir") in ("./inference", "./inference/"):
        del settings["save_inference_dir"]  # the default is in output_dir, which no other model uses


def _translate_class_num(settings: dict[str, Any], arch: dict[str, Any]) -> None:
    in_head = arch.get("name") == "RecModel"
    if isinstance(settings.get("class_num"), int) and not in_head and "class_num" not in arch:
        arch["class_num"] = settings.pop("class_num")
