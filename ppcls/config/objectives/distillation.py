"""Models that learn from each other: ``Arch.name: DistillationModel``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, InitErrorDetails, core_schema
from typing_extensions import Self

from ppcls.config.base.fields import ClassCountOrAuto, Count, Section, expected, problem
from ppcls.config.sections.model import Arch

_NAME = "AttentionModel"
_TRANSFORMS = ("LinearTransformTeacher", "LinearTransformStudent")
_SHAPES = ("t_shapes", "s_shapes")  # AFDLoss has them too


def plain_members(data: dict[str, Any]) -> dict[str, Any]:
    """Writes each ``AttentionModel`` of a ``DistillationModel`` as its backbone with the key ``attention``.

    The linear transforms are the loss's own layers here. Whether a backbone is frozen is said for all models
    at one place, ``freeze_params_list``.

    Args:
        data: The section; what in it is no such model, or not in this form, stays as it is.
    """
    models, flags = [], list(data.get("freeze_params_list") or [False] * len(data["models"]))
    for position, each in enumerate(data["models"]):
        plain = _plain(each)
        models.append(plain or each)
        if plain is not None and position < len(flags):
            ((_, keys),) = each.items()
            flags[position] = bool((keys.get("freeze_params_list") or [False])[0])
    return data if models == data["models"] else {**data, "models": models, "freeze_params_list": flags}


def _plain(model: Any) -> dict[str, Any] | None:
    """Returns ``{Name: keys of the backbone and its attention}``; None of what is no ``AttentionModel``."""
    if not isinstance(model, dict) or len(model) != 1:
        return None
    ((name, keys),) = model.items()
    if not isinstance(keys, dict) or keys.get("name") != _NAME or not isinstance(keys.get("models"), list):
        return None
    parts = [part for each in keys["models"] if isinstance(each, dict) for part in each.values()]
    if len(parts) != 2 or not all(isinstance(part, dict) for part in parts):
        return None
    backbone, transform = parts
    if transform.get("name") not in _TRANSFORMS:
        return None
    attention = {key: value for key, value in transform.items() if key not in ("name", *_SHAPES)}
    weights = (keys.get("pretrained_list") or [None])[0]
    given = {} if weights is None else {"pretrained": weights}
    return {name: {**backbone, **given, "attention": attention}}


_SHARED = ("class_num", "data_format", "input_image_channel")
STUDENT = "Student"


class MemberArch(Arch):
    """One of the models; what it leaves out of classes, layout and channels is as for all."""


class AttentionLayers(Section):
    """What of a model ``AFDLoss`` attends to; an ``AttentionModel``'s linear transform says it."""

    keys: tuple[str, ...] = Field(min_length=1, description="layers, as in return_patterns")
    qk_dim: Count = Field(128, description="numbers of a query or key")


class DistilledArch(MemberArch):
    """One of the models that learn from each other."""

    return_patterns: tuple[str, ...] = Field(
        (), description="layers whose outputs losses may be of, such as `blocks[2].conv1`"
    )
    attention: AttentionLayers | None = Field(None, description="for AFDLoss, which layers it is of")


@dataclass(frozen=True)
class NamedModel:
    """A list item ``{Name: keys of Arch}``."""

    name: str
    arch: DistilledArch

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> NamedModel:
            if isinstance(value, NamedModel):
                return value
            if not isinstance(value, dict) or len(value) != 1 or not isinstance(next(iter(value)), str):
                raise expected("one model as 'Name: keys of Arch'", value)
            ((name, keys),) = value.items()
            if name == "logits" or not name.isidentifier():
                text = "expected a name of letters and digits other than 'logits'"
                raise ValidationError.from_exception_data(name, [problem(text, name)])
            return cls(name, DistilledArch.model_validate(keys))

        def write(value: NamedModel) -> dict[str, Any]:
            return {value.name: value.arch.model_dump(mode="json")}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


class DistillationModel(Section):
    """Several models at once, of which one is evaluated, saved and exported: the student.

    Frozen ones, the teachers, are no part of checkpoints; training reads their weights anew.
    """

    name: Literal["DistillationModel"]
    class_num: ClassCountOrAuto = Field(1000, description="of all models")
    data_format: Literal["NCHW", "NHWC"] = Field("NCHW", description="of all models")
    input_image_channel: Count = Field(3, description="of all models")
    models: tuple[NamedModel, ...] = Field(
        min_length=2,
        description="each `Name: {…}` with the keys of Arch, a file as `pretrained`, and `return_patterns`: "
        "layers whose outputs losses may be of, such as `blocks[2].conv1`",
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
    def members(self) -> dict[str, DistilledArch]:
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
        default = STUDENT if STUDENT in learning or len(learning) != 1 else learning[0]
        return self.infer_model_name or self.infer_model_key or default

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of those that learn beside the student."""
        return tuple(each.name for each in self.models if each.name not in (*self.frozen, self.student))

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same models for images of another layout."""
        models = tuple(NamedModel(each.name, each.arch.with_data_format(data_format)) for each in self.models)
        return self.model_copy(update={"data_format": data_format, "models": models})

    @property
    def architectures(self) -> tuple[DistilledArch, ...]:
        """All models."""
        return tuple(self.members.values())

    @property
    def margin(self) -> None:
        """What a loss asks for beyond the best logit: nothing."""
        return None

    @property
    def exported(self) -> DistilledArch:
        """The student."""
        return self.members[self.student]

    def describe(self) -> str:
        """Says which model learns from which."""
        roles = {name: f"frozen, {self.initial_weights(name)}" for name in self.frozen}
        roles |= dict.fromkeys(self.peers, "learns") | {self.student: "learns, and is evaluated and saved"}
        return "; ".join(f"{name}: {arch.name}, {roles[name]}" for name, arch in self.members.items())

    def initial_weights(self, name: str) -> str | None:
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
        data = plain_members(data)
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
            if name in self.frozen and self.initial_weights(name) is None:
                text = "is frozen, and has nothing to teach; give the file of its weights as `pretrained`"
                yield problem(text, "models", position, name)
        learning = [name for name in self.members if name not in self.frozen]
        if not learning:
            yield problem("expected a model that learns, and all are frozen", "freeze_params_list")
        elif self.student not in learning:
            key = "infer_model_key" if self.infer_model_key is not None else "infer_model_name"
            yield problem(f"expected a model that learns: {' or '.join(learning)}", key)
