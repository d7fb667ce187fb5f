"""The base class of components, and what their rules may know about the rest of the run.

Decisions:
- A component is one class. Its fields are its keys in YAML, its validators and `Section.problems` are its
  rules, and ``build`` makes the object that runs. Built-in components and users' own share the base classes.
- A subclass registers itself. There is no table of names, so a new component is one class in one file.
- Paddle is imported inside ``build``, because a config is checked before Paddle is imported: Paddle reads the
  number of threads and its share of GPU memory when it is imported.
- A rule about other sections reads `RunFacts`, not these sections. Components of different kinds therefore do
  not import each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic_core import InitErrorDetails

from ppcls.config.base.fields import Section, Spec, located
from ppcls.registry import Registry
from ppcls.zoo import architecture

LabelsPerImage = Literal["one", "several"]
Location: TypeAlias = tuple[int | str, ...]


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
        varying_batches: Sampler whose training batches have different numbers of images; "" for none.
        semi_supervised: Whether the run also trains on unlabelled images, with the section ``SSL``.
        metrics: Names of the values that ``Metric.Eval`` reports.
        use_multilabel: Whether the user states that images have several labels, ``Global.use_multilabel``.
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
    input_channels: int = 3
    device: Literal["auto", "gpu", "cpu"] = "auto"
    mixed_by: str = ""
    varying_batches: str = ""
    semi_supervised: bool = False
    metrics: tuple[str, ...] = ()
    use_multilabel: bool = False

    def size_problems(self, size: tuple[int, int]) -> Iterator[str]:
        """Yields the reason for each architecture that does not accept images of this size.

        Args:
            size: Height and width in pixels.
        """
        img_sizes = self.img_sizes or (None,) * len(self.architectures)
        for name, img_size in zip(self.architectures, img_sizes, strict=True):
            if text := architecture(name).size_problem(size, img_size):
                yield text


class Component(Spec):
    """Base class of config sections that YAML selects by their class names, such as losses and samplers.

    The base class of a kind names its registry: ``class Loss(Component, registry=LOSSES)``. Each other
    subclass registers itself under its name, unless it is the base class of several components:
    ``abstract=True``.

    Attributes:
        registry: All components of this kind, by name.
        aliases: More names that select the component. Subclasses do not inherit them.
    """

    registry: ClassVar[Registry]
    aliases: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def registered_name(cls) -> str:
        """Returns the name of the component in YAML: the name of the class."""
        return cls.__name__

    @property
    def kind(self) -> str:
        """Name of the component in YAML."""
        return self.registered_name()

    def __init_subclass__(
        cls, *, registry: Registry | None = None, abstract: bool = False, **config: Any
    ) -> None:
        super().__init_subclass__(**config)
        if registry is not None:
            cls.registry = registry

    @classmethod
    def __pydantic_init_subclass__(
        cls, *, registry: Registry | None = None, abstract: bool = False, **config: Any
    ) -> None:
        # Here the class is complete. A class whose fields are invalid must not be registered.
        super().__pydantic_init_subclass__(**config)
        if registry is None and not abstract:
            for name in (cls.registered_name(), *cls.__dict__.get("aliases", ())):
                cls.registry.register(name, cls)


def find_sections(section: Section, loc: Location = ()) -> Iterator[tuple[Location, str, Section]]:
    """Yields each section in a section: its location, ``part`` and the section itself.

    See `Section.problems` for ``part``.

    Args:
        section: A section of the config.
        loc: Location of the section.
    """
    for key, value in section:
        items: list[tuple[Location, Any]] = [((*loc, key), value)]
        part = loc[1:]
        if isinstance(value, tuple):
            specs = [(position, item) for position, item in enumerate(value) if isinstance(item, Spec)]
            items = [((*loc, key, position, item.kind), item) for position, item in specs]
            part = (*loc, key)[1:]
        for where, item in items:
            if isinstance(item, Section):
                yield where, ".".join(map(str, part)), item
                yield from find_sections(item, where)


def section_problems(section: Section, facts: RunFacts) -> Iterator[InitErrorDetails]:
    """Yields the `Section.problems` of all sections in a config."""
    for loc, part, item in find_sections(section):
        yield from located(item.problems(facts, part), *loc)
