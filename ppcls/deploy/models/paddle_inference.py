"""An exported model run by Paddle Inference."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import inference

from ppcls.deploy.models.description import Description
from ppcls.deploy.models.quiet import hushed
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

_GPU_MEMORY = 100  # MB that its pool begins with; it grows


class PaddleInferenceModel:
    """A `ppcls.deploy.predictor.Model` of an exported program.

    Args:
        program: Its file; the weights lie beside it.
        description: Of the model.
        runtime: Where it runs.

    Raises:
        UserError: The files can't be read, or are of another Paddle.
    """

    def __init__(self, program: Path, description: Description, runtime: Runtime) -> None:
        weights = program.with_suffix(".pdiparams")
        if not weights.is_file():
            raise UserError(f"{weights}: no such file; expected the weights beside {program.name}")
        settings = inference.Config(str(program), str(weights))
        settings.disable_glog_info()
        if runtime.device_id is None:
            settings.disable_gpu()
            settings.set_cpu_math_library_num_threads(runtime.threads)
        else:
            settings.enable_use_gpu(_GPU_MEMORY, runtime.device_id)
        try:
            self._predictor = inference.create_predictor(settings)
        except (OSError, RuntimeError, ValueError) as error:
            import paddle

            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"{program}: Paddle {paddle.__version__} can't load this model: it or {weights.name} is "
                "damaged, or of another Paddle (inference.json is of Paddle 3, inference.pdmodel of 2.6); "
                f"export it anew, with this Paddle: {reason}"
            ) from None
        self._input = self._predictor.get_input_handle(description.Input.name)
        self._output = self._predictor.get_output_handle(self._predictor.get_output_names()[0])
        self._runtime = runtime
        self._file, self._dtype = program, description.Input.dtype
        self._has_run = False

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.Model`."""
        if isinstance(images, np.ndarray):
            self._input.copy_from_cpu(np.ascontiguousarray(images, self._dtype))
        else:
            self._shared = images.astype(self._dtype)  # kept, for the handle does not
            self._runtime.synchronize()  # it may compute in a stream of its own
            self._input.share_external_data(self._shared)
        try:
            # Choosing its kernels at its first run, Paddle tells of it on standard output: among the answers.
            with nullcontext() if self._has_run else hushed():
                self._predictor.run()
            self._has_run = True
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise UserError(f"{self._file}: Paddle Inference can't run this model: {reason}") from None
        answers: NDArray[Any] = self._output.copy_to_cpu()
        return answers
