"""Translates keys of PaddleClas's files to keys of ppcls, in place, before validation.

Only settings that ppcls supports are translated. Validation reports all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from ppcls.config.base.tree import STUDENT, Tree, mapping_at, model_sections, node_at
from ppcls.errors import counted

# Sections that occur only in files that are not configs of a training run, with a description of the file.
_OTHER_FILES = {
    "base_config_file": "this file configures a search, not a training run; use ppcls tune for a search",
    "ARCHITECTURE": "this file is for PaddleClas's former static engine, which PaddleClas no longer supports",
    "IndexProcess": "this file is for PaddleClas's retrieval system, not for a training run",
    "PreProcess": "this file is for PaddleClas's deploy/python/predict_cls.py, not for a training run; "
    "`ppcls infer --model FOLDER IMAGES` predicts with an exported model, and needs no config",
}

# classes of PA100K
_PERSON_ATTRIBUTES = 26
_GLASSES = 1
_HOLD = 18
# classes of VeRi's attributes
_COLORS = 10
_TYPES = 9
_TABLE_KEYS = ("source", "number", "color", "clarity", "obstruction", "angle")
_DECODING_DATASETS = ("Market1501", "DukeMTMC", "CompCars")  # PaddleClas decodes them without DecodeImage
_CIFAR_SIDE = 32  # pixels
# Schedules whose epochs PaddleClas counts from the end of the warm-up.
_BOUNDARY_SCHEDULES = ("Piecewise", "MultiStepDecay", "MultiStep")
INFERENCE_KEY = "Global.save_inference_dir"
_LCNET_STAGES = ("conv1.*", *(f"blocks{stage}.*" for stage in range(2, 7)))
# PaddleClas's sampler, with the sampler of ppcls and a map of its keys.
_SAMPLERS = {
    "RASampler": ("RepeatedAugSampler", {}),
    "DistributedRandomIdentitySampler": ("PKSampler", {"num_instances": "sample_per_id"}),
}


def describe_other_file(tree: Tree) -> str:
    """Returns the reason why a file is not a config of a training run; empty if it may be one."""
    return next((f"{key}: {text}" for key, text in _OTHER_FILES.items() if key in tree), "")


def is_paddleclas(tree: Tree) -> bool:
    """Returns whether a config is a file of PaddleClas, perhaps edited. Must be called before translations.

    The language is the same, but some values have another meaning, such as the epochs of Piecewise. Such a
    value can be translated only if the file is known to be PaddleClas's. All its files write this value of
    ``Global.save_inference_dir``. In ppcls this is not the default, and `dump_config` does not write it.

    Args:
        tree: The YAML, which may be invalid.
    """
    return node_at(tree, INFERENCE_KEY) in ("./inference", "./inference/")


def translate_paddleclas(tree: Tree, from_paddleclas: bool) -> None:
    """Replaces keys of PaddleClas's files with keys of ppcls, in place.

    Args:
        tree: The YAML, which may be invalid.
        from_paddleclas: Whether values that have another meaning in PaddleClas are translated, too.
    """
    settings = mapping_at(tree, "Global")
    arch = tree.get("Arch")
    for model in model_sections(tree):
        _translate_model(model)
    if isinstance(arch, dict):
        if "use_ml_decoder" in arch:
            head = tree.pop("MLDecoder", {})
            if arch.pop("use_ml_decoder"):
                arch["ml_decoder"] = head
        if isinstance(tree.get("Optimizer"), dict):
            _translate_stage_rates(_trained_model(arch), tree["Optimizer"])
        if isinstance(arch.get("use_sync_bn"), bool):
            tree["Global"] = settings = {"sync_bn": arch.pop("use_sync_bn"), **settings}
    if "class_num" in mapping_at(tree, "Arch.Backbone") and "BackboneStopLayer" not in tree["Arch"]:
        tree["Arch"]["BackboneStopLayer"] = {"name": "none"}  # PaddleClas keeps the last layer
    for node in _mappings(tree.get("Loss")):
        if "_lambda" in node:
            node["quantization"] = node.pop("_lambda")
    _translate_settings(settings)
    for node in _mappings(tree.get("DataLoader")):
        if node.get("name") == "Cifar10":
            _translate_cifar(node)
    _translate_semi_supervised(tree, settings)
    _translate_optimizers(tree)
    _translate_schedule(mapping_at(tree, "Optimizer.lr"), from_paddleclas)
    for node in _mappings(tree.get("DataLoader")):
        _translate_sampler(node.get("sampler"))
    for node in _mappings(tree.get("Metric")):
        if "GoogLeNetTopkAcc" in node:
            node["TopkAcc"] = node.pop("GoogLeNetTopkAcc")
        if isinstance(topk := node.get("topk"), list) and all(isinstance(k, int) for k in topk):
            node["topk"] = list(dict.fromkeys(topk))  # PaddleClas reports a repeated value once
    for node in _mappings(tree.get("DataLoader")):
        chain = node.get("transform_ops") if node.get("name") in _DECODING_DATASETS else None
        if isinstance(chain, list) and chain and "DecodeImage" not in chain[0]:
            chain.insert(0, {"DecodeImage": {}})
    if from_paddleclas:
        _translate_policies(tree.get("DataLoader"))
    for chain in _chains(tree):
        for position, transform in enumerate(chain):
            if isinstance(transform, dict) and [*transform] == ["Pad_paddle_vision"]:
                chain[position] = {"Pad": transform["Pad_paddle_vision"]}
        _drop_null_policies(chain)
        _translate_padding(chain)
        _translate_tensors(chain)
    post_process = mapping_at(tree, "Infer.PostProcess")
    _translate_attributes(post_process)
    if post_process.get("delimiter") == " ":  # the delimiter in the file of class names
        del post_process["delimiter"]


def limit_topk(tree: Tree, typed: Collection[str]) -> Iterator[str]:
    """Removes values of ``topk`` that exceed the number of classes, as PaddleClas does, in place.

    PaddleClas's files have top-5 metrics, also if a user sets a smaller ``Arch.class_num``.

    Args:
        tree: The YAML, which may be invalid.
        typed: Paths of keys that the user set in the command, which are not changed.

    Yields:
        A warning for each changed key.
    """
    classes = mapping_at(tree, "Arch").get("class_num")
    if not isinstance(classes, int) or classes < 1:
        return
    for split in ("Train", "Eval"):
        metrics = mapping_at(tree, "Metric").get(split)
        for position, entry in enumerate(metrics if isinstance(metrics, list) else []):
            for name, node in entry.items() if isinstance(entry, dict) else ():
                topk = node.get("topk") if isinstance(node, dict) else None
                is_typed = f"Metric.{split}.{position}.{name}.topk" in typed
                if is_typed or not isinstance(topk, list) or not all(isinstance(k, int) for k in topk):
                    continue
                kept = [k for k in topk if k <= classes]
                if kept and kept != topk:
                    node["topk"] = kept
                    yield (
                        f"warning: Metric.{split}[{position}].{name}.topk: {topk} is read as {kept}, because "
                        f"the model has {counted(classes, 'class')}"
                    )
    post_process = mapping_at(tree, "Infer.PostProcess")
    topk = post_process.get("topk")
    if isinstance(topk, int) and topk > classes and "Infer.PostProcess.topk" not in typed:
        post_process["topk"] = classes
        yield (
            f"warning: Infer.PostProcess.topk: {topk} is read as {classes}, because the model has "
            f"{counted(classes, 'class')}"
        )


def _translate_settings(settings: Tree) -> None:
    if settings.get("save_interval") == -1:  # PaddleClas then saves only the latest and the best checkpoint
        settings["save_interval"] = settings.get("epochs", 1)


def _translate_cifar(dataset: Tree) -> None:
    """Adds DecodeImage and ResizeImage, which Cifar10 of PaddleClas does not need."""
    for key in [key for key, value in dataset.items() if value in (None, "None")]:
        del dataset[key]
    for key, chain in dataset.items():
        is_chain = key.startswith("transform_ops") and isinstance(chain, list)
        if is_chain and not (chain and "DecodeImage" in chain[0]):
            chain[:0] = [{"DecodeImage": {}}, {"ResizeImage": {"size": _CIFAR_SIDE}}]


def _translate_semi_supervised(tree: Tree, settings: Tree) -> None:
    """Translates the settings of FixMatch."""
    if settings.get("train_mode") == "fixmatch":
        del settings["train_mode"]
    if tree.get("UnLabelLoss") == {"Train": [{"CELoss": {"weight": 1.0, "reduction": "none"}}]}:
        del tree["UnLabelLoss"]
    unlabelled = mapping_at(tree, "DataLoader.UnLabelTrain")
    dataset = mapping_at(unlabelled, "dataset")
    for old, new, target in (
        ("transform_ops_weak", "transform_ops", dataset),
        ("transform_ops_strong", "transform_ops_strong", unlabelled),
    ):
        if old in dataset:
            target[new] = dataset.pop(old)


def _translate_optimizers(tree: Tree) -> None:
    """Replaces a list of optimizers with the optimizer of the model.

    A second optimizer must be SGD with a constant learning rate for CenterLoss. This learning rate becomes a
    key of the loss.
    """
    entries = tree.get("Optimizer")
    losses = mapping_at(tree, "Loss").get("Train")
    if not isinstance(entries, list) or not isinstance(losses, list):
        return
    named = [(name, keys) for entry in entries if isinstance(entry, dict) for name, keys in entry.items()]
    scoped = {keys.get("scope"): (name, keys) for name, keys in named if isinstance(keys, dict)}
    name, keys = scoped.pop("CenterLoss", ("SGD", {}))
    rate = mapping_at(keys, "lr")
    centers = [center for loss in losses if (center := mapping_at(loss, "CenterLoss"))]
    plain = name == "SGD" and keys.keys() <= {"scope", "lr"} and rate.get("name", "ConstLR") == "ConstLR"
    if len(scoped) != 1 or not plain:
        return
    for center in centers if "learning_rate" in rate else ():
        center["center_rate"] = rate["learning_rate"]
    ((name, keys),) = scoped.values()
    tree["Optimizer"] = {"name": name, **{key: value for key, value in keys.items() if key != "scope"}}


def _translate_schedule(lr: Tree, from_paddleclas: bool) -> None:
    """Translates what PaddleClas's schedules count differently."""
    if lr.get("last_epoch") == -1:  # the default
        del lr["last_epoch"]
    name = lr.get("name")
    if name == "Piecewise":
        epochs = lr.get("decay_epochs")
        values = lr.get("values")
        if isinstance(epochs, list) and isinstance(values, list) and len(epochs) == len(values) > 0:
            lr["decay_epochs"] = epochs[:-1]  # no learning rate follows the last item
    if from_paddleclas and name in _BOUNDARY_SCHEDULES and lr.get("warmup_epoch"):
        lr.setdefault("count_from", "end_of_warmup")


