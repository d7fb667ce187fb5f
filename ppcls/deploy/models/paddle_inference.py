"""Runs an exported model with Paddle Inference."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import inference

from ppcls.deploy.models.description import ModelDescription, Precision
from ppcls.deploy.models.gpu.predictor_graphs import PredictorGraphs
from ppcls.deploy.models.programs.check import read_program
from ppcls.engine.core.compiled import measured
from ppcls.engine.cuda_graph.graph import STREAM_LOCK
from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.files.temporary import temporary_folder
from ppcls.runtime.paddle_import import pause_cudnn_search
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
# The search of Paddle's fused convolutions finds kernels that need less time on the host. For large batches,
# they need more time on the GPU. In float32, they do not use tensor cores.
_LARGEST_SEARCHED_BATCH: dict[str, int] = {"float32": 4, "float16": 32, "bfloat16": 32}
_BFLOAT16_CAPABILITY = (8, 0)  # minimum compute capability of GPUs


def find_precision(requested: Precision, runtime: Runtime) -> Precision:
    """Returns the precision in which Paddle Inference runs a model on a device.

    Programs contain float32 weights, except those for GPUs. When Paddle loads a program, it converts weights
    and operators to the requested precision if the device has kernels for it. Otherwise, it computes in
    float32.

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


@contextmanager
def _checked_program(program: Path, weights: Path, trust: bool) -> Iterator[Path]:
    """Yields the file of a program to load: a checked copy, or the program itself if the user trusts it."""
    if trust:
        yield program
        return
    content = read_program(program, weights)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder("program"))
            copy = folder / program.name
            copy.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"{program}: cannot write a copy to the temporary folder {tempfile.gettempdir()}: "
                f"{error.strerror}; set TMPDIR to another folder"
            ) from None
        yield copy


def _settings(
    program: Path, weights: Path, description: ModelDescription, precision: Precision, runtime: Runtime
) -> Any:
    """Returns the settings with which Paddle Inference loads and runs a program."""
    settings = inference.Config(str(program), str(weights))
    settings.disable_glog_info()
    if runtime.device_id is None:
        settings.disable_gpu()
        settings.set_cpu_math_library_num_threads(runtime.threads)
        settings.delete_pass(_WRONG_FUSION)
        if precision == "bfloat16":
            settings.enable_mkldnn()
            settings.enable_mkldnn_bfloat16()
    elif description.needs_gpu:  # the program has its final form, with float16 operators
        settings.enable_use_gpu(_GPU_MEMORY, runtime.device_id)
        settings.switch_ir_optim(False)
        settings.enable_memory_optim()  # operators share the memory of their outputs
    else:
        settings.enable_use_gpu(_GPU_MEMORY, runtime.device_id, _GPU_PRECISIONS[precision])
    return settings


class PaddleInferenceModel:
    """An `InferenceModel` that runs an exported program with Paddle Inference.

    Args:
        program: File of the program. The weights are in the same folder.
        description: Description of the model.
        runtime: Device to run on.
        trust: Whether to load the program without checking what it does.

    Attributes:
        engine: Name of the engine, with its version, device and precision.

    Raises:
        UserError: The files cannot be read, were written by another version of Paddle, or need a GPU; or the
            program does more than compute a network.
    """

    def __init__(
        self, program: Path, description: ModelDescription, runtime: Runtime, *, trust: bool = False
    ) -> None:
        weights = program.with_suffix(".pdiparams")
        if not weights.is_file():
            raise UserError(f"{weights}: no such file; expected the weights in the folder of {program.name}")
        if description.needs_gpu and runtime.device_id is None:
            raise UserError(
                f"{program}: this {description.precision} model was exported for a GPU, but this run uses "
                "the CPU; set Global.device=gpu, or export the model with --precision float32"
            )
        precision = find_precision(description.precision, runtime)
        with _checked_program(program, weights, trust) as checked:
            settings = _settings(checked, weights, description, precision, runtime)
            try:
                with capture_native_output():  # Paddle prints which operators it converts to bfloat16
                    self._predictor = inference.create_predictor(settings)
            except (OSError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{program}: Paddle {paddle.__version__} cannot load this model: {program.name} or "
                    f"{weights.name} is damaged or was written by another version; export the model again: "
                    f"{_reason(error)}"
                ) from None
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
        self._file = program
        self._dtype = description.Input.dtype
        searched = {} if description.needs_gpu else _LARGEST_SEARCHED_BATCH
        self._largest_searched = searched.get(precision, 0)
        self._has_run = False
        self._graphs = PredictorGraphs(self._predictor) if description.needs_gpu and measured() else None
        self._lock = nullcontext() if runtime.device_id is None else STREAM_LOCK

    def join(self, images: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.JoiningModel`."""
        return np.stack(images) if self._graphs is None else self._graphs.join(images)

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        is_array = isinstance(images, np.ndarray)
        with self._lock, self._runtime.selected(), self._kernel_search(len(images)):
            images = np.ascontiguousarray(images, self._dtype) if is_array else images.astype(self._dtype)
            answers = self._replay(images)
            return self._run(images) if answers is None else answers

    def _replay(self, images: Any) -> NDArray[Any] | None:
        """Returns the outputs of a CUDA graph; None if there is no graph for the shape of the images."""
        if self._graphs is None:
            return None
        try:
            return self._graphs.run(images)
        except UserError as error:
            print_error(f"warning: {self._file}: runs operator by operator: {error}")
            self._graphs = None
            return None

    def _run(self, images: Any) -> NDArray[Any]:
        if isinstance(images, np.ndarray):
            self._input.copy_from_cpu(images)
        else:
            self._shared = images  # keeps the memory alive; the handle does not
            self._runtime.synchronize()  # Paddle Inference may use another stream
            self._input.share_external_data(images)
        try:
            # The first run would print the choice of kernels to standard output, between the results.
            with nullcontext() if self._has_run else capture_native_output():
                self._predictor.run()
            self._has_run = True
        except (OSError, RuntimeError, ValueError) as error:  # an error of CUDA is an OSError
            reason = _reason(error)
            raise UserError(f"{self._file}: Paddle Inference cannot run this model: {reason}") from None
        answers: NDArray[Any] = self._output.copy_to_cpu()
        return answers

    def _kernel_search(self, batch_size: int) -> AbstractContextManager[None]:
        """Returns a context without cuDNN's search for the fastest kernels if the batch is large."""
        on_cpu = self._runtime.device_id is None
        is_small = batch_size <= self._largest_searched
        return nullcontext() if on_cpu or is_small else pause_cudnn_search()


def _reason(error: Exception) -> str:
    """Returns the line of an error of Paddle that says what is wrong, or the last line."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1])
