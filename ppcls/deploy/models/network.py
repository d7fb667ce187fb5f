"""A trained network as it is used: without what only training needs, and with what makes answers of it."""

from __future__ import annotations

from pathlib import Path

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.embedding import FEATURES, EmbeddingNetwork
from ppcls.arch.layers.reparameterize import reparameterize
from ppcls.config.schema import Config
from ppcls.deploy.models.description import Ending
from ppcls.engine.core.networks import build_network, read_inferred
from ppcls.outputs import Outputs
from ppcls.weights.files import fill_model


class UnitLength(nn.Layer):  # type: ignore[misc]
    """Makes embeddings of length 1, as evaluation compares them."""

    def forward(self, outputs: Outputs) -> Tensor:
        """Maps what a model of embeddings gives to [B, D]."""
        return F.normalize(outputs[FEATURES], axis=1)


_ENDINGS: dict[Ending, type[nn.Layer]] = {"softmax": nn.Softmax, "sigmoid": nn.Sigmoid, "l2_norm": UnitLength}


def load_network(config: Config, weights: Path) -> nn.Layer:
    """Builds the trained model, whose branches are joined where they have one convolution's effect.

    A model of embeddings comes without its head, which is of the classes that it was trained on.

    Args:
        config: The whole config.
        weights: As `ppcls.weights.files.read_weights` takes them.

    Raises:
        UserError: The weights can't be read or are another model's.
    """
    model = build_network(config.Arch)
    fill_model(model, read_inferred(config, weights), weights)
    reparameterize(model)
    if isinstance(model, EmbeddingNetwork):
        model.head = None
    return model


def ending(kind: Ending) -> nn.Layer:
    """Returns what makes scores or embeddings of what a network gives."""
    return _ENDINGS[kind]()