def _translate_sampler(sampler: Any) -> None:
    name = sampler.get("name") if isinstance(sampler, dict) else None
    if not isinstance(name, str) or name not in _SAMPLERS:
        return
    sampler["name"], keys = _SAMPLERS[name]
    for old, new in keys.items():
        if old in sampler:
            sampler[new] = sampler.pop(old)


def _mappings(node: Any) -> Iterator[Tree]:
    """Yields all mappings in a part of the YAML."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _mappings(child)


def _translate_model(model: Tree) -> None:
    if model.get("name") == "WideResNet" and "class_num" not in model and "num_classes" in model:
        model["class_num"] = model.pop("num_classes")
    if model.get("name") == "ResNet50_last_stage_stride1":
        model |= {"name": "ResNet50", "last_stage_stride": 1}
        if "stem_act" in model and model["stem_act"] is None:
            model["stem_act"] = "none"
    if "return_patterns" in model:
        model.pop("return_stages", None)  # PaddleClas ignores it then
    rates = model.get("lr_mult_list")
    if isinstance(rates, list) and all(rate == 1 for rate in rates):
        del model["lr_mult_list"]


def _trained_model(arch: Tree) -> Tree:
    """Returns the section of the model that is trained. For a DistillationModel, this is the student."""
    models = arch.get("models")
    name = str(arch.get("infer_model_name", STUDENT))
    named = [mapping_at(item, name) for item in models] if isinstance(models, list) else []
    return next(filter(None, named), arch)


def _translate_stage_rates(arch: Tree, optimizer: Tree) -> None:
    """Translates learning rate factors of PP-LCNet's stages to ``by_name``, or 0 to ``freeze``."""
    rates = arch.get("lr_mult_list")
    is_valid = isinstance(rates, list) and len(rates) == len(_LCNET_STAGES)
    if (
        not is_valid
        or not str(arch.get("name")).startswith("PPLCNet_")
        or {"by_name", "freeze"} & set(optimizer)
    ):
        return
    rates = dict(zip(_LCNET_STAGES, arch.pop("lr_mult_list"), strict=True))
    if frozen := [pattern for pattern, rate in rates.items() if rate == 0]:
        optimizer["freeze"] = frozen
    if rules := [
        {"pattern": pattern, "lr_mult": rate} for pattern, rate in rates.items() if rate not in (0, 1)
    ]:
        optimizer["by_name"] = rules


