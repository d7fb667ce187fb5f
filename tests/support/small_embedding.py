"""Writes an embedding model with random weights, for 32 px images, as files that the tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from small_classifier import arch_tree, config_tree

from ppcls.engine.core.networks import build_network
from ppcls.recipe.load import validate
from ppcls.weights.files import write_arrays

SIZE = 6
FEATURES = 64  # of the backbone


def embedding_tree(weights: Path) -> dict[str, Any]:
    """Returns a whole config, in the words of the YAML; the model is PaddleClas's with a neck and a head."""
    tree = config_tree(weights, None)
    tree["Global"]["eval_mode"] = "retrieval"
    tree["Arch"] = {
        "name": "RecModel",
        "Backbone": arch_tree(),
        "Neck": {"name": "FC", "embedding_size": FEATURES, "class_num": SIZE},
        "Head": {"name": "ArcMargin", "embedding_size": SIZE, "class_num": 3},
    }
    tree["Metric"]["Eval"] = [{"Recallk": {"topk": 1}}]
    del tree["Infer"]["PostProcess"]
    return tree


def write_model(tree: dict[str, Any]) -> None:
    """Writes weights where the config looks for them."""
    paddle.seed(7)
    model = build_network(validate(tree, "test").Arch)
    model.train()
    for _ in range(30):  # with fewer, batch norm's statistics are still the fresh ones, and all images alike
        model(paddle.nn.functional.interpolate(paddle.randn([8, 3, 4, 4]), size=[32, 32]))
    write_arrays(Path(tree["Global"]["pretrained_model"]), model.state_dict())
