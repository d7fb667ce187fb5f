"""ppcls trains PaddlePaddle image classifiers from one YAML file. NVIDIA DALI or paddle.io loads images."""

from __future__ import annotations

import os
import zlib  # noqa: F401 - must precede Paddle 2.6, whose own copy of zlib makes a later import crash
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ppcls.version import __version__

# ONNX Runtime 1.31 writes a device id and events to ~/.cache/Microsoft when it is imported, which is before
# `onnxruntime.disable_telemetry_events` can be called, and warns if the home folder is read-only.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from ppcls.api import RunHook, build_loader, build_state, evaluate, fit, load_config
    from ppcls.classifier import Classifier
    from ppcls.deploy.predictor import Predictor

__all__ = [
    "Classifier",
    "Predictor",
    "RunHook",
    "__version__",
    "build_loader",
    "build_state",
    "evaluate",
    "fit",
    "load_config",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, which keeps ``import ppcls`` fast."""
    if name not in __all__:
        from ppcls.errors import MissingAttributeError

        public = ", ".join(each for each in __all__ if not each.startswith("_"))
        message = (
            f"module 'ppcls' has no attribute '{name}'; it has {public}; to load a model: Classifier(FOLDER)"
        )
        raise MissingAttributeError(message, name=name)
    module = {"Classifier": "ppcls.classifier", "Predictor": "ppcls.deploy.predictor"}.get(name, "ppcls.api")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    """Returns the public names only."""
    return sorted([*__all__, "__doc__"])
