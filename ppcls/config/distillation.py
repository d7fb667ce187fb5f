"""Models that learn from each other: ``Arch.name: DistillationModel``, its losses and its metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, InitErrorDetails, core_schema
from typing_extensions import Self

from ppcls.config.fields import Count, Decay, Number, Positive, Section, expected, problem
from ppcls.config.model import Arch
from ppcls.config.multi_label import MultiLabelLoss
from ppcls.config.objective import CELoss, Labels, LossSpec, TopkAcc
from ppcls.config.sections import Loss, Metric

_SHARED = ("class_num", "data_format", "input_image_channel")
_STUDENT = "Student"


class Member(Arch):
    """One of the models; what it leaves out of classes, layout and channels is as for all."""


@dataclass(frozen=True)
class Named:
    """A list item ``{Name: keys of Arch}``."""

    name: str
    arch: Member

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Named:
            if isinstance(value, Named):
                return value
            if not isinstance(value, dict) or len(value) != 1 or not isinstance(next(iter(value)), str):
                raise expected("one model as 'Name: keys of Arch'", value)
            ((name, keys),) = value.items()
            if name == "logits" or not name.isidentifier():
                text = "expected a name of letters and digits other than 'logits'"
                raise ValidationError.from_exception_data(name, [problem(text, name)])
            return cls(name, Member.model_validate(keys))

        def write(value: Named) -> dict[str, Any]:
            return {value.name: value.arch.model_dump(mode="json")}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


class DistillationModel(Section):
    """Several models at once, of which one is evaluated, saved and exported: the student.

    Frozen ones, the teachers, are no part of checkpoints; training reads their weights anew.
    """

    name: Literal["DistillationModel"]
    class_num: Count = Field(1000, description="of all models")
    data_format: Literal["NCHW", "NHWC"] = Field("NCHW", description="of all models")
    input_image_channel: Count = Field(3, description="of all models")
    models: tuple[Named, ...] = Field(
        min_length=2, description="each `Name: {…}` with the keys of Arch, and a file as `pretrained`"
    )
    pretrained_list: tuple[str | None, ...] | None = Field(
        None, description="instead of `pretrained`: a file, or null, for each model"
    )
    freeze_params_list: tuple[bool, ...] | None = Field(
        None, description="for each model, whether it stays as it is; by default none does"
    )
    infer_model_name: str | None = Field(
        None, description="the student; by default the model that is called so, or the only one that learns"
    )
    infer_model_key: str | None = Field(None, description="infer_model_name by its other name")
    use_ssld: bool = Field(False, description="read for PaddleClas; each model says it of its own weights")

    @property
    def members(self) -> dict[str, Member]:
        """The models by name."""
        return {each.name: each.arch for each in self.models}

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of those that stay as they are."""
        flags = self.freeze_params_list or (False,) * len(self.models)
        return tuple(each.name for each, frozen in zip(self.models, flags, strict=True) if frozen)

    @property
    def student(self) -> str:
        """The name of the model that is evaluated, saved and exported."""
        learning = [each.name for each in self.models if each.name not in self.frozen]
        default = _STUDENT if _STUDENT in learning or len(learning) != 1 else learning[0]
        return self.infer_model_name or self.infer_model_key or default

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of those that learn beside the student."""
        return tuple(each.name for each in self.models if each.name not in (*self.frozen, self.student))

    def in_layout(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same models for images of another layout."""
        models = tuple(Named(each.name, each.arch.in_layout(data_format)) for each in self.models)
        return self.model_copy(update={"data_format": data_format, "models": models})

    @property
    def each(self) -> tuple[Member, ...]:
        """All models."""
        return tuple(self.members.values())

    @property
    def margin(self) -> None:
        """What a loss asks for beyond the best logit: nothing."""
        return None

    @property
    def inferred(self) -> Member:
        """The student."""
        return self.members[self.student]

    def describe(self) -> str:
        """Says which model learns from which."""
        roles = {name: f"frozen, {self.weights_of(name)}" for name in self.frozen}
        roles |= dict.fromkeys(self.peers, "learns") | {self.student: "learns, and is evaluated and saved"}
        return "; ".join(f"{name}: {arch.name}, {roles[name]}" for name, arch in self.members.items())

    def weights_of(self, name: str) -> str | None:
        """Returns the file that a model starts from; None for fresh weights."""
        position = list(self.members).index(name)
        listed = self.pretrained_list[position] if self.pretrained_list is not None else None
        return listed or self.members[name].weights

    @model_validator(mode="before")
    @classmethod
    def _share(cls, data: Any) -> Any:
        """Has what is given for all hold for each, and what a model gives hold for all."""
        if not isinstance(data, dict) or not isinstance(data.get("models"), list):
            return data
        given = [keys for each in data["models"] if isinstance(each, dict) for keys in each.values()]
        given = [keys for keys in given if isinstance(keys, dict)]
        shared = {
            key: next(keys[key] for keys in (data, *given) if key in keys)
            for key in _SHARED
            if any(key in keys for keys in (data, *given))
        }
        models = [
            {name: {**shared, **keys} if isinstance(keys, dict) else keys for name, keys in each.items()}
            if isinstance(each, dict)
            else each
            for each in data["models"]
        ]
        return {**data, **shared, "models": models}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if problems := [*self._list_problems()] or [*self._model_problems()]:
            raise ValidationError.from_exception_data("Arch", problems)
        return self

    def _list_problems(self) -> Iterator[InitErrorDetails]:
        for key in ("pretrained_list", "freeze_params_list"):
            given = getattr(self, key)
            if given is not None and len(given) != len(self.models):
                yield problem(f"expected one for each of {len(self.models)} models, got {len(given)}", key)
        if len(self.members) != len(self.models):
            yield problem("expected a name of its own for each model", "models")

    def _model_problems(self) -> Iterator[InitErrorDetails]:
        for position, (name, arch) in enumerate(self.members.items()):
            for key in _SHARED:
                if getattr(arch, key) != getattr(self, key):
                    text = f"expected {getattr(self, key)}, as Arch.{key}, got {getattr(arch, key)}"
                    yield problem(text, "models", position, name, key)
            if name in self.frozen and self.weights_of(name) is None:
                text = "is frozen, and has nothing to teach; give the file of its weights as `pretrained`"
                yield problem(text, "models", position, name)
        learning = [name for name in self.members if name not in self.frozen]
        if not learning:
            yield problem("expected a model that learns, and all are frozen", "freeze_params_list")
        elif self.student not in learning:
            key = "infer_model_key" if self.infer_model_key is not None else "infer_model_name"
            yield problem(f"expected a model that learns: {' or '.join(learning)}", key)


