"""The section ``Arch`` for distillation with several models: ``Arch.name: DistillationModel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, InitErrorDetails, core_schema
from typing_extensions import Self

from ppcls.arch.heads import MarginHead
from ppcls.arch.rec_model import RecModel
from ppcls.arch.section import Arch, MemberArch, ModelSection
from ppcls.commands import set_keys
from ppcls.config.base.facts import ModelFacts, RunFacts
from ppcls.config.base.fields import ClassCountOrAuto, Width
from ppcls.config.base.problems import error_at, expected, problem
from ppcls.config.base.section import Section
from ppcls.config.base.tree import STUDENT, mapping_at

if TYPE_CHECKING:
    from paddle import nn

    from ppcls.arch.section import LoadBackbone

_ATTENTION_MODEL = "AttentionModel"
_TRANSFORMS = ("LinearTransformTeacher", "LinearTransformStudent")
_SHAPES = ("t_shapes", "s_shapes")  # dropped, because AFDLoss has the same keys
_SHARED = ("class_num", "data_format", "input_image_channel")


def plain_members(data: dict[str, Any]) -> dict[str, Any]:
    """Replaces each ``AttentionModel`` in a section with its backbone, and adds the key ``attention``.

    In PaddleClas, an ``AttentionModel`` contains linear transforms. In ppcls, they are part of the loss. The
    ``freeze_params_list`` of the model becomes an item of ``freeze_params_list`` in ``Arch``.

    Args:
        data: The section ``Arch``. Other models stay unchanged.

    Returns:
        The changed section, or ``data`` itself if it has no ``AttentionModel``.
    """
    models = []
    flags = list(data.get("freeze_params_list") or [False] * len(data["models"]))
    for position, model in enumerate(data["models"]):
        plain = _plain_member(model)
        models.append(plain or model)
        if plain is not None and position < len(flags):
            ((_, keys),) = model.items()
            flags[position] = bool((keys.get("freeze_params_list") or [False])[0])
    return data if models == data["models"] else {**data, "models": models, "freeze_params_list": flags}


def _rec_keys(model: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys that all embedding models share, from the head and the backbone of one model."""
    head = mapping_at(model, "Head")
    backbone = mapping_at(model, "Backbone")
    return {key: part[key] for key in _SHARED for part in (backbone, head) if key in part}


def _plain_member(model: Any) -> dict[str, Any] | None:
    """Returns ``{Name: keys of the backbone, with attention}``; None if it is no valid ``AttentionModel``."""
    if not isinstance(model, dict) or len(model) != 1:
        return None
    ((name, keys),) = model.items()
    if not isinstance(keys, dict) or keys.get("name") != _ATTENTION_MODEL:
        return None
    models = keys.get("models")
    items = [item for item in models if isinstance(item, dict)] if isinstance(models, list) else []
    parts = [part for item in items for part in item.values()]
    if len(parts) != 2 or not all(isinstance(part, dict) for part in parts):
        return None
    backbone, transform = parts
    if transform.get("name") not in _TRANSFORMS:
        return None
    attention = {key: value for key, value in transform.items() if key not in ("name", *_SHAPES)}
    weights = (keys.get("pretrained_list") or [None])[0]
    pretrained = {} if weights is None else {"pretrained": weights}
    return {name: {**backbone, **pretrained, "attention": attention}}


class AttentionLayers(Section):
    """Layers of a model that ``AFDLoss`` compares. An ``AttentionModel`` of PaddleClas sets these keys."""

    keys: tuple[str, ...] = Field(min_length=1)
    """Names of the layers, in the form of `return_patterns`."""
    qk_dim: Width = 128
    """Length of the query and key vectors of the attention."""


class DistilledRecModel(RecModel):
    """One of several embedding models. Losses can compare the outputs of its backbone and neck.

    `pretrained` of its backbone, or `pretrained_list`, sets the initial weights.
    """

    @property
    def return_patterns(self) -> tuple[str, ...]:
        """Names of layers whose outputs the losses can use."""
        return ("backbone",) if self.Neck is None else ("backbone", "neck")

    @property
    def attention(self) -> None:
        """None: AFDLoss does not support embedding models."""
        return None


class DistilledArch(MemberArch):
    """The keys of one model of a ``DistillationModel``."""

    return_patterns: tuple[str, ...] = ()
    """Names of layers whose outputs the losses use, such as `blocks[2].conv1`."""
    attention: AttentionLayers | None = None
    """Layers that AFDLoss compares; default: none."""


