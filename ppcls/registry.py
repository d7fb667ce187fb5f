"""Registries, which map names in YAML files to Python objects.

A component registers itself when its module is imported (`ppcls.config.base.component`). A registry imports
the modules of its kind when it is first read. These modules do not import Paddle, so a registry can list its
names and suggest one for a misspelt name without it. Architectures are entries ``module:attribute``, because
their modules import Paddle.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ppcls.errors import UserError
from ppcls.zoo import ZOO

_MAX_LISTED = 12
_SHORT_NAME = 3  # names up to this length are not suggested for a name that starts with them


def suggest(name: str, known: Sequence[str], listing: str = "") -> str:
    """Returns the end of an error message about an unknown name: similar names, or up to twelve known names.

    Args:
        name: The unknown name.
        known: Existing names.
        listing: Text that says where all names are listed, for more than twelve names; "" for none.
    """
    folded = {entry.lower(): entry for entry in known}
    lower = name.lower()
    longer = [entry for key, entry in folded.items() if key.startswith(lower)] if len(name) > 2 else []
    if lower in folded:
        similar = [folded[lower]]
    elif longer:
        similar = sorted(longer, key=lambda entry: (len(entry), entry))[:3]
    else:
        similar = [folded[key] for key in difflib.get_close_matches(lower, folded, n=1, cutoff=0.7)]
    if not similar:  # Cosine for CosineAnnealing
        shorter = [key for key in folded if len(key) > _SHORT_NAME and lower.startswith(key)]
        similar = [folded[key] for key in sorted(shorter, key=len)[-1:]]
    if similar:
        return f"; did you mean {' or '.join(map(repr, similar))}?"
    if len(known) > _MAX_LISTED:
        return f"; {listing}" if listing else ""
    return f"; known: {', '.join(sorted(known))}" if known else ""


def suggest_architecture(name: str, known: Sequence[str]) -> str:
    """Returns the end of an error message about an unknown architecture; see `suggest`.

    Args:
        name: The unknown name. It may be the name of weights in the Hugging Face hub.
        known: Existing names.
    """
    model = name.rpartition("/")[2]
    base, dot, _ = model.partition(".")
    if name.startswith(("hf-hub:", "timm/")) or (dot and re.search(r"_in\d+k", model)):
        weights = f"--pretrained hf-hub:timm/{model} (Arch.pretrained)"
        return f"; name an architecture, and set {weights}{suggest(base, known)}"
    listing = "`ppcls models list` lists all architectures"
    if model.lower().startswith("yolo"):
        return f"; ppcls has no YOLO networks; {listing}"
    if model.endswith((".pt", ".pth", ".pth.tar", ".ckpt", ".pdparams", ".safetensors")):
        return f"; name an architecture, and set --pretrained {name} (Arch.pretrained){suggest(base, known)}"
    return suggest(name, known, listing)


def import_user_module(name: str, key: str) -> ModuleType:
    """Imports and returns a user's module from the current folder or Python's path.

    Args:
        name: Name of the module.
        key: Config key that names the module, for error messages.

    Raises:
        UserError: The module is missing or calls ``sys.exit``. Other errors of the module are not caught.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that files in the folder do not hide installed modules
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"{key}: no module '{name}' in {folder} or on Python's path; start the command in the module's "
            "folder, or add that folder to PYTHONPATH"
        ) from None
    except SystemExit as error:
        raise UserError(
            f"{key}: the module '{name}' ends the process (sys.exit) when it is imported; "
            'put such code below `if __name__ == "__main__":`'
        ) from error


class UnknownNameError(ValueError):
    """Raised for a name that is not in the registry. The message suggests a similar name."""

    def __init__(self, kind: str, name: str, known: Sequence[str], instead: str | None = None) -> None:
        self.hint = f"; {instead}" if instead else suggest(name, known, "docs/config.md describes all")
        super().__init__(f"unknown {kind} '{name}'{self.hint}")


