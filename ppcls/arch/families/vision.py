"""What Paddle's own models need so as to be trained like ours."""

from __future__ import annotations

from paddle import Tensor
from paddle.vision import models

_AUXILIARY = ("_conv_o1", "_fc_o1", "_out1", "_conv_o2", "_fc_o2", "_out2")


class MainGoogLeNet(models.GoogLeNet):  # type: ignore[misc]
    """`paddle.vision.models.GoogLeNet` with its main output alone; the two auxiliary ones do not learn."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__(num_classes)
        for name in _AUXILIARY:
            for parameter in getattr(self, name).parameters():
                parameter.stop_gradient = True

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps images [B, 3, 224, 224] to logits [B, num_classes]."""
        main, _, _ = models.GoogLeNet.forward(self, inputs)  # not super(), which Paddle 2.6 can't compile
        return main
