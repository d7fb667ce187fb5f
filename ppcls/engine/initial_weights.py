"""Loads the initial weights of a new run: those of the config, or published weights for small data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paddle import nn

from ppcls.arch.distillation_model import AnyArch
from ppcls.data.transforms.base import Transform
from ppcls.engine.preprocessing import compare_preprocessing
from ppcls.errors import UserError
from ppcls.storage.models import weights_path
from ppcls.weights.files import fetch_weights, read_weights, start_from
from ppcls.zoo import architecture, nearest_with_weights

_SMALL_DATA = 20_000  # largest number of training images for which `Arch.pretrained: auto` loads weights


@dataclass(frozen=True)
class InitialWeights:
    """The initial weights that a config sets.

    Attributes:
        arch: Architecture of the model.
        source: ``Global.pretrained_model``, which takes precedence over the weights of ``arch``.
        chains: Lists of transforms, to compare them with the preprocessing of the weights; see
            `Config.chains`.
        frozen: Whether the optimizer freezes a part of the weights.
    """

    arch: AnyArch
    source: str | None
    chains: Mapping[str, Sequence[Transform]]
    frozen: bool

    def load(self, model: nn.Layer, images: int) -> list[str]:
        """Loads the weights into a model with random weights.

        Args:
            images: Number of training images. ``Arch.pretrained: auto`` depends on it.

        Returns:
            Lines for the log.

        Raises:
            UserError: The weights can't be read or do not fit the model.
        """
        if not self.source and self.arch.chooses_weights:
            return self._load_automatically(model, images)
        if source := self.source or self.arch.start_weights:
            return self._start_from(model, source)
        if backbone := self.arch.backbone_weights:
            # They are loaded when the model is built, because later its last layer is missing.
            return [f"weights of the backbone from {backbone}"]
        return [f"no initial weights (Global.pretrained_model): {self._from_scratch}"]

    def _start_from(self, model: nn.Layer, source: str) -> list[str]:
        started = start_from(model, read_weights(weights_path(source)), source)
        lines = [f"weights from {source}{f', {started.selected}' if started.selected else ''}"]
        if started.random:
            lines[0] += f"; {', '.join(started.random)} are random, for {self.arch.class_num} classes"
        if started.adapted:
            lines.append(started.adapted)
        return [*lines, *compare_preprocessing(self.chains, self.arch.name, source)]

    @property
    def _from_scratch(self) -> str:
        return f"training from scratch{'; frozen weights stay random' if self.frozen else ''}"

    def _load_automatically(self, model: nn.Layer, images: int) -> list[str]:
        """Loads published weights if they exist, can be downloaded, and the data set is small."""
        arch = self.arch.exported
        published = arch.model_copy(update={"pretrained": True}).weights
        if not architecture(arch.name).top1 or published is None:
            reason = (
                f"{arch.name} has no published weights; nearest with weights: "
                f"{', '.join(nearest_with_weights(arch.name))}"
            )
        elif arch.timm_variant:
            reason = "published weights do not fit Arch.timm_variant"
        elif images > _SMALL_DATA:
            reason = f"{images:,} training images are more than {_SMALL_DATA:,}"
        else:
            try:
                fetch_weights(Path(published), retry=False)
                lines = self._start_from(model, published)
            except UserError as error:
                reason = str(error)
            else:
                return [*lines, "chosen by Arch.pretrained=auto; Arch.pretrained=False trains from scratch"]
        return [f"{self._from_scratch} (Arch.pretrained=auto): {reason}"]