class DistillationSpec(LossSpec):
    """A loss of some of ``Arch.models``."""

    of_models: ClassVar[bool] = True
    key: Literal["logits", "output"] | None = Field(
        None, description="read for PaddleClas: losses are of the logits"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models that it is about."""
        raise NotImplementedError(f"{self.kind} names no models")


class _OfModels(DistillationSpec):
    model_names: tuple[str, ...] = Field(min_length=1, description="whose loss is added up")

    @property
    def names(self) -> tuple[str, ...]:
        return self.model_names


class _OfPairs(DistillationSpec):
    model_name_pairs: tuple[tuple[str, str], ...] = Field(
        min_length=1, description="each [who learns, from whom]; their losses are added up"
    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for pair in self.model_name_pairs for name in pair)


class DistillationGTCELoss(_OfModels):
    """Cross-entropy of models with the labels, as ``CELoss``."""

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = Field(None, description="label smoothing")

    @property
    def loss(self) -> CELoss:
        """What it is of each model."""
        return CELoss(epsilon=self.epsilon)


class DistillationMultiLabelLoss(_OfModels, MultiLabelLoss):
    """``MultiLabelLoss`` of models."""

    @property
    def loss(self) -> MultiLabelLoss:
        """What it is of each model."""
        return MultiLabelLoss(epsilon=self.epsilon, size_sum=self.size_sum, weight_ratio=self.weight_ratio)


class DistillationCELoss(_OfPairs):
    """Cross-entropy with the other model's softmax."""

    epsilon: Decay | None = Field(None, description="smoothing of that softmax")


class DistillationKLDivLoss(_OfPairs):
    """Divergence from the other model's softmax, at a temperature (Hinton et al. 2015)."""

    temperature: Positive = Field(4.0, description="logits are divided by it; higher is softer")


class DistillationDMLLoss(_OfPairs):
    """Divergence in both directions: both learn, if neither is frozen (Zhang et al. 2018)."""

    act: Literal["softmax", "sigmoid"] = "softmax"
    weight_ratio: bool = Field(False, description="weigh labels as MultiLabelLoss does")
    sum_across_class_dim: bool = Field(False, description="multiply by the number of classes")


class DistillationDKDLoss(_OfPairs):
    """Divergence, that of the label's class and that among the others apart (Zhao et al. 2022)."""

    labels: ClassVar[Labels] = "one"
    temperature: Positive = 1.0
    alpha: Number = Field(1.0, description="weight of the label's class against the others")
    beta: Number = Field(1.0, description="weight of the others among each other")
    use_target_as_gt: bool = Field(
        False, description="take the other model's best class for the label (PaddleClas's own name)"
    )


class DistillationTopkAcc(TopkAcc):
    """``TopkAcc`` of one of the models; in evaluation that is the student."""

    of_models: ClassVar[bool] = True
    model_key: str = Field(description="name of the model")

    @property
    def names(self) -> tuple[str, ...]:
        """As those of `TopkAcc`; of others than the student with their name."""
        plain = super().names
        return plain if self.model_key == _STUDENT else tuple(f"{self.model_key}_{each}" for each in plain)


def distillation_problems(arch: Section, loss: Loss, metric: Metric) -> Iterator[InitErrorDetails]:
    """Yields what losses and metrics of several models don't find in the model."""
    found = arch if isinstance(arch, DistillationModel) else None
    places = [
        ((section, split, position, spec.kind), spec)
        for section, specs in (("Loss", loss), ("Metric", metric))
        for split in ("Train", "Eval")
        for position, spec in enumerate(getattr(specs, split))
    ]
    for where, spec in places:
        if not isinstance(spec, (DistillationSpec, DistillationTopkAcc)):
            continue
        names = spec.names if isinstance(spec, DistillationSpec) else (spec.model_key,)
        if found is None:
            yield problem("is of several models; expected Arch.name: DistillationModel", *where)
        elif unknown := [name for name in names if name not in found.members]:
            known = ", ".join(found.members)
            yield problem(f"there is no model {unknown[0]!r} in Arch.models; expected {known}", *where)
        elif where[1] == "Eval" and (isinstance(spec, _OfPairs) or set(names) != {found.student}):
            yield problem(
                f"evaluation is of {found.student!r} alone; expected a loss or metric of it", *where
            )
    if found is None:
        return
    taught = {name for _, spec in places if isinstance(spec, DistillationSpec) for name in spec.names}
    if any(not isinstance(each, DistillationSpec) for each in loss.Train):
        taught.add(found.student)
    for name in (found.student, *found.peers):
        if name not in taught:
            text = f"{name!r} learns, and no loss is of it; name it in one, or freeze it"
            yield problem(text, "Loss", "Train")
