"""An exported model run by onnxruntime, without Paddle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplemented,
    RuntimeException,
)

from ppcls.deploy.models.description import Description
from ppcls.errors import UserError

_ERRORS_ONLY = 3


class OnnxModel:
    """A `ppcls.deploy.predictor.Model` of an ``.onnx`` file.

    Args:
        file: The model.
        description: Of it.
        device: Where it is to run: on a GPU only by onnxruntime's build for GPUs.
        threads: CPU threads.

    Raises:
        UserError: onnxruntime can't load it, or has no GPU.
    """

    def __init__(self, file: Path, description: Description, device: str, threads: int) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.log_severity_level = _ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), sess_options=settings, providers=_providers(device)
            )
        except (Fail, InvalidGraph, InvalidProtobuf, NotImplemented) as error:
            raise UserError(f"{file}: onnxruntime can't load this model: {error}") from None
        self._file, self._input, self._dtype = file, description.Input.name, description.Input.dtype
        given = [each.name for each in self._session.get_inputs()]
        if given != [self._input]:
            raise UserError(f"{file}: takes {', '.join(given)}, but inference.yml describes {self._input}")

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.Model`."""
        images = np.ascontiguousarray(images, self._dtype)
        try:
            (answers,) = self._session.run(None, {self._input: images})
        except (Fail, RuntimeException, InvalidArgument) as error:
            raise UserError(f"{self._file}: onnxruntime can't run this model: {error}") from None
        return np.asarray(answers)


def _providers(device: str) -> list[str]:
    """Returns where onnxruntime may compute, the best first.

    Raises:
        UserError: A GPU is asked for, and this onnxruntime has none.
    """
    cuda = "CUDAExecutionProvider"
    here = cuda in onnxruntime.get_available_providers()
    if device == "gpu" and not here:
        raise UserError(
            "Global.device is gpu, but the installed onnxruntime computes on CPUs; "
            "install onnxruntime-gpu in its place, or set Global.device=cpu"
        )
    return [*([cuda] if here and device != "cpu" else []), "CPUExecutionProvider"]
