"""The base class of the section ``Arch``, which answers what other folders ask about a model of any kind.

There are three kinds: a classifier (`Arch`), an embedding model (`RecModel`) and several models for
distillation (`DistillationModel`). Other code uses the properties here instead of the type of the section.
The answers of several models are those of the student, unless the property says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ppcls.config.base.component import ModelFacts
from ppcls.config.base.fields import Section

if TYPE_CHECKING:
    from ppcls.arch.heads import MarginHead


class ModelSection(Section):
    """Base class of the section ``Arch``. The defaults are those of a model that consists of one network."""

    @property
    def embeds(self) -> bool:
        """Whether the model returns embeddings."""
        return False

    @property
    def embedding_size(self) -> int | None:
        """Length of an embedding; None if the backbone determines it, or for a classifier."""
        return None

    @property
    def has_classes(self) -> bool:
        """Whether the model returns the logits of classes in training."""
        return True

    @property
    def single_network(self) -> bool:
        """Whether the model is one network that returns logits, whose steps can be compiled and captured."""
        # Compiled and captured steps support neither several networks nor several tensors as outputs.
        return False

    @property
    def chooses_weights(self) -> bool:
        """Whether the run decides if it starts from published weights (``pretrained: auto``)."""
        return False

    @property
    def start_weights(self) -> str | None:
        """The file, folder or name of the weights of the whole model; None for random weights."""
        return None

    @property
    def backbone_weights(self) -> str | None:
        """The file, folder or name of the weights of only the backbone; None for random weights."""
        return None

    @property
    def student(self) -> str:
        """Name of the model that is evaluated, saved and exported; "" if there is only one model."""
        return ""

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the models that are trained together with the student."""
        return ()

    @property
    def margins(self) -> Mapping[str, MarginHead]:
        """Margin heads of all models, keyed by the name of the model output that contains their cosines."""
        return {}

    @property
    def model_facts(self) -> Mapping[str, ModelFacts]:
        """What losses and metrics may know about several models, by name; empty for a single model."""
        return {}

    def describe(self) -> str:
        """Returns the parts of the model as text for the log; "" if its name says all."""
        return ""
