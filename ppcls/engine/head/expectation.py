"""Says whether a linear head or fine-tuning is expected to be better, before a run with few images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ppcls.commands import command_line
from ppcls.errors import counted
from ppcls.zoo import installed_models

# The study in docs/own-data.md: fine-tuning needs updates more than images. With 6 digits per class, a head
# had 0.88, fine-tuning 0.61 after 80 updates, and 0.95 and 0.88 (two seeds) after 400. Photographs resemble
# ImageNet, and half of those of the study are negatives, so 80 updates sufficed there.
ENOUGH_UPDATES = 300  # with which fine-tuning is expected to be better than a head
FIT_ROWS = 256  # rows of features, for the next figure
FIT_SECONDS = 0.25  # processor time of fitting a head on these rows, on a core of a server
FIT_EXPONENT = 1.3  # of the number of rows: 60, 320 and 1,158 digits took 0.1, 0.4 and 2.1 s
MOST_EPOCHS = 100  # of fine-tuning few images
_MOST_IMAGES = 20_000  # as for `Arch.pretrained: auto`; with more, fine-tuning is the usual choice
_EPOCHS = 20  # of fine-tuning after a head, if they have enough updates


@dataclass(frozen=True)
class Choice:
    """What a run does, and what it could do instead.

    Attributes:
        images: Number of training images.
        classes: Number of classes with training images.
        epochs: Number of epochs of the run.
        updates_per_epoch: Number of updates of an epoch of training.
        pretrained: Whether the run starts from pretrained weights.
        head: Whether the run fits only a head.
        output: Output folder of the run, which contains its config.
    """

    images: int
    classes: int
    epochs: int
    updates_per_epoch: int
    pretrained: bool
    head: bool
    output: Path

    def describe(self) -> Iterator[str]:
        """Yields the line for the log, with the command for the other choice; nothing for many images."""
        if not 0 < self.classes <= self.images <= _MOST_IMAGES:
            return
        epochs = self._enough_epochs() if self.head else self.epochs
        updates = epochs * self.updates_per_epoch
        number = f"{counted(updates, 'update')} ({counted(epochs, 'epoch')})"
        few = updates < ENOUGH_UPDATES
        verb = "are too few" if few else "suffice"
        reason = f"because {number} {verb} to adapt all layers (limit {ENOUGH_UPDATES})"
        if not self.pretrained:
            yield f"head or fine-tuning: {self._without_weights(number, few=few)}"
        elif self.head:
            here, when = (", as here,", "To compare afterwards") if few else ("", "Afterwards")
            better = "a head" if few else "fine-tuning"
            start = "" if few else ", start it from this head"
            yield (
                f"head or fine-tuning: {better}{here} is expected to be better, {reason}. {when}{start}: "
                f"{self._tune()}"
            )
        elif few:
            longer = self._enough_epochs()
            more = (
                f" They suffice with --epochs {longer}."
                if longer * self.updates_per_epoch >= ENOUGH_UPDATES
                else ""
            )
            yield (
                f"head or fine-tuning: a head is expected to be better, {reason}.{more} To compare: "
                f"{self._command('head', '--head')}"
            )
        else:
            yield (
                f"head or fine-tuning: fine-tuning, as here, is expected to be better, {reason}. For a "
                f"result within a minute or so: {self._command('head', '--head')}"
            )

    def _without_weights(self, number: str, *, few: bool) -> str:
        installed = next(iter(installed_models()), None)
        other = ["--model", "MODEL", "--pretrained", "FILE"] if installed is None else ["--model", installed]
        where = "" if installed is None else f", such as those of {installed}, which are installed"
        expected = ""
        if few:
            expected = f"; with weights{where}, a head is expected to be better, because {number} are too few"
        return (
            "a head needs the features of pretrained weights, and this run has none"
            f"{expected}. To fit a head: {self._command('head', '--head', *other)}"
        )

    def _enough_epochs(self) -> int:
        """Returns the number of epochs with which fine-tuning is expected to be better, within limits."""
        needed = math.ceil(ENOUGH_UPDATES / max(1, self.updates_per_epoch))
        return min(MOST_EPOCHS, max(_EPOCHS, needed))

    def _command(self, suffix: str, *options: str) -> str:
        output = self.output.with_name(f"{self.output.name}-{suffix}")
        return command_line("train", "-c", self.output / "config.yaml", *options, "--output", output)

    def _tune(self) -> str:
        epochs = str(self._enough_epochs())
        options = ["-o", "LinearHead=null", "--epochs", epochs, "--pretrained", str(self.output)]
        return self._command("tuned", *options)
