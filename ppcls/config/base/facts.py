"""What the rules of a component may know about the other sections of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ppcls.zoo import architecture

LabelsPerImage = Literal["one", "several"]


@dataclass(frozen=True)
class ModelFacts:
    """One of the models of a `DistillationModel`.

    Attributes:
        trainable: Whether the model is trained; a frozen model is a teacher.
        layers: Names of the layers whose outputs losses can use.
        attention_layers: Names of the layers that `AFDLoss` compares.
        attention_size: Length of the query and key vectors of `AFDLoss`; None if the model lists no layers.
    """

    trainable: bool
    layers: tuple[str, ...] = ()
    attention_layers: tuple[str, ...] = ()
    attention_size: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """What rules of a component may know about the other sections of a config.

    Attributes:
        class_num: Number of classes, ``Arch.class_num``.
        architectures: Names of all architectures of the model; several for a `DistillationModel`.
        img_sizes: ``Arch.img_size`` of each architecture; empty if none is set.
        patch_sizes: ``Arch.patch_size`` of each architecture; empty if none is set.
        input_channels: Number of channels of the images that the model expects.
        device: Device of the run, ``Global.device``.
        epochs: Number of epochs of the run.
        evaluates: Whether the run evaluates the model during training.
        retrieval: Whether the evaluation compares embeddings.
        amp_level: Level of mixed precision; None without mixed precision.
        has_classes: Whether the model returns the logits of classes. A RecModel without a Head does not.
        embeds: Whether the model returns embeddings, like a RecModel.
        embedding_size: Length of an embedding; None if the backbone determines it, or without embeddings.
        trained_outputs: Names of the model outputs that the losses of training use, such as ``logits``.
        models: The models of a `DistillationModel`, by name; empty for other models.
        student: Name of the model of a `DistillationModel` that is evaluated; "" for other models.
        labels: Number of labels per image of each data set, by its key, such as ``Train`` or ``Eval.Query``.
        datasets: Kind of each data set, such as ``ImageNetDataset``, by the same keys.
        label_shares: Keys of the data sets that compute the share of images that have each class.
        random_labels: Keys of the data sets whose labels a random transform determines.
        from_paddleclas: Whether the config is a file of PaddleClas, whose users expect PaddleClas's results.
        mixed_by: Batch transform that mixes the training images; "" without mixing.
        rebalanced_by: Sampler that draws the training classes with other frequencies; "" for none.
        weightings: Settings of ``Loss.Train`` that give classes different weights, as text.
        varying_batches: Sampler whose training batches have different numbers of images; "" for none.
        semi_supervised: Whether the run also trains on unlabelled images, with the section ``SSL``.
        metrics: Names of the values that ``Metric.Eval`` reports, and their maxima; None if unknown.
        use_multilabel: Whether the user states that images have several labels, ``Global.use_multilabel``.
        has_ema: Whether the run has a moving average of the weights, the section ``EMA``.
        fits_head: Whether the run only fits a linear head, which has no learning rate.
    """

    class_num: int
    architectures: tuple[str, ...]
    epochs: int
    evaluates: bool
    retrieval: bool
    amp_level: Literal["O1", "O2"] | None = None
    has_classes: bool = True
    embeds: bool = False
    embedding_size: int | None = None
    trained_outputs: frozenset[str] = frozenset()
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    student: str = ""
    labels: dict[str, LabelsPerImage] = field(default_factory=dict)
    datasets: dict[str, str] = field(default_factory=dict)
    label_shares: frozenset[str] = frozenset()
    random_labels: frozenset[str] = frozenset()
    from_paddleclas: bool = False
    img_sizes: tuple[int | None, ...] = ()
    patch_sizes: tuple[int | None, ...] = ()
    input_channels: int = 3
    device: Literal["auto", "gpu", "cpu"] = "auto"
    mixed_by: str = ""
    rebalanced_by: str = ""
    weightings: tuple[str, ...] = ()
    varying_batches: str = ""
    semi_supervised: bool = False
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    use_multilabel: bool = False
    has_ema: bool = False
    fits_head: bool = False

    def size_problems(self, size: tuple[int, int]) -> Iterator[str]:
        """Yields the reason for each architecture that does not accept images of this size.

        Args:
            size: Height and width in pixels.
        """
        unset = (None,) * len(self.architectures)
        options = zip(self.img_sizes or unset, self.patch_sizes or unset, strict=True)
        for name, (img_size, patch_size) in zip(self.architectures, options, strict=True):
            if text := architecture(name).size_problem(size, img_size, patch_size):
                yield text