def _chains(tree: Tree) -> Iterator[list[Any]]:
    """Yields the chains of transforms of all data sets and of prediction."""

    def visit(node: Any) -> Iterator[list[Any]]:
        for key, value in node.items() if isinstance(node, dict) else ():
            if key in ("transform_ops", "transform_ops_strong", "transforms") and isinstance(value, list):
                yield value
            else:
                yield from visit(value)

    yield from visit({key: tree.get(key) for key in ("DataLoader", "Infer")})


def _translate_policies(data: Any) -> None:
    """Selects PaddleClas's ranges of AutoAugment and RandAugment, except if a key exists only in ppcls."""
    for node in _mappings(data):
        for name in ("AutoAugment", "RandAugment"):
            if name not in node:
                continue
            settings = node[name] if node[name] is not None else {}
            if isinstance(settings, dict) and not {"policy", "monotonic_mag", "source"} & set(settings):
                node[name] = {**settings, "source": "paddleclas"}


def _drop_null_policies(chain: list[Any]) -> None:
    """Removes a TimmAutoAugment without a policy, as in FasterNet_T0. PaddleClas fails on it."""
    chain[:] = [entry for entry in chain if entry != {"TimmAutoAugment": {"config_str": None}}]


def _translate_padding(chain: list[Any]) -> None:
    """Replaces `Padv2` with `Pad` if an earlier transform sets the size, which the border depends on."""
    size: tuple[int, int] | None = None  # width and height
    for position, transform in enumerate(chain):
        if not isinstance(transform, dict) or len(transform) != 1:
            return
        ((name, settings),) = transform.items()
        settings = settings if isinstance(settings, dict) else {}
        if name == "Padv2" and size is not None:
            padded = _pair(settings.get("size"))
            mode = settings.get("pad_mode", 0)
            if padded is None or set(settings) - {"size", "pad_mode", "fill_value"} or mode not in (0, 1, 2):
                return
            margins = padded[0] - size[0], padded[1] - size[1]
            left, top = (margin * mode // 2 for margin in margins)
            border = [left, top, margins[0] - left, margins[1] - top]
            chain[position] = {"Pad": {"padding": border, "fill": settings.get("fill_value", 127.5)}}
            size = padded
        elif name.startswith(("Resize", "RandCrop", "Crop", "RandomCrop")):
            size = _pair(settings.get("size"))


def _translate_tensors(chain: list[Any]) -> None:
    """Replaces `ToTensor` and `Normalize` of paddle.vision with `NormalizeImage`."""
    for position, pair in enumerate(pairwise(chain)):
        if all(isinstance(entry, dict) for entry in pair) and [*pair[0], *pair[1]] == [
            "ToTensor",
            "Normalize",
        ]:
            settings = pair[1]["Normalize"] or {}
            if set(settings) <= {"mean", "std"}:
                chain[position : position + 2] = [{"NormalizeImage": {"scale": 1 / 255, **settings}}]
                return


def _pair(size: Any) -> tuple[int, int] | None:
    sides = size if isinstance(size, list) else [size, size]
    valid = len(sides) == 2 and all(isinstance(side, int) for side in sides)
    return (sides[0], sides[1]) if valid else None


def _translate_attributes(spec: Tree) -> None:
    """Replaces post-processing of attributes with MultiLabelThreshOutput, with one threshold per class."""
    name = spec.get("name")
    keys = set(spec) - {"name"}
    if name == "PersonAttribute" and keys <= {"threshold", "glasses_threshold", "hold_threshold"}:
        thresholds = [spec.get("threshold", 0.5)] * _PERSON_ATTRIBUTES
        thresholds[_GLASSES] = spec.get("glasses_threshold", 0.3)
        thresholds[_HOLD] = spec.get("hold_threshold", 0.6)
    elif name == "VehicleAttribute" and keys <= {"color_threshold", "type_threshold"}:
        thresholds = [spec.get("color_threshold", 0.5)] * _COLORS
        thresholds += [spec.get("type_threshold", 0.5)] * _TYPES
    elif name == "TableAttribute" and keys <= {f"{key}_threshold" for key in _TABLE_KEYS}:
        thresholds = [spec.get(f"{key}_threshold", 0.5) for key in _TABLE_KEYS]
    else:
        return
    spec.clear()
    spec |= {"name": "MultiLabelThreshOutput", "threshold": thresholds}
