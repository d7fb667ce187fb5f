"""Losses with trainable layers.

The trainable layers are sublayers of the student, so that the optimizer trains them together with the model
and checkpoints contain them. Their names, such as ``loss1``, come from `ppcls.loss.base.learned_losses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.facts import ModelFacts, RunFacts
from ppcls.config.base.fields import ClassCount, Count, Decay, NonNegative, Positive
from ppcls.config.base.problems import problem
from ppcls.loss.base import ClassStatistics, Criterion
from ppcls.loss.distillation import DistillationLoss, ModelPairLoss
from ppcls.loss.embedding import EmbeddingLoss
from ppcls.outputs import layer_output_name

if TYPE_CHECKING:
    from paddle import nn

    from ppcls.loss.layers import AttentionTransfer, CenterDistance, FeaturePairLoss

LayerShape = tuple[Count, Count, Count]  # [channels, height, width]


class LearnedDistillationLoss(DistillationLoss, abstract=True):
    """Base class of distillation losses with trainable layers.

    The network for distillation calls the layers in its forward pass, because ranks exchange only the
    gradients of parameters that the forward pass uses. Its output contains the cost per image, [B].
    """

    has_weights: ClassVar[bool] = True

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the mean of the cost per image; see `Loss.build_term`."""
        return lambda outputs, _: outputs[name].mean()


