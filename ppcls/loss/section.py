"""The section ``Loss`` of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from pydantic_core import InitErrorDetails

from ppcls.config.base.choices import Keyed
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.problems import problem
from ppcls.config.base.section import Section
from ppcls.loss.base import Loss
from ppcls.loss.classification import CELoss
from ppcls.outputs import AUXILIARY
from ppcls.registry import LOSSES


class LossSection(Section):
    """Losses of training and evaluation. The total loss is the weighted sum of the losses in a list."""

    Train: tuple[Annotated[Loss, Keyed(LOSSES)], ...] = Field((CELoss(),), min_length=1)
    """Losses of training; default: CELoss."""
    Eval: tuple[Annotated[Loss, Keyed(LOSSES)], ...] = Field((CELoss(),), min_length=1)
    """Losses of evaluation; default: CELoss."""

    @property
    def trained_outputs(self) -> frozenset[str]:
        """Names of the model outputs that the losses of training use."""
        return frozenset(name for loss in self.Train for name in loss.outputs)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields parts of the model that no loss of training uses.

        They would stay random, and ranks could not exchange their gradients.
        """
        if facts.architectures == ("GoogLeNet",) and not self.trained_outputs.issuperset(AUXILIARY):
            text = "the auxiliary classifiers of GoogLeNet need GoogLeNetLoss; add it"
            yield problem(text, "Train")
        taught = {name for loss in self.Train for name in loss.learners(facts.student)}
        for name, model in facts.models.items():
            if model.trainable and name not in taught:
                text = f"{name!r} is trainable but receives no gradient; add a loss for it, or freeze it"
                yield problem(text, "Train")
