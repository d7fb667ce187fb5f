"""ppcls: train PaddlePaddle image classifiers from one YAML, fed by NVIDIA DALI."""

from __future__ import annotations

import zlib  # noqa: F401 - before Paddle: once 2.6 has brought its own copy along, Python's crashes
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppcls.api import build_state, evaluate, fit, load_config
    from ppcls.deploy.predictor import Predictor

__version__ = "0.1.0"
__all__ = ["Predictor", "build_state", "evaluate", "fit", "load_config"]


def __getattr__(name: str) -> Any:
    """Imports the API when it is asked for: nothing that merely needs the package waits for it."""
    if name not in __all__:
        raise AttributeError(f"module 'ppcls' has no attribute '{name}'")
    return getattr(import_module("ppcls.deploy.predictor" if name == "Predictor" else "ppcls.api"), name)
