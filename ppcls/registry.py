"""Registries, which map names in YAML files to Python objects.

An entry is a string ``module:attribute``, which is imported on first use. Therefore a registry can list its
names, and suggest one for a misspelt name, without importing Paddle.
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

_MAX_LISTED = 10


def suggest(name: str, known: Sequence[str], listing: str = "") -> str:
    """Returns the end of an error message about an unknown name: similar names, or up to ten known names.

    Args:
        name: The unknown name.
        known: Existing names.
        listing: Text that says where all names are listed, for more than ten names; "" for none.
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
    return suggest(name, known, "`ppcls models list` lists all architectures")


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
    """

    def __init__(self, kind: str, entries: Mapping[str, str], hints: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._hints = hints or {}
        self._entries: dict[str, Any] = dict(entries)

    def register(self, name: str, entry: Any) -> None:
        """Adds ``entry`` (an object, or ``module:attribute``) under ``name``.

        Raises:
            ValueError: ``name`` is already registered.
        """
        if name in self._entries:
            raise ValueError(
                f"{self.kind} {name!r} is registered twice; choose a name that no other {self.kind} has"
            )
        self._entries[name] = entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> Any:
        """Returns the object that is registered as ``name``.

        Raises:
            UnknownNameError: The name is not registered.
        """
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, list(self._entries), self._hints.get(name))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry


def _in(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


ARCHITECTURES = Registry(
    "architecture", {architecture.name: architecture.builder for architecture in ZOO.values()}
)
_SECTIONS, _OBJECTIVES = "ppcls.config.sections", "ppcls.config.objectives"
_TRANSFORMS = "ppcls.data.transforms.specs"
DATASETS = Registry(
    "dataset",
    _in(
        f"{_SECTIONS}.dataset",
        *(
            "ImageNetDataset",
            "MultiScaleDataset",
            "VeriWild",
            "Market1501",
            "DukeMTMC",
            "CompCars",
            "ICartoonDataset",
            "ImageFolderDataset",
            "MultiLabelDataset",
            "CustomLabelDataset",
            "Cifar10",
        ),
        *("WebDataset", "TFRecordDataset", "RecordIODataset", "LMDBDataset", "PythonDataset"),
    ),
)
INPUT_SIZES = Registry("image-size schedule", _in(f"{_SECTIONS}.sampler", "MultiScale", "Progressive"))
SAMPLERS = Registry(
    "sampler",
    _in(
        f"{_SECTIONS}.sampler",
        *("DistributedBatchSampler", "BatchSampler", "ClassBalancedSampler", "WeightedSampler"),
        *("RepeatedAugSampler", "MultiScaleSampler", "PKSampler"),
    ),
)
TRANSFORMS = Registry(
    "transform",
    {
        **_in(f"{_TRANSFORMS}.basic", "DecodeImage", "ResizeImage", "CropImage", "RandCropImage"),
        **_in(f"{_TRANSFORMS}.basic", "DecodeNumpy", "RandFlipImage", "NormalizeImage", "ToCHWImage"),
        **_in(f"{_TRANSFORMS}.geometry", "Pad", "RandomCropImage", "RandCropImageV2"),
        **_in(f"{_TRANSFORMS}.geometry", "RandomRotation", "RandomRot90"),
        **_in(f"{_TRANSFORMS}.policies", "AutoAugment", "RandAugment", "TrivialAugment", "TimmAutoAugment"),
        **_in(f"{_TRANSFORMS}.policies", "RandAugmentV3"),
        **_in(f"{_TRANSFORMS}.mixed_policies", "RandAugmentV4", "AugMix"),
        **_in(f"{_TRANSFORMS}.photometric", "ColorJitter", "RandomGrayscale", "PCALighting", "GaussianBlur"),
        **_in(f"{_TRANSFORMS}.blur", "BlurImage"),
        **_in(f"{_TRANSFORMS}.erasing", "RandomErasing", "Cutout", "GridMask", "HideAndSeek"),
    },
)
LOGGERS = Registry(
    "logger",
    {name.lower(): f"{_SECTIONS}.logger:{name}" for name in ("TensorBoard", "MLflow", "WandB")},
    {"visualdl": "set Global.use_visualdl: True"},
)
SOURCES = Registry("Python source", {})  # the user's code adds entries
BATCH_TRANSFORMS = Registry(
    "batch transform", _in(f"{_SECTIONS}.transform", "MixupOperator", "CutmixOperator", "OpSampler")
)
LOSSES = Registry(
    "loss",
    {
        **_in(f"{_SECTIONS}.objective", "CELoss", "GoogLeNetLoss", "BCELoss", "FocalLoss"),
        **_in(f"{_OBJECTIVES}.multi_label", "MultiLabelLoss", "MultiLabelAsymmetricLoss"),
        **_in(
            f"{_OBJECTIVES}.distillation_losses",
            *("DistillationGTCELoss", "DistillationMultiLabelLoss", "DistillationCELoss"),
            *("DistillationKLDivLoss", "DistillationDMLLoss", "DistillationDKDLoss", "DistillationWSLLoss"),
            *("DistillationSKDLoss", "DistillationDISTLoss"),
        ),
        **_in(f"{_OBJECTIVES}.layer_losses", "DistillationDistanceLoss", "DistillationRKDLoss"),
        **_in(f"{_OBJECTIVES}.layer_losses", "DistillationPairLoss", "AFDLoss"),
        **_in(f"{_OBJECTIVES}.embedding", "TripletLossV2", "TripletLoss", "SupConLoss", "CenterLoss"),
        **_in(f"{_OBJECTIVES}.embedding", "DCHLoss", "LCDSHLoss", "DSHSDLoss", "PairwiseCosface"),
    },
    {
        "MGDLoss": "write DistillationPairLoss with base_loss_name: MGDLoss",
        "PEFDLoss": "write DistillationPairLoss with base_loss_name: PEFDLoss",
        "MixCELoss": "write CELoss, which accepts mixed labels",
    },
)
METRICS = Registry(
    "metric",
    {
        **_in(f"{_SECTIONS}.objective", "TopkAcc"),
        **_in(f"{_OBJECTIVES}.distillation_losses", "DistillationTopkAcc"),
        **_in(f"{_SECTIONS}.objective", "PerClassRecall", "ConfusionMatrix"),
        **_in(f"{_SECTIONS}.objective", "CalibrationError", "TprAtFpr"),
        **_in(f"{_OBJECTIVES}.embedding", "Recallk", "Precisionk", "mAP"),
        **_in(
            f"{_OBJECTIVES}.multi_label",
            *("AccuracyScore", "ATTRMetric", "HammingDistance", "MultiLabelMAP"),
        ),
    },
    {"Topk": "write TopkAcc, with topk"},
)
HEADS = Registry(
    "neck or head",
    _in(
        f"{_OBJECTIVES}.rec_model",
        "FC",
        "ArcMargin",
        "CosMargin",
        "CircleMargin",
        "VehicleNeck",
        "BNNeck",
        "Tanh",
    ),
)
POSTPROCESSES = Registry(
    "post-processing method",
    _in(
        f"{_SECTIONS}.infer",
        *("Topk", "ThreshOutput", "MultiLabelThreshOutput", "DistillationPostProcess", "ScoreOutput"),
    ),
)
OPTIMIZERS = Registry(
    "optimizer",
    _in(
        f"{_SECTIONS}.optimizer",
        *("SGD", "Momentum", "Adam", "AdamW", "AdamWDL", "RMSProp", "Lamb", "LARS", "Lion"),
    ),
)
SCHEDULES = Registry(
    "learning-rate schedule",
    {
        **_in(
            f"{_SECTIONS}.schedule",
            "Constant",
            "Piecewise",
            "Cosine",
            "CosineFixmatch",
            "Linear",
            "Polynomial",
        ),
        **_in(f"{_SECTIONS}.schedule", "MultiStepDecay", "Step", "Cyclic", "OneCycleLR", "ReduceOnPlateau"),
        "MultiStep": f"{_SECTIONS}.schedule:MultiStepDecay",
    },
)
