"""The model that trains, compiled to one program where that is faster."""

from __future__ import annotations

import paddle
from paddle import nn

from ppcls.config.model import Arch
from ppcls.config.schema import Config
from ppcls.engine.added_gradients import add_up_gradients
from ppcls.errors import UserError
from ppcls.runtime import Runtime, stop_search


class Compiled(nn.Layer):  # type: ignore[misc]
    """A model as one program of Paddle's static executor, over the model's own weights.

    The model itself stays as it is, for evaluation and for checkpoints.
    """

    def __init__(self, model: nn.Layer) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        """Returns the model's logits."""
        return self.model(image)


def compiled(model: nn.Layer, config: Config, runtime: Runtime) -> nn.Layer:
    """Returns the model as training calls it: compiled where ``Global.to_static`` says so.

    Raises:
        UserError: That is wanted of bfloat16 on a CPU.
    """
    if not compiles(config, runtime):
        return model
    if runtime.device == "cpu" and config.AMP is not None and config.AMP.use_amp:
        raise UserError(
            "Global.to_static: bfloat16 on a CPU rounds around each layer, which can't be compiled; "
            "set Global.to_static to auto or False"
        )
    network = paddle.jit.to_static(Compiled(model), full_graph=True)
    if _is_fast(config, runtime) and stop_search():
        add_up_gradients(network.forward)
    return network


def compiles(config: Config, runtime: Runtime) -> bool:
    """Whether the model that trains is compiled."""
    wanted = config.Global.to_static
    if not isinstance(config.Arch, Arch):
        return False
    if wanted != "auto":
        return wanted
    return _is_fast(config, runtime)


def _is_fast(config: Config, runtime: Runtime) -> bool:
    """Whether this is what compiled steps were measured to be faster with."""
    amp = config.AMP
    return (
        runtime.device == "gpu"
        and measured()
        and amp is not None
        and amp.use_amp
        and (amp.level, amp.dtype) == ("O2", "float16")
        and config.Arch.data_format == "NHWC"
    )


def measured() -> bool:
    """Whether this Paddle is one that compiled steps were measured with; docs/performance.md."""
    return str(paddle.__version__).startswith("2.6")
