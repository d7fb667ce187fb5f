"""Loads the initial weights of a new run: those of the config, or published weights for small data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import paddle
from paddle import nn

from ppcls.arch.distillation_model import AnyArch
from ppcls.data.index.class_names import changed_class_names, join_first, read_all_class_names
from ppcls.data.transforms.base import Transform
from ppcls.engine.evaluation.stored_names import find_label_list
from ppcls.engine.preprocessing import compare_preprocessing
from ppcls.errors import UserError, counted
from ppcls.files.urls import naming_addresses
from ppcls.optimizer.name_rules import classifier_layers
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
        class_names: Class names of the training images, in the order of their labels; empty if unknown, or if
            the model returns embeddings.
    """

    arch: AnyArch
    source: str | None
    chains: Mapping[str, Sequence[Transform]]
    frozen: bool
    beside: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @naming_addresses()
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

    @naming_addresses()
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
            lines[0] += (
                f"; {', '.join(started.random)} are random, for {counted(self.arch.class_num, 'class')}"
            )
        if started.adapted:
            lines.append(started.adapted)
        lines += follow_class_names(model, weights_path(source), self.class_names)
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
            reason = (
                f"{counted(images, 'training image is', 'training images are')} more than {_SMALL_DATA:,}"
            )
        else:
            try:
                fetch_weights(Path(published), retry=False)
                lines = self._start_from(model, published)
            except UserError as error:
                reason = str(error)
            else:
                return [*lines, "chosen by Arch.pretrained=auto; Arch.pretrained=False trains from scratch"]
        return [f"{self._from_scratch} (Arch.pretrained=auto): {reason}"]


@paddle.no_grad()  # type: ignore[untyped-decorator]
def follow_class_names(model: nn.Layer, source: Path, names: Sequence[str]) -> list[str]:
    """Reorders the classifier of a model so that it fits the names of the classes, not their positions.

    A class without a name in the file starts from the weights of a class that is no longer used.

    Args:
        model: Model that was filled with the weights.
        source: File or folder of the weights.
        names: Class names of the training images, in the order of their labels; empty if unknown.

    Returns:
        A line for the log; empty if the names or their number are unknown or equal.
    """
    listing = find_label_list(source)
    if listing is None or not names:
        return []
    try:
        old = read_all_class_names(listing)
    except UserError as error:  # a file of another tool
        return [f"{error}; the class names are not compared"]
    if len(old) != len(names) or old == tuple(names):
        return []
    moved = [name for label, name in enumerate(old) if name in names and names[label] != name]
    tensors = model.state_dict()
    parameters = [
        tensors[f"{layer}.{kind}"]
        for layer in classifier_layers(model)
        for kind in ("weight", "bias")
        if f"{layer}.{kind}" in tensors
    ]
    axes = [1 if tensor.ndim == 2 else 0 for tensor in parameters]  # a linear layer has [inputs, classes]
    fits = all(tensor.shape[axis] == len(old) for tensor, axis in zip(parameters, axes, strict=True))
    if not moved or not fits:
        renamed = changed_class_names(listing, names)
        return [f"{source}: the classifier is used, although its classes had other names: {renamed}"]
    free = [label for label, name in enumerate(old) if name not in names]
    rows = [old.index(name) if name in old else free.pop(0) for name in names]
    for tensor, axis in zip(parameters, axes, strict=True):
        tensor.set_value(paddle.index_select(tensor, paddle.to_tensor(rows), axis))
    others = [
        f"{name} starts from {old[row]}" for name, row in zip(names, rows, strict=True) if name not in old
    ]
    text = f"{source}: the classifier was reordered by the names of the classes: {join_first(moved)}"
    return [f"{text}; {join_first(others)}" if others else text]