class DistillationPairLoss(LearnedDistillationLoss, ModelPairLoss):
    """A loss that compares one layer of each model, with additional trainable layers.

    The trainable layers are not part of the student. ``MGDLoss`` removes some channels of the student's
    features and predicts the teacher's features from the remaining channels (Yang et al. 2022, "Masked
    Generative Distillation"). ``PEFDLoss`` is one minus the cosine between the teacher's features and the
    mean of several projections of the student's features (Chen et al. 2022, "Projector Ensemble").
    """

    base_loss_name: Literal["MGDLoss", "PEFDLoss"]
    """Loss that compares the layers."""
    name: str | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""
    s_key: str | None = None
    """Name of the layer of the learner. Set either `s_key` or `s_keys`."""
    t_key: str | None = None
    """Name of the layer of the teacher. Set either `t_key` or `t_keys`."""
    s_keys: tuple[str] | None = None
    """List with the name of the layer of the learner. Set either `s_key` or `s_keys`."""
    t_keys: tuple[str] | None = None
    """List with the name of the layer of the teacher. Set either `t_key` or `t_keys`."""
    student_channels: Count | None = None
    """Number of channels of the learner's layer. Set either `student_channels` or `student_channel`."""
    teacher_channels: Count | None = None
    """Number of channels of the teacher's layer. Set either `teacher_channels` or `teacher_channel`."""
    student_channel: Count | None = None
    """Alias of `student_channels`."""
    teacher_channel: Count | None = None
    """Alias of `teacher_channels`."""
    alpha_mgd: Positive = 1.756
    """Factor of MGDLoss."""
    lambda_mgd: Decay = 0.15
    """Share of the channels that MGDLoss removes, 0 to 1."""
    num_projectors: Count = 3
    """Number of projections of PEFDLoss."""

    @property
    def keys(self) -> tuple[str, str]:
        """Names of the layers of the learner and of the teacher."""
        one = self.s_key or (self.s_keys or ("",))[0]
        other = self.t_key or (self.t_keys or ("",))[0]
        return one, other

    @property
    def channels(self) -> tuple[int, int]:
        """Numbers of channels of the layers of the learner and of the teacher."""
        one = self.student_channels or self.student_channel
        other = self.teacher_channels or self.teacher_channel
        assert one is not None  # by _check_both
        assert other is not None
        return one, other

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        problems = [
            problem(f"expected either {name} or {other}, and not both", name)
            for name, other in (
                ("s_key", "s_keys"),
                ("t_key", "t_keys"),
                ("student_channels", "student_channel"),
                ("teacher_channels", "teacher_channel"),
            )
            if (getattr(self, name) is None) == (getattr(self, other) is None)
        ]
        if problems:
            raise ValidationError.from_exception_data("pair", problems)
        return self

    def layers(self, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
        """Yields the layer of each model of each pair; see `Loss.layers`."""
        for pair in self.model_name_pairs:
            yield from zip(pair, self.keys, strict=True)

    def build_layer(self, models: Mapping[str, ModelFacts]) -> FeaturePairLoss:
        """Returns a layer that maps the outputs of all models to the cost per image, [B] float32."""
        from ppcls.loss.layers import MaskedGeneration, ProjectorEnsemble

        learner_key, teacher_key = self.keys
        pairs = [
            (layer_output_name(one, learner_key), layer_output_name(other, teacher_key))
            for one, other in self.model_name_pairs
        ]
        if self.base_loss_name == "MGDLoss":
            return MaskedGeneration(pairs, *self.channels, self.lambda_mgd, self.alpha_mgd)
        return ProjectorEnsemble(pairs, *self.channels, self.num_projectors)


class AFDLoss(LearnedDistillationLoss):
    """Attention-based feature distillation (Ji et al. 2021), which learns which pairs of layers to compare.

    The trainable layers of the loss are not part of the student. The key ``attention`` of each model, or its
    ``AttentionModel``, lists the layers.
    """

    model_name_pair: tuple[str, str] = ("Student", "Teacher")
    """Pair [learner, teacher] of model names."""
    student_keys: tuple[Literal["bilinear_key"], Literal["value"]] = ("bilinear_key", "value")
    """Accepted for compatibility with PaddleClas; has no effect."""
    teacher_keys: tuple[Literal["query"], Literal["value"]] = ("query", "value")
    """Accepted for compatibility with PaddleClas; has no effect."""
    s_shapes: tuple[LayerShape, ...] = Field(min_length=1)
    """Output shape [channels, height, width] of each layer of the learner."""
    t_shapes: tuple[LayerShape, ...] = Field(min_length=1)
    """Output shape [channels, height, width] of each layer of the teacher."""
    qk_dim: Count = 128
    """Length of the query and key vectors of the attention. Must equal `qk_dim` of both models."""
    name: str | None = None
    """Accepted for compatibility with PaddleClas; has no effect."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of both models."""
        return self.model_name_pair

    def learners(self, student: str) -> tuple[str, ...]:
        """Returns the name of the learner; see `Loss.learners`."""
        return self.model_name_pair[:1]

    def layers(self, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
        """Yields the layers of both models that their key ``attention`` lists; see `Loss.layers`."""
        for name, shapes in zip(self.model_name_pair, (self.s_shapes, self.t_shapes), strict=True):
            model = models[name]
            if model.attention_size is None:
                raise ValueError(
                    f"the model {name} has no layers for this loss; list them in the key 'attention' of this "
                    "model (Arch.models)"
                )
            if len(model.attention_layers) != len(shapes):
                raise ValueError(
                    f"expected {len(model.attention_layers)} shapes for {name}, got {len(shapes)}"
                )
            if model.attention_size != self.qk_dim:
                raise ValueError(
                    f"qk_dim is {self.qk_dim}, but attention.qk_dim of {name} is {model.attention_size}; "
                    "set both to the same value"
                )
            yield from ((name, layer) for layer in model.attention_layers)

    def build_layer(self, models: Mapping[str, ModelFacts]) -> AttentionTransfer:
        """Returns a layer that maps the outputs of both models to the cost per image, [B] float32."""
        from ppcls.loss.layers import AttentionTransfer

        learner, teacher = (
            [layer_output_name(name, layer) for layer in models[name].attention_layers]
            for name in self.model_name_pair
        )
        return AttentionTransfer(learner, teacher, self.s_shapes, self.t_shapes, self.qk_dim)


class CenterLoss(EmbeddingLoss):
    """Center loss (Wen et al. 2016): mean squared distance between embeddings and learned class centers.

    SGD with a constant learning rate updates the centers, independently of the optimizer of the model. Use
    this loss in `Loss.Train` only, together with a loss of classes.
    """

    has_weights: ClassVar[bool] = True
    num_classes: ClassCount
    """Number of centers. Must equal the number of classes."""
    feat_dim: Count
    """Length of the embeddings."""
    feature_from: Literal["features", "backbone"] = "features"
    """Vector that the loss uses: the embedding (`features`), or the input of Neck (`backbone`)."""
    center_rate: NonNegative = 1000.0
    """Learning rate of the centers. It multiplies the gradient of the weighted loss. To use the rate r with
    the gradient of the unweighted loss, set `center_rate` to r divided by `weight`."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the output with the vectors that the loss uses."""
        return (self.feature_from,)

    def build_layer(self, models: Mapping[str, ModelFacts]) -> CenterDistance:
        """Returns a layer that maps embeddings, [B, feat_dim], and labels to the mean distance."""
        from ppcls.loss.layers import CenterDistance

        return CenterDistance(self.num_classes, self.feat_dim, self.center_rate)

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the distance that the sublayer ``name`` of ``model`` computes; see `Loss.build_term`."""
        return lambda outputs, label: getattr(model, name)(outputs[self.feature_from], label)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts with evaluation, mixed precision, and the sizes of the model."""
        yield from super().problems(facts, part)
        if part == "Eval":
            yield problem("supported only in Loss.Train, where the centers are learned; remove it")
        if part == "Train" and facts.amp_level == "O2":
            yield problem("the centers need float32; expected AMP.level: O1, got O2")
        if not facts.embeds or not facts.has_classes:
            return
        if self.num_classes != facts.class_num:
            text = f"expected {facts.class_num}, the value in Arch, got {self.num_classes}"
            yield problem(text, "num_classes")
        # The backbone determines the length of its vectors, so that the layer checks it in the first step.
        if self.feature_from == "features" and self.feat_dim != facts.embedding_size:
            text = f"expected {facts.embedding_size}, the value in Arch, got {self.feat_dim}"
            yield problem(text, "feat_dim")
