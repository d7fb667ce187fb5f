"""Networks whose weights cannot be written for timm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppcls.config.schema import Config
from ppcls.deploy.export.timm import write_timm
from ppcls.errors import UserError

EMBEDDING = {
    "Arch": {"name": "RecModel", "Backbone": {"name": "ResNet18"}},
    "Loss__Train": [{"TripletLoss": None}],
    "Loss__Eval": [{"TripletLoss": None}],
    "Global__eval_mode": "retrieval",
    "Metric": {"Eval": [{"mAP": None}]},
}
BRANCHED = {"Arch": {"name": "ResNet18", "class_num": 4, "layer_type": "DiverseBranchBlock"}}


@pytest.mark.parametrize(
    ("changes", "kind"), [(EMBEDDING, "embedding models"), (BRANCHED, "DiverseBranchBlock")]
)
def test_networks_that_timm_lacks_are_rejected_before_the_weights_are_read(
    make_config: Callable[..., Config], tmp_path: Path, changes: dict[str, Any], kind: str
) -> None:
    config = make_config("run", **changes)
    with pytest.raises(UserError, match=f"timm has no {kind}; export ONNX instead"):
        write_timm(
            tmp_path / "out.safetensors", config.Arch, config.Loss.Train, tmp_path / "missing.pdparams"
        )
