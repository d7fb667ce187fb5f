"""Runs an exported model with Paddle Inference."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import inference

from ppcls.deploy.models.description import ModelDescription, Precision
from ppcls.deploy.models.inference_graph import STREAM_LOCK, PredictorGraphs
from ppcls.deploy.models.pinned_memory import PinnedBuffer
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

_GPU_MEMORY = 100  # initial size of the memory pool in MB, which grows when necessary
# This pass of Paddle 3.3 on CPUs fuses a transpose and a reshape of several axes, as in Swin, to a wrong
# shape.
_WRONG_FUSION = "operator_reshape_onednn_fuse_pass"
_GPU_PRECISIONS = {
    "float32": inference.PrecisionType.Float32,
    "float16": inference.PrecisionType.Half,
    "bfloat16": inference.PrecisionType.Bfloat16,
}
# This pass of Paddle 2.6 runs convolutions in half precision in NHWC. cuDNN's kernels for this layout cannot
# be captured as a CUDA graph.
_LAYOUT_TRANSFER = "fused_conv2d_add_act_layout_transfer_pass"
_SEARCH = "FLAGS_cudnn_exhaustive_search"
# In float32, the search of Paddle's fused convolutions finds kernels without tensor cores. They need less
# time on the host, but are slow for larger batches.
_LARGEST_SEARCHED_BATCH = 16
_BFLOAT16_CAPABILITY = (8, 0)  # minimum compute capability of GPUs


def find_precision(requested: Precision, runtime: Runtime) -> Precision:
    """Returns the precision in which Paddle Inference runs a model on a device.

    Programs contain float32 weights. When Paddle loads a program, it converts weights and operators to the
    requested precision if the device has kernels for it. Otherwise, it computes in float32.

    Args:
        requested: Precision for which the model was exported.
        runtime: Device to run on.
    """
    if requested == "bfloat16" and runtime.device_id is None:
        return requested if paddle.base.core.supports_bfloat16() else "float32"
    if runtime.device_id is None:
        return "float32"
    capability = paddle.device.cuda.get_device_capability(runtime.device_id)
    if requested == "bfloat16" and capability < _BFLOAT16_CAPABILITY:
        return "float32"
    return requested


@contextmanager
def capture_native_output() -> Iterator[None]:
    """Hides the output of C++ code. If the block raises an exception, prints the output to standard error."""
    with tempfile.TemporaryFile() as captured, ExitStack() as streams:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            original = os.dup(number)
            streams.callback(os.close, original)
            streams.callback(os.dup2, original, number)
            os.dup2(captured.fileno(), number)
        completed = False
        try:
            yield
            completed = True
        finally:
            streams.close()
            if not completed:
                captured.seek(0)
                os.write(2, captured.read())


class PaddleInferenceModel:
    """An `InferenceModel` that runs an exported program with Paddle Inference.

    Args:
        program: File of the program. The weights are in the same folder.
        description: Description of the model.
        runtime: Device to run on.
        cuda_graph: Whether shapes that are requested repeatedly run as CUDA graphs on a GPU.

    Attributes:
        engine: Name of the engine, with its version, device and precision.
        graphs: CUDA graphs; None on a CPU, or for a model that accepts images of any size.

    Raises:
        UserError: The files cannot be read, or were written by another version of Paddle.
    """

    def __init__(
        self, program: Path, description: ModelDescription, runtime: Runtime, *, cuda_graph: bool = False
    ) -> None:
        weights = program.with_suffix(".pdiparams")
        if not weights.is_file():
            raise UserError(f"{weights}: no such file; expected the weights in the folder of {program.name}")
        precision = find_precision(description.precision, runtime)
        self._predictor = _load(program, weights, precision, runtime)
        names = self._predictor.get_input_names()
        if names != [description.Input.name]:
            raise UserError(
                f"{program}: expected the input {description.Input.name} as in inference.yml, but the model "
                f"has {', '.join(names)}; export the model again"
            )
        self._input = self._predictor.get_input_handle(description.Input.name)
        self._output = self._predictor.get_output_handle(self._predictor.get_output_names()[0])
        self._runtime = runtime
        self.engine = f"Paddle Inference {paddle.__version__} ({runtime.device.upper()}, {precision})"
        self._file, self._dtype, self._precision = program, description.Input.dtype, precision
        self._has_run = False
        self._buffer = None if runtime.device_id is None else PinnedBuffer()
        self.graphs: PredictorGraphs | None = None
        if cuda_graph and runtime.device_id is not None and -1 not in description.Input.shape[1:]:
            captured = self._predictor
            if precision != "float32":
                captured = _load(program, weights, precision, runtime, deleted_passes=(_LAYOUT_TRANSFER,))
            self.graphs = PredictorGraphs(str(program), captured, self._run_plain)

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        if isinstance(images, np.ndarray):
            images = np.ascontiguousarray(images, self._dtype)
        else:
            images = images.astype(self._dtype)
        if self._runtime.device_id is None:
            return self._run_plain(images)
        searches = self._precision != "float32" or len(images) <= _LARGEST_SEARCHED_BATCH
        with STREAM_LOCK, nullcontext() if searches else _without_kernel_search():
            outputs = None if self.graphs is None else self.graphs.run(images)
            return self._run_plain(images) if outputs is None else outputs

    def _run_plain(self, images: Any) -> NDArray[Any]:
        """Runs the predictor without a CUDA graph, on images in the dtype of the model."""
        if isinstance(images, np.ndarray):
            self._input.copy_from_cpu(images if self._buffer is None else self._buffer.fill(images))
        else:
            self._shared = images  # keeps the memory alive; the handle does not
            self._runtime.synchronize()  # Paddle Inference may use another stream
            self._input.share_external_data(self._shared)
        try:
            # The first run would print the choice of kernels to standard output, between the results.
            with nullcontext() if self._has_run else capture_native_output():
                self._predictor.run()
            self._has_run = True
        except (OSError, RuntimeError, ValueError) as error:  # an error of CUDA is an OSError
            reason = _last_line(error)
            raise UserError(f"{self._file}: Paddle Inference cannot run this model: {reason}") from None
        answers: NDArray[Any] = self._output.copy_to_cpu()
        return answers


def _load(
    program: Path,
    weights: Path,
    precision: Precision,
    runtime: Runtime,
    *,
    deleted_passes: Sequence[str] = (),
) -> Any:
    """Returns a predictor.

    Args:
        program: File of the program.
        weights: File of the weights.
        precision: Precision that the device supports.
        runtime: Device to run on.
        deleted_passes: Names of passes that do not change the program.

    Raises:
        UserError: The files are damaged, or were written by another version of Paddle.
    """
    settings = inference.Config(str(program), str(weights))
    settings.disable_glog_info()
    if runtime.device_id is None:
        settings.disable_gpu()
        settings.set_cpu_math_library_num_threads(runtime.threads)
        settings.delete_pass(_WRONG_FUSION)
        if precision == "bfloat16":
            settings.enable_mkldnn()
            settings.enable_mkldnn_bfloat16()
    else:
        settings.enable_use_gpu(_GPU_MEMORY, runtime.device_id, _GPU_PRECISIONS[precision])
    for name in deleted_passes:
        settings.delete_pass(name)
    try:
        with capture_native_output():  # Paddle prints which operators it converts to bfloat16
            return inference.create_predictor(settings)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{program}: Paddle {paddle.__version__} cannot load this model: {program.name} or "
            f"{weights.name} is damaged or was written by another version (inference.json needs Paddle "
            f"3, inference.pdmodel needs 2.6); export the model again: {_last_line(error)}"
        ) from None


@contextmanager
def _without_kernel_search() -> Iterator[None]:
    """Disables cuDNN's search for the fastest kernels in this context, unless the environment enables it."""
    if _SEARCH in os.environ or not paddle.get_flags(_SEARCH)[_SEARCH]:
        yield
        return
    paddle.set_flags({_SEARCH: False})
    try:
        yield
    finally:
        paddle.set_flags({_SEARCH: True})


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