@dataclass(frozen=True)
class NamedModel:
    """Item of `DistillationModel.models`: ``{Name: keys of Arch}``.

    Attributes:
        name: Name of the model.
        arch: Architecture of the model, with its settings.
    """

    name: str
    arch: DistilledArch | DistilledRecModel

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> NamedModel:
            if isinstance(value, NamedModel):
                return value
            if not isinstance(value, dict) or len(value) != 1 or not isinstance(next(iter(value)), str):
                raise expected("one model as 'Name: keys of Arch'", value)
            ((name, keys),) = value.items()
            if name == "logits" or not name.isidentifier():
                raise error_at("expected a name of letters, digits and underscores other than 'logits'", name)
            embeds = isinstance(keys, dict) and keys.get("name") == "RecModel"
            return cls(name, (DistilledRecModel if embeds else DistilledArch).model_validate(keys))

        def write(value: NamedModel) -> dict[str, Any]:
            return {value.name: value.arch.model_dump(mode="json")}

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


class DistillationModel(ModelSection):
    """Several models for distillation. One of them, the student, is evaluated and exported.

    Checkpoints do not contain the frozen models (teachers). A resumed run reads their weights again.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "is_rec": "the models imply it",
        "infer_output_key": "the student determines it",
        "infer_add_softmax": "Infer.PostProcess determines the activation of the exported model",
    }
    name: Literal["DistillationModel"]
    """Selects this section. Must be `DistillationModel`."""
    class_num: ClassCountOrAuto = 1000
    """Number of classes of all models; `auto` counts them as in Arch."""
    data_format: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of the axes of images in all models: channels first (`NCHW`) or last (`NHWC`)."""
    input_image_channel: Width = Field(3)
    """Number of channels of the images of all models."""
    models: tuple[NamedModel, ...] = Field(min_length=2)
    """The models, one item `Name: {…}` per model. An item has the keys of Arch, including `pretrained` for
    initial weights, and `return_patterns`: names of layers whose outputs the losses use, such as
    `blocks[2].conv1`."""
    pretrained_list: tuple[str | None, ...] | None = None
    """One item per model: the file or name of its initial weights, or null for the value of `pretrained`.
    Default: `pretrained` of each model."""
    freeze_params_list: tuple[bool, ...] | None = None
    """For each model, True to freeze it (a teacher), or False to train it; default: all are trained."""
    infer_model_name: str | None = None
    """Name of the student; default: `Student`, or the only trainable model if it has another name."""
    infer_model_key: str | None = None
    """Alias of `infer_model_name`."""
    use_ssld: bool = False
    """Accepted for compatibility with PaddleClas; has no effect. Set `use_ssld` of each model."""

    @property
    def members(self) -> dict[str, DistilledArch | DistilledRecModel]:
        """All models, keyed by name."""
        return {model.name: model.arch for model in self.models}

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the frozen models."""
        flags = self.freeze_params_list or (False,) * len(self.models)
        return tuple(model.name for model, frozen in zip(self.models, flags, strict=True) if frozen)

    @property
    def student(self) -> str:
        """Name of the model that is evaluated, saved and exported."""
        trainable = [model.name for model in self.models if model.name not in self.frozen]
        default = STUDENT if STUDENT in trainable or len(trainable) != 1 else trainable[0]
        return self.infer_model_name or self.infer_model_key or default

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the trainable models except the student."""
        return tuple(model.name for model in self.models if model.name not in (*self.frozen, self.student))

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models of the config. For embedding models, these are their backbones."""
        return tuple(arch for member in self.members.values() for arch in member.architectures)

    @property
    def margins(self) -> dict[str, MarginHead]:
        """Margin heads, keyed by the name of the model output that contains their cosines."""
        heads = {name: head for name, arch in self.members.items() for head in arch.margins.values()}
        return {**heads, **self.inferred.margins}

    @property
    def embeds(self) -> bool:
        """Whether the student returns embeddings."""
        return self.inferred.embeds

    @property
    def embedding_size(self) -> int | None:
        """Length of the student's embeddings; None if the backbone determines it, or for a classifier."""
        return self.inferred.embedding_size

    @property
    def has_classes(self) -> bool:
        """Whether the student returns the logits of classes in training."""
        return self.inferred.has_classes

    @property
    def model_facts(self) -> dict[str, ModelFacts]:
        """What losses and metrics may know about the models, by name."""
        facts = {}
        for name, model in self.members.items():
            attention = model.attention
            facts[name] = ModelFacts(
                trainable=name not in self.frozen,
                layers=model.return_patterns,
                attention_layers=() if attention is None else attention.keys,
                attention_size=None if attention is None else attention.qk_dim,
            )
        return facts

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of the student."""
        position = list(self.members).index(self.student)
        for conflict in self.inferred.problems(facts, part):
            yield {**conflict, "loc": ("models", position, self.student, *conflict.get("loc", ()))}

    @property
    def inferred(self) -> DistilledArch | DistilledRecModel:
        """The section of the student."""
        return self.members[self.student]

    @property
    def exported(self) -> Arch:
        """The student, or its backbone if it is an embedding model."""
        return self.inferred.exported

    @property
    def start_weights(self) -> str | None:
        """The file or name of the student's initial weights; None for random weights."""
        return self.initial_weights(self.student)

    @property
    def backbone_weights(self) -> str | None:
        """The weights of the student's backbone; None for random weights, or for a classifier."""
        return self.inferred.backbone_weights

    @property
    def momentum_key(self) -> str:
        """Key of the config that sets the momentum of the student's BatchNorm."""
        position = list(self.members).index(self.student)
        path = f"Arch.models.{position}.{self.student}"
        return self.inferred.momentum_key.replace("Arch", path, 1)

    @property
    def teacher_weights(self) -> dict[str, str]:
        """The file, folder or name of the weights of each frozen classifier, by its name."""
        weights = {name: self.initial_weights(name) for name in self.frozen if not self.members[name].embeds}
        return {name: source for name, source in weights.items() if source is not None}

    def build(self, load_backbone: LoadBackbone | None = None) -> nn.Layer:
        """Returns the student, see `RecModel.build`."""
        return self.inferred.build(load_backbone)

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns a copy of this section with another data format in all models."""
        models = tuple(
            NamedModel(model.name, model.arch.with_data_format(data_format)) for model in self.models
        )
        return self.model_copy(update={"data_format": data_format, "models": models})

    def describe(self) -> str:
        """Returns the architecture and role of each model, for the log."""
        roles = {name: f"frozen, {self.initial_weights(name)}" for name in self.frozen}
        roles |= dict.fromkeys(self.peers, "trained") | {self.student: "trained, evaluated and saved"}
        return "; ".join(
            f"{name}: {arch.exported.name}, {roles[name]}" for name, arch in self.members.items()
        )

    def initial_weights(self, name: str) -> str | None:
        """Returns the file or name of the initial weights of a model; None for random weights."""
        position = list(self.members).index(name)
        listed = self.pretrained_list[position] if self.pretrained_list is not None else None
        return listed or self.members[name].start_weights

    @model_validator(mode="before")
    @classmethod
    def _share_keys(cls, data: Any) -> Any:
        """Copies the shared keys to all models, from the section or from the first model that has them."""
        if not isinstance(data, dict) or not isinstance(data.get("models"), list):
            return data
        data = plain_members(data)
        named = [item for item in data["models"] if isinstance(item, dict)]
        members = [keys for item in named for keys in item.values() if isinstance(keys, dict)]
        if embedding := next((keys for keys in members if keys.get("name") == "RecModel"), None):
            return {**data, **_rec_keys(embedding)}
        keyed = [data, *members]
        shared = {
            key: next(keys[key] for keys in keyed if key in keys)
            for key in _SHARED
            if any(key in keys for keys in keyed)
        }
        models = [
            {name: {**shared, **keys} if isinstance(keys, dict) else keys for name, keys in item.items()}
            if isinstance(item, dict)
            else item
            for item in data["models"]
        ]
        return {**data, **shared, "models": models}

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if problems := [*self._list_problems()] or [*self._model_problems()]:
            raise ValidationError.from_exception_data("Arch", problems)
        return self

    def _list_problems(self) -> Iterator[InitErrorDetails]:
        for key in ("pretrained_list", "freeze_params_list"):
            values = getattr(self, key)
            if values is not None and len(values) != len(self.models):
                yield problem(
                    f"expected {len(self.models)} items, one for each of Arch.models, got {len(values)}", key
                )
        if len(self.members) != len(self.models):
            yield problem("expected a different name for each model; rename some of them", "models")

    def _model_problems(self) -> Iterator[InitErrorDetails]:
        if len({isinstance(arch, RecModel) for arch in self.members.values()}) > 1:
            yield problem("expected only classifiers, or only embedding models (RecModel)", "models")
            return
        for position, (name, arch) in enumerate(self.members.items()):
            for key in _SHARED:
                if getattr(arch, key) != getattr(self, key):
                    text = f"expected {getattr(self, key)}, the value of Arch.{key}, got {getattr(arch, key)}"
                    yield problem(text, "models", position, name, key)
            if name in self.frozen and self.initial_weights(name) is None:
                weights = {f"Arch.models.{position}.{name}.pretrained": "FILE"}
                if isinstance(arch, RecModel):
                    weights = {"Arch.pretrained_list": "[FILE, null]"}
                text = "is frozen, but has no trained weights; set `pretrained` to a file, such as "
                text += set_keys(weights)
                yield problem(text, "models", position, name)
        trainable = [name for name in self.members if name not in self.frozen]
        if not trainable:
            text = "expected a trainable model, but all are frozen; set False for at least one model"
            yield problem(text, "freeze_params_list")
        elif self.student not in trainable:
            key = "infer_model_key" if self.infer_model_key is not None else "infer_model_name"
            yield problem(f"expected a trainable model: {' or '.join(trainable)}", key)


AnyArch: TypeAlias = Arch | RecModel | DistillationModel
"""Section `Arch` of a config. Its class depends on the key `name`."""
