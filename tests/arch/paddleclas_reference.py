"""Builds PaddleClas's ResNets and writes down what ours are compared with; runs in a process of its own.

PaddleClas's package runs its whole command line when it is imported. So its parent packages are put in place
empty, and only the file with the models, and what that needs, is run.
"""

import importlib
import importlib.util
import logging
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import paddle

MODELS = ("ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152")
COMPARED = ("ResNet18", "ResNet50")
CLASSES = 10


def image():
    return paddle.to_tensor(np.random.default_rng(0).standard_normal((4, 3, 64, 64), dtype=np.float32))


def fill(model):
    """Gives each parameter and buffer values that depend on nothing but its name and shape."""
    for name, tensor in model.state_dict().items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if len(tensor.shape) > 1:
            fan_in = np.prod(tensor.shape[1:]) if len(tensor.shape) == 4 else tensor.shape[0]
            value = rng.standard_normal(tensor.shape) / np.sqrt(fan_in)
        else:
            value = rng.uniform(0.5, 1.0, tensor.shape)
        tensor.set_value(value.astype(np.float32))


def run(model):
    """Returns the logits [4, CLASSES] in evaluation and in training."""
    fill(model)
    with paddle.no_grad():
        model.eval()
        evaluated = model(image()).numpy()
        model.train()
        return evaluated, model(image()).numpy()


def import_resnet():
    root = Path(importlib.util.find_spec("paddleclas").submodule_search_locations[0])
    parents = ("", ".ppcls", ".ppcls.utils", ".ppcls.arch", ".ppcls.arch.backbone")
    for parent in (*parents, ".ppcls.arch.backbone.legendary_models"):
        package = types.ModuleType(f"paddleclas{parent}")
        package.__path__ = [str(root.joinpath(*parent.split(".")))]
        sys.modules[package.__name__] = package
    sys.modules["paddleclas.ppcls.utils"].logger = logging.getLogger("paddleclas")
    download = types.ModuleType("paddleclas.ppcls.utils.save_load")
    download.load_dygraph_pretrain = None
    sys.modules[download.__name__] = download
    return importlib.import_module("paddleclas.ppcls.arch.backbone.legendary_models.resnet")


def main(path):
    resnet = import_resnet()
    written = {}
    for name in MODELS:
        model = getattr(resnet, name)(class_num=CLASSES)
        for key, tensor in model.state_dict().items():
            value = tensor.numpy()
            written[f"{name}/shape/{key}"] = np.array(value.shape)
            written[f"{name}/init/{key}"] = np.array([value.mean(), value.std(), np.abs(value).max()])
        if name in COMPARED:
            written[f"{name}/eval"], written[f"{name}/train"] = run(model)
    np.savez(path, **written)


if __name__ == "__main__":
    main(sys.argv[1])
