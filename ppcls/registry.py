"""Names in YAML to the objects behind them.

An entry is a string ``module:attribute`` that is imported when it is first looked up. So the whole
vocabulary is known, and an unknown name can be answered with the nearest known one, without
importing Paddle.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from ppcls.zoo import ZOO


def nearest(name: str, known: list[str], listing: str | None = None) -> str:
    """Asks ``; did you mean 'X'?``; where nothing is near it names the known, or says what lists them."""
    folded = {each.lower(): each for each in known}
    match = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    if match:
        return f"; did you mean '{folded[match[0]]}'?"
    if listing is not None:
        return f"; {listing}"
    return f"; known: {', '.join(sorted(known))}" if known else ""


class UnknownNameError(ValueError):
    """A name that the registry does not know; the text suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: list[str], instead: str | None = None) -> None:
        self.hint = f"; {instead}" if instead else nearest(name, known)
        super().__init__(f"unknown {kind} '{name}'{self.hint}")


class Registry:
    """One kind of named thing: transforms, architectures, optimizers.

    Args:
        kind: What an entry is, as error messages call it.
        entries: Name to ``module:attribute``.
        elsewhere: Names that PaddleClas's files have and that are not there, and what to write instead.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, str], elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self._elsewhere = elsewhere or {}
        self._entries: dict[str, Any] = dict(entries)

    def register(self, name: str, entry: Any) -> None:
        """Adds ``entry`` (an object, or ``module:attribute``) under ``name``.

        Raises:
            ValueError: ``name`` is taken.
        """
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> Any:
        """Returns the object called ``name``.

        Raises:
            UnknownNameError: No such name.
        """
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, list(self._entries), self._elsewhere.get(name))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, attribute = entry.split(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry


def _in(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


ARCHITECTURES = Registry("architecture", {each.name: each.builder for each in ZOO.values()})
DATASETS = Registry(
    "dataset",
    _in(
        "ppcls.config.sections.dataset",
        "ImageNetDataset",
        "MultiScaleDataset",
        "ImageFolderDataset",
        "MultiLabelDataset",
        "WebDataset",
        "TFRecordDataset",
        "RecordIODataset",
        "LMDBDataset",
        "PythonDataset",
    ),
)
INPUT_SIZES = Registry(
    "schedule of image sizes", _in("ppcls.config.sections.sampler", "MultiScale", "Progressive")
)
SAMPLERS = Registry(
    "sampler",
    _in(
        "ppcls.config.sections.sampler",
        "DistributedBatchSampler",
        "BatchSampler",
        "ClassBalancedSampler",
        "WeightedSampler",
        "RepeatedAugSampler",
        "MultiScaleSampler",
        "PKSampler",
    ),
    {"DistributedRandomIdentitySampler": "write PKSampler, with num_instances as sample_per_id"},
)
TRANSFORMS = Registry(
    "transform",
    {
        **_in(
            "ppcls.data.transforms.specs.basic", "DecodeImage", "ResizeImage", "CropImage", "RandCropImage"
        ),
        **_in("ppcls.data.transforms.specs.basic", "DecodeNumpy"),
        **_in("ppcls.data.transforms.specs.basic", "RandFlipImage", "NormalizeImage", "ToCHWImage"),
        **_in("ppcls.data.transforms.specs.geometry", "Pad", "RandomCropImage", "RandCropImageV2"),
        **_in("ppcls.data.transforms.specs.geometry", "RandomRotation", "RandomRot90"),
        **_in("ppcls.data.transforms.specs.policies", "AutoAugment", "RandAugment", "TrivialAugment"),
        **_in("ppcls.data.transforms.specs.policies", "TimmAutoAugment"),
        **_in("ppcls.data.transforms.specs.photometric", "ColorJitter", "RandomGrayscale"),
        **_in("ppcls.data.transforms.specs.photometric", "PCALighting", "GaussianBlur"),
        **_in("ppcls.data.transforms.specs.erasing", "RandomErasing", "Cutout", "GridMask"),
        **_in("ppcls.data.transforms.specs.erasing", "HideAndSeek"),
    },
)
SOURCES = Registry("Python source", {})  # filled by the user's code
BATCH_TRANSFORMS = Registry(
    "batch transform", _in("ppcls.config.sections.transform", "MixupOperator", "CutmixOperator", "OpSampler")
)
LOSSES = Registry(
    "loss",
    {
        **_in("ppcls.config.sections.objective", "CELoss", "BCELoss"),
        **_in("ppcls.config.objectives.multi_label", "MultiLabelLoss", "MultiLabelAsymmetricLoss"),
        **_in(
            "ppcls.config.objectives.distillation_losses",
            "DistillationGTCELoss",
            "DistillationMultiLabelLoss",
        ),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationCELoss", "DistillationKLDivLoss"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationDMLLoss", "DistillationDKDLoss"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationWSLLoss", "DistillationSKDLoss"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationDISTLoss"),
        **_in("ppcls.config.objectives.layer_losses", "DistillationDistanceLoss", "DistillationRKDLoss"),
        **_in("ppcls.config.objectives.layer_losses", "DistillationPairLoss", "AFDLoss"),
        **_in("ppcls.config.objectives.embedding", "TripletLossV2", "TripletLoss"),
    },
    {
        "MGDLoss": "write DistillationPairLoss with base_loss_name: MGDLoss",
        "PEFDLoss": "write DistillationPairLoss with base_loss_name: PEFDLoss",
        "MixCELoss": "CELoss takes mixed labels",
    },
)
METRICS = Registry(
    "metric",
    {
        **_in("ppcls.config.sections.objective", "TopkAcc"),
        **_in("ppcls.config.objectives.distillation_losses", "DistillationTopkAcc"),
        **_in("ppcls.config.sections.objective", "PerClassRecall", "ConfusionMatrix", "TprAtFpr"),
        **_in("ppcls.config.objectives.embedding", "Recallk", "mAP"),
        **_in(
            "ppcls.config.objectives.multi_label",
            "AccuracyScore",
            "ATTRMetric",
            "HammingDistance",
            "MultiLabelMAP",
        ),
    },
    {"Topk": "write TopkAcc, with topk"},
)
HEADS = Registry(
    "head", _in("ppcls.config.objectives.embedding", "FC", "ArcMargin", "CosMargin", "CircleMargin")
)
POSTPROCESSES = Registry(
    "postprocessing",
    _in("ppcls.config.sections.infer", "Topk", "MultiLabelThreshOutput", "DistillationPostProcess"),
)
OPTIMIZERS = Registry(
    "optimizer",
    _in(
        "ppcls.config.sections.optimizer",
        *("SGD", "Momentum", "Adam", "AdamW", "AdamWDL", "RMSProp", "Lamb", "LARS", "Lion"),
    ),
)
SCHEDULES = Registry(
    "learning-rate schedule",
    {
        **_in("ppcls.config.sections.schedule", "Constant", "Piecewise", "Cosine", "Linear", "Polynomial"),
        **_in(
            "ppcls.config.sections.schedule",
            "MultiStepDecay",
            "Step",
            "Cyclic",
            "OneCycleLR",
            "ReduceOnPlateau",
        ),
        "MultiStep": "ppcls.config.sections.schedule:MultiStepDecay",
    },
)
