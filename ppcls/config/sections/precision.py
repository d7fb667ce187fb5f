"""The section ``AMP``: mixed precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ppcls.config.base.fields import Bound, Positive, Section


class AMP(Section):
    """Mixed precision."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "init_loss_scaling": "scale_loss is the first scale",
        "use_pure_fp16": "write level: O2",
        "use_pure_bf16": "write level: O2 and dtype: bfloat16",
        "master_weight": "level O2 always keeps float32 master weights",
        "multi_precision": "level O2 always keeps float32 master weights",
        "custom_white_list": "which operators are cast is Paddle's own choice",
        "custom_black_list": "which operators are cast is Paddle's own choice",
        "incr_every_n_steps": "the scale doubles after 2,000 updates without an overflow",
        "decr_every_n_nan_or_inf": "the scale halves at each overflow",
        "incr_ratio": "the scale doubles after 2,000 updates without an overflow",
        "decr_ratio": "the scale halves at each overflow",
    }
    use_amp: bool = True
    level: Literal["O1", "O2"] = Field("O1", description="O1 casts operators, O2 also keeps weights in half")
    dtype: Literal["float16", "bfloat16"] = "float16"
    scale_loss: Positive = Field(2.0**15, description="first loss scale of float16")
    use_dynamic_loss_scaling: bool = Field(
        True, description="halve the scale at each overflow, double it after 2,000 updates without one"
    )
    min_loss_scaling: Annotated[float, Bound(ge=1)] = Field(
        1.0, description="a loss scale that would fall below this ends the run"
    )
    use_promote: bool = Field(
        True, description="read for PaddleClas; under O2 nothing is promoted, as all is in half precision"
    )
    use_fp16_test: bool = Field(False, description="evaluate in mixed precision too (O2 always does)")
