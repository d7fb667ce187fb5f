"""Describes models that PaddleClas exported, with or without its own ``inference.yml``.

Its ``inference.yml`` has the sections ``PreProcess`` and ``PostProcess`` only, and most of its exports lack
this file: the user names a config to PaddleClas's tools instead. The program itself contains the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from ppcls.config.base.errors import ConfigError, describe_problems
from ppcls.config.base.tree import Tree
from ppcls.config.base.yaml import read_description_yaml
from ppcls.data.index.class_names import IMAGENET_NAMES, read_class_names
from ppcls.deploy.models.description import DESCRIPTION, ModelDescription
from ppcls.deploy.models.programs.signature import Signature, read_signature
from ppcls.errors import UserError
from ppcls.files import read_regular
from ppcls.recipe.paddleclas import translate_paddleclas

_CLASSES = 1000  # of ImageNet
_TOPK = 5
_CROP = 224
_SHORT = 256  # length of the short side before the crop, for crops of 224 pixels
_ACTIVATIONS = {"softmax": "Topk", "sigmoid": "MultiLabelThreshOutput"}
_EMBEDDING = "NormalizeFeatures"  # what PaddleClas does with the output of a model for retrieval


class _PostProcess(NamedTuple):
    """Post-processing of an export.

    Attributes:
        kind: Its name in PaddleClas.
        keys: Its keys, without the names of the classes.
        names: Names of the classes; None if they are unknown.
    """

    kind: str
    keys: Tree
    names: Any


def read_paddleclas(program: Path, *, trust: bool = False) -> ModelDescription | None:
    """Returns the description of a model that PaddleClas exported with ``inference.yml``.

    Args:
        program: File of the program.
        trust: See `read_signature`.

    Returns:
        The description; None if the file was written by ppcls.

    Raises:
        UserError: A file cannot be read.
        ConfigError: ``inference.yml`` has errors.
    """
    path = program.with_name(DESCRIPTION)
    tree = read_description_yaml(path)
    if not isinstance(tree, dict) or "Input" in tree or not {"PreProcess", "PostProcess"} <= tree.keys():
        return None
    # As PaddleClas wrote it: for PyYAML, the name 1e5 of a class is text without quotes, for ppcls a number.
    tree = yaml.safe_load(read_regular(path))
    signature = read_signature(program, trust=trust)
    name = tree["Global"].get("model_name") if isinstance(tree.get("Global"), dict) else None
    transforms = tree["PreProcess"].get("transform_ops") if isinstance(tree["PreProcess"], dict) else None
    post = tree["PostProcess"]
    named = isinstance(post, dict) and len(post) == 1
    kind, keys = next(iter(post.items())) if named else ("", None)
    keys = dict(keys) if isinstance(keys, dict) else {}
    names = keys.pop("label_list", None)
    return _describe(
        path, signature, str(name or program.parent.name), transforms, _PostProcess(kind, keys, names)
    )


def assume_description(program: Path, *, trust: bool = False) -> ModelDescription:
    """Returns the description of a program without ``inference.yml``, as PaddleClas's tools assume it.

    An ``.onnx`` file of any tool is described in the same way. Its logits are converted to probabilities.

    Images are prepared as for ImageNet: the short side is resized to 256 pixels, or in proportion for another
    input size, and the center is cropped.

    Args:
        program: File of the program.
        trust: See `read_signature`.

    Raises:
        UserError: The file cannot be read, or the input has no fixed size, or the output is neither
            probabilities nor embeddings.
    """
    signature = read_signature(program, trust=trust)
    height, width = signature.size
    if 3 not in signature.shape[1:] or height < 1 or width < 1:
        raise UserError(
            f"{program.parent}: expected the file {DESCRIPTION}, because the input {list(signature.shape)} "
            "is not that of RGB images of a fixed size"
        )
    resize: Tree = {"size": [width, height]}
    if height == width:
        resize = {"resize_short": round(height * _SHORT / _CROP)}
    normalize = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "order": ""}
    transforms = [
        {"ResizeImage": resize},
        {"CropImage": {"size": [width, height]}},
        {"NormalizeImage": normalize},
        {"ToCHWImage": {}},
    ]
    # A classifier of other tools often ends in logits, but PaddleClas's exports then return embeddings.
    other = "Topk" if program.suffix == ".onnx" else _EMBEDDING
    kind = _ACTIVATIONS.get(signature.activation, other)
    keys = {"topk": min(_TOPK, signature.width)} if kind == "Topk" else {}
    known = kind == "Topk" and signature.width == _CLASSES
    names = list(read_class_names(IMAGENET_NAMES, _CLASSES)) if known else None
    post = _PostProcess(kind, keys, names)
    named = program.suffix == ".onnx" and program.stem != "inference"
    return _describe(program, signature, program.stem if named else program.parent.name, transforms, post)


def _describe(
    file: Path,
    signature: Signature,
    name: str,
    transforms: Any,
    described: _PostProcess,
) -> ModelDescription:
    kind, keys, names = described
    infer: Tree = {"transforms": transforms, "PostProcess": {"name": kind, **keys}}
    translate_paddleclas({"Infer": infer}, from_paddleclas=True)
    chain = infer["transforms"]
    if isinstance(chain, list) and not any(
        isinstance(item, dict) and "DecodeImage" in item for item in chain
    ):
        chain = [{"DecodeImage": {}}, *chain]
    post = infer["PostProcess"]
    embeds = kind == _EMBEDDING
    normalized = signature.activation in _ACTIVATIONS
    activation = signature.activation if normalized else "softmax"
    listed = {} if names is None else {"label_list": names}
    tree: Tree = {
        "Global": {"model_name": name},
        "Input": {
            "name": signature.name,
            "shape": [-1, *signature.shape[1:]],
            "dtype": "float32",
            "layout": signature.layout,
        },
        "PreProcess": {"transform_ops": chain},
        "Output": {
            "shape": [-1, signature.width],
            "dtype": "float32",
            "activation": "l2_norm" if embeds else activation,
            "normalized": normalized and not embeds,
        },
        "PostProcess": None if embeds else {post.pop("name"): {**post, **listed}},
    }
    try:
        return ModelDescription.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(file, describe_problems(tree, error)) from None
