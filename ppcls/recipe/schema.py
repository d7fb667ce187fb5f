"""The class `Config`, which has all sections of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import PrivateAttr, ValidationError, field_validator, model_validator
from typing_extensions import Self

from ppcls.arch.distillation_model import DistillationModel
from ppcls.arch.rec_model import RecModel
from ppcls.arch.section import Arch as PlainArch
from ppcls.config.base.choices import Tagged, Variants
from ppcls.config.base.component import section_problems
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.section import Section
from ppcls.data import section
from ppcls.data.transforms.base import Transform
from ppcls.engine.core import settings as engine
from ppcls.engine.head import section as head
from ppcls.loss import semi_supervised
from ppcls.loss.section import LossSection
from ppcls.metric.section import MetricSection
from ppcls.optimizer import base as optimizer
from ppcls.postprocess.section import Infer as InferSection
from ppcls.recipe import settings
from ppcls.recipe.compat import config_warnings
from ppcls.registry import OPTIMIZERS


class Config(Section):
    """All settings of a run: model, data, losses, metrics, optimizer and prediction."""

    key_hints: ClassVar[Mapping[str, str]] = {
        **{name: f"write Global.{name}" for name in settings.Global.model_fields},
        # Keys of PaddleClas before version 2.1.
        **dict.fromkeys(("ARCHITECTURE", "architecture"), "write Arch"),
        **dict.fromkeys(("LEARNING_RATE", "OPTIMIZER"), "write Optimizer, with lr for the learning rate"),
        **dict.fromkeys(("TRAIN", "Train", "train"), "write DataLoader.Train"),
        **dict.fromkeys(("VALID", "Eval", "Valid", "eval", "val"), "write DataLoader.Eval"),
        "AMP_BF16": "write AMP with dtype: bfloat16",
        "UnLabelLoss": "write SSL, which uses the cross-entropy of FixMatch; other losses are not supported",
        "Slim": "quantization and pruning during training are not supported; remove it, and export the "
        "trained model in int8 with: ppcls export --precision int8 --format onnx (or openvino, for CPUs)",
    }
    _from_paddleclas: bool = PrivateAttr(False)
    Global: settings.Global = settings.Global()
    """General settings of the run."""
    Arch: Annotated[
        PlainArch | DistillationModel | RecModel,
        Variants(PlainArch, {"DistillationModel": DistillationModel, "RecModel": RecModel}),
    ]
    """Architecture of the model, its options and its initial weights."""
    AMP: engine.AMP | None = None
    """Settings of mixed precision; default: float32 without mixed precision."""
    EMA: engine.EMA | None = None
    """Settings of the moving average of the weights; default: no moving average."""
    LinearHead: head.LinearHead | None = None
    """Settings of a linear head that is fitted on the features of frozen weights; default: the run trains."""
    Loss: LossSection = LossSection()
    """Losses of training and evaluation; default: CELoss."""
    SSL: semi_supervised.SSL | None = None
    """Settings of semi-supervised training; default: training on labelled images only."""
    Optimizer: Annotated[optimizer.Optimizer, Tagged(OPTIMIZERS)]
    """Optimizer and learning rate schedule."""
    DataLoader: section.DataLoader = section.DataLoader()
    """Data sets of training and evaluation, and how they are loaded."""
    Infer: InferSection | None = None
    """Settings of prediction on files; needed only for prediction and export."""
    Metric: MetricSection = MetricSection()
    """Metrics of training and evaluation."""

    @field_validator("Optimizer", mode="before")
    @classmethod
    def _check_one_optimizer(cls, value: Any) -> Any:
        if isinstance(value, list):
            raise ValueError(
                "expected one optimizer for all parameters, got a list; use only the optimizer of the model. "
                "Only CenterLoss may have another one: SGD with ConstLR"
            )
        return value

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        problems = list(section_problems(self, self.facts))
        if problems:
            raise ValidationError.from_exception_data("Config", problems)
        return self

    def mark_from_paddleclas(self) -> None:
        """Notes that the config is a file of PaddleClas, so that warnings name differences in the results."""
        self._from_paddleclas = True

    @property
    def facts(self) -> RunFacts:
        """What the rules of components may know about the run."""
        amp = self.AMP
        arch = self.Arch
        data = self.DataLoader
        splits = data.splits
        return RunFacts(
            class_num=arch.class_num,
            architectures=tuple(model.name for model in arch.architectures),
            img_sizes=tuple(model.img_size for model in arch.architectures),
            patch_sizes=tuple(model.patch_size for model in arch.architectures),
            input_channels=arch.input_image_channel,
            device=self.Global.device,
            epochs=self.Global.epochs,
            evaluates=self.Global.eval_during_train,
            retrieval=self.Global.eval_mode == "retrieval",
            amp_level=amp.level if amp is not None and amp.use_amp else None,
            has_classes=arch.has_classes,
            embeds=arch.embeds,
            embedding_size=arch.embedding_size,
            trained_outputs=self.Loss.trained_outputs,
            models=arch.model_facts,
            student=arch.student,
            labels={place: split.dataset.labels for place, split in splits.items()},
            datasets={place: split.dataset.kind for place, split in splits.items()},
            label_shares=frozenset(
                place for place, split in splits.items() if split.dataset.has_label_shares
            ),
            random_labels=frozenset(
                place for place, split in splits.items() if split.dataset.drawn_label is not None
            ),
            from_paddleclas=self._from_paddleclas,
            mixed_by=data.mixed_by,
            rebalanced_by=data.rebalanced_by,
            weightings=tuple(text for loss in self.Loss.Train for text in loss.weightings),
            varying_batches=data.varying_batches,
            semi_supervised=self.SSL is not None,
            metrics={
                name: metric.maximum
                for metric in self.Metric.Eval
                for name in metric.all_names(arch.class_num)
            },
            use_multilabel=self.Global.use_multilabel,
            has_ema=self.EMA is not None,
            fits_head=self.LinearHead is not None,
        )

    _notes: tuple[str, ...] = PrivateAttr(())

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the log about the source of the config; empty for an ordinary file."""
        return self._notes

    def set_notes(self, notes: tuple[str, ...]) -> None:
        """Sets `notes`. They are no part of the settings: copies and dumps of the config do not have them."""
        self._notes = notes

    @property
    def key_warnings(self) -> list[str]:
        """A warning for each key that has no effect in this run, or a limited one."""
        return config_warnings(self)

    @property
    def used_splits(self) -> dict[str, section.Split]:
        """Data sets that a training run reads, by their keys in ``DataLoader``."""
        splits = self.DataLoader.splits
        evaluates = self.Global.eval_during_train
        return {place: split for place, split in splits.items() if evaluates or place == "Train"}

    @property
    def chains(self) -> dict[str, Sequence[Transform]]:
        """Lists of transforms that a training run and prediction use, by section, such as ``Infer``."""
        chains: dict[str, Sequence[Transform]] = {
            f"DataLoader.{place}": split.dataset.transform_ops for place, split in self.used_splits.items()
        }
        if self.Infer is not None:
            chains["Infer"] = self.Infer.transforms
        return chains

    @property
    def labelled_classes(self) -> int | None:
        """Number of classes of the training labels; None for identities, or if transforms draw the labels."""
        train = self.DataLoader.Train
        drawn = train is not None and train.dataset.drawn_label is not None
        return None if drawn else self.class_count(training=True)

    def class_count(self, *, training: bool) -> int | None:
        """Returns the number of classes of the labels; None if labels are identities with any numbers.

        Args:
            training: True for the labels of ``DataLoader.Train``, False for those of the evaluation data.
        """
        retrieval = self.Global.eval_mode == "retrieval" and not training
        return self.Arch.class_num if self.Arch.has_classes and not retrieval else None
