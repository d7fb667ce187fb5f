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
from ppcls.weights.files import fetch_weights, fill, read_weights, select_network, start_from
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
        beside: Prefixes of the weights of peers and trainable losses, see `beside_prefixes`.
    """

    arch: AnyArch
    source: str | None
    chains: Mapping[str, Sequence[Transform]]
    frozen: bool
    beside: tuple[str, ...] = ()

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

    def started_from_scratch(self, lines: Sequence[str]) -> bool:
        """Returns whether `load`, which returned these lines, kept the random weights of the model."""
        return any(self._from_scratch in line for line in lines)

    def load_beside(self, model: nn.Layer) -> list[str]:
        """Loads the weights of peers and trainable losses from ``Global.pretrained_model``, if it has them.

        Peers and losses that the file lacks keep their weights.

        Args:
            model: Model that contains the peers and the losses.

        Returns:
            Lines for the log.

        Raises:
            UserError: The weights can't be read or do not fit.
        """
        if not self.source or not self.beside:
            return []
        arrays, _ = select_network(
            model.state_dict().keys(), read_weights(weights_path(self.source)), self.source
        )
        lines = []
        for prefix in self.beside:
            of_layer = {name: array for name, array in arrays.items() if name.startswith(prefix)}
            name = prefix.rstrip(".")
            if not of_layer:
                lines.append(f"{self.source} has no weights for {name}, which keeps its initial weights")
                continue
            tensors = {key: tensor for key, tensor in model.state_dict().items() if key.startswith(prefix)}
            fill(tensors, of_layer, self.source)
            lines.append(f"weights of {name} from {self.source}")
        return lines

    def _start_from(self, model: nn.Layer, source: str) -> list[str]:
        arrays = read_weights(weights_path(source))
        own = {name: array for name, array in arrays.items() if not name.startswith(self.beside)}
        started = start_from(model, own, source)
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
