"""Says whether a linear head or fine-tuning is expected to be better, before a run with few images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ppcls.commands import command_line
from ppcls.zoo import installed_models

# The study in docs/own-data.md: with 6 digits per class, the head was better by 0.2, and with 60, fine-tuning
# by 0.05. Photographs resemble ImageNet, and half of those of the study are negatives, so 4 sufficed there.
FEW = 20  # training images per class below which a head is expected to be better
_MOST_IMAGES = 20_000  # as for `Arch.pretrained: auto`; with more, fine-tuning is the usual choice
_EPOCHS = 20  # of fine-tuning after a head


@dataclass(frozen=True)
class Choice:
    """What a run does, and what it could do instead.

    Attributes:
        images: Number of training images.
        classes: Number of classes with training images.
        pretrained: Whether the run starts from pretrained weights.
        head: Whether the run fits only a head.
        output: Output folder of the run, which contains its config.
    """

    images: int
    classes: int
    pretrained: bool
    head: bool
    output: Path

    def describe(self) -> Iterator[str]:
        """Yields the line for the log, with the command for the other choice; nothing for many images."""
        if not 0 < self.classes <= self.images <= _MOST_IMAGES:
            return
        per_class = self.images / self.classes
        number = f"{per_class:.3g} training images per class"
        few = per_class < FEW
        if not self.pretrained:
            installed = next(iter(installed_models()), None)
            reason = "a head needs the features of pretrained weights, and this run has none"
            other = (
                ["--model", installed]
                if installed is not None
                else ["--model", "MODEL", "--pretrained", "FILE"]
            )
            where = f", such as those of {installed}, which are installed" if installed is not None else ""
            expected = f"; with weights{where}, a head is expected to be better" if few else ""
            yield (
                f"head or fine-tuning: {reason}{expected} ({number}). To fit a head: "
                f"{self._command('head', '--head', *other)}"
            )
        elif few and not self.head:
            yield (
                f"head or fine-tuning: a head is expected to be better, because {number} are few to "
                f"adapt all layers (limit {FEW}). To compare: {self._command('head', '--head')}"
            )
        elif few:
            yield (
                f"head or fine-tuning: a head, as here, is expected to be better, because {number} are few "
                f"to adapt all layers (limit {FEW}). To compare afterwards: {self._tune()}"
            )
        elif self.head:
            yield (
                f"head or fine-tuning: fine-tuning is expected to be better, because {number} suffice to "
                f"adapt all layers (limit {FEW}). Afterwards, start it from this head: {self._tune()}"
            )
        else:
            yield (
                f"head or fine-tuning: fine-tuning, as here, is expected to be better, because {number} "
                f"suffice to adapt all layers (limit {FEW}). For a result within a minute or so: "
                f"{self._command('head', '--head')}"
            )

    def _command(self, suffix: str, *options: str) -> str:
        output = self.output.with_name(f"{self.output.name}-{suffix}")
        return command_line("train", "-c", self.output / "config.yaml", *options, "--output", output)

    def _tune(self) -> str:
        options = ["-o", "LinearHead=null", "--epochs", str(_EPOCHS), "--pretrained", str(self.output)]
        return self._command("tuned", *options)
