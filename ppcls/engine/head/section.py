"""The section ``LinearHead``: a classifier that is fitted on the features of frozen weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Bound, Index
from ppcls.config.base.problems import problem
from ppcls.config.base.section import Section

_PASSES = 1_000  # number of images from which random views no longer helped in docs/own-data.md
_MOST_VIEWS = 4


class LinearHead(Section):
    """Fit the last linear layer of the model on the features of its frozen weights.

    The features of each image are computed once, and stored in a cache. The run has one epoch, and writes the
    same checkpoints and reports as a training run.
    """

    views: Index | None = None
    """Number of views of each training image with the random transforms of DataLoader.Train, in addition to
    the view with the transforms of DataLoader.Eval. Default: 4 for up to 250 images, fewer for more images,
    and 0 for more than 1,000 images."""
    folds: Annotated[int, Bound(ge=2, le=20)] = 5
    """Number of parts of the cross-validation that chooses the strength of the regularization."""
    cache: bool = True
    """Store features in `$PPCLS_HOME/features` or `~/.paddleclas/features`, and use stored features. They
    depend on the content of the image, the transforms and the weights."""

    def count_views(self, images: int) -> int:
        """Returns the number of random views of each image.

        Args:
            images: Number of training images, > 0.
        """
        if self.views is not None:
            return self.views
        return min(_MOST_VIEWS, _PASSES // images)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the parts of a run that a linear head does not support."""
        yield from super().problems(facts, part)
        if facts.embeds or facts.student or facts.models:
            yield problem("a linear head needs a classifier, not RecModel or DistillationModel; remove it")
        if facts.semi_supervised:
            yield problem("a linear head does not use unlabelled images; remove SSL, or this section")
        if facts.random_labels:
            yield problem("a linear head needs labels, which CustomLabelDataset does not have; remove it")
        if facts.epochs != 1:
            yield problem(
                f"a linear head is fitted in one epoch: expected Global.epochs 1, got {facts.epochs}; set it "
                "to 1 (remove --epochs)"
            )