class Registry:
    """The named components of one kind, such as transforms or optimizers.

    Args:
        kind: Term for an entry in error messages, such as ``transform``.
        entries: ``module:attribute`` of each entry, by name.
        hints: Advice for unsupported names in PaddleClas's files, by name.
        modules: Modules whose classes register themselves when they are imported (`Component`). They are
            imported when the registry is first read, in this order, which is the order of the names in
            docs/config.md.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self._hints = hints or {}
        self._entries: dict[str, Any] = dict(entries or {})
        self._modules = tuple(modules)
        self._loaded = not modules

    def _load(self) -> None:
        if not self._loaded:
            for module in self._modules:
                importlib.import_module(module)
            # The order must not depend on which of the modules another module imported first.
            order = {module: position for position, module in enumerate(self._modules)}
            self._entries = dict(
                sorted(
                    self._entries.items(),
                    key=lambda entry: order.get(getattr(entry[1], "__module__", ""), len(order)),
                )
            )
            # Not before the imports: another thread must not read an incomplete registry.
            self._loaded = True

    def register(self, name: str, entry: Any) -> None:
        """Adds ``entry`` (an object, or ``module:attribute``) under ``name``.

        A class replaces the class of the same name and module, so that a notebook's cell can be run again.

        Raises:
            ValueError: ``name`` is already registered for something else.
        """
        if getattr(entry, "__module__", None) not in self._modules:
            self._load()  # so that a user's class cannot take the name of a built-in one
        previous = self._entries.get(name)
        redefined = (
            isinstance(previous, type)
            and isinstance(entry, type)
            and ((previous.__module__, previous.__qualname__) == (entry.__module__, entry.__qualname__))
        )
        if previous is not None and not redefined:
            raise ValueError(
                f"{self.kind} {name!r} is registered twice; choose a name that no other {self.kind} has"
            )
        self._entries[name] = entry

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __getitem__(self, name: str) -> Any:
        """Returns the object that is registered as ``name``.

        Raises:
            UnknownNameError: The name is not registered.
        """
        self._load()
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, list(self._entries), self._hints.get(name))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry

    def module_of(self, name: str) -> str:
        """Returns the name of the module that defines an entry, without importing it."""
        self._load()
        entry = self._entries[name]
        return entry.partition(":")[0] if isinstance(entry, str) else str(entry.__module__)


ARCHITECTURES = Registry(
    "architecture", {architecture.name: architecture.builder for architecture in ZOO.values()}
)
DATASETS = Registry(
    "dataset",
    modules=[
        f"ppcls.data.index.{name}"
        for name in ("image_lists", "persons", "folders", "cifar", "idx", "records", "python_source")
    ],
)
INPUT_SIZES = Registry("image-size schedule", modules=("ppcls.data.sampling.sizes",))
SAMPLERS = Registry("sampler", modules=("ppcls.data.sampling.samplers",))
TRANSFORMS = Registry(
    "transform",
    modules=[
        f"ppcls.data.transforms.specs.{name}"
        for name in ("basic", "geometry", "policies", "mixed_policies", "photometric", "blur", "erasing")
    ],
)
LOGGERS = Registry(
    "logger", hints={"visualdl": "set Global.use_visualdl: True"}, modules=("ppcls.report.loggers",)
)
SOURCES = Registry("Python source", {})  # the user's code adds entries
BATCH_TRANSFORMS = Registry("batch transform", modules=("ppcls.data.transforms.batch",))
LOSSES = Registry(
    "loss",
    hints={
        "MGDLoss": "write DistillationPairLoss with base_loss_name: MGDLoss",
        "PEFDLoss": "write DistillationPairLoss with base_loss_name: PEFDLoss",
        "MixCELoss": "write CELoss, which accepts mixed labels",
    },
    modules=(
        "ppcls.loss.classification",
        "ppcls.loss.multi_label",
        "ppcls.loss.distillation",
        "ppcls.loss.layer_distillation",
        "ppcls.loss.learned",
        "ppcls.loss.embedding",
    ),
)
METRICS = Registry(
    "metric",
    hints={"Topk": "write TopkAcc, with topk"},
    modules=("ppcls.metric.single_label", "ppcls.metric.retrieval", "ppcls.metric.multi_label"),
)
HEADS = Registry("neck or head", modules=("ppcls.arch.heads",))
POSTPROCESSES = Registry("post-processing method", modules=("ppcls.postprocess.methods",))
OPTIMIZERS = Registry("optimizer", modules=("ppcls.optimizer.optimizers",))
SCHEDULES = Registry("learning-rate schedule", modules=("ppcls.optimizer.schedules",))
