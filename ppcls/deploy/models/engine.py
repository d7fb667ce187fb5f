"""Choice of the program that runs a model."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from ppcls.errors import UserError

if TYPE_CHECKING:
    from ppcls.deploy.models.source import ModelSource

Engine = Literal["paddle", "onnxruntime", "openvino", "tensorrt"]

_CUDA, _TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"


def choose_engine(source: ModelSource) -> Engine:
    """Returns the program that runs a model: the selected one, otherwise the fastest installed one.

    Paddle runs checkpoints and its own programs, OpenVINO its own files. On a CPU, OpenVINO also runs
    ``.onnx`` files if it is installed; otherwise ONNX Runtime does. TensorRT must be selected, because it
    compiles a model whenever it loads one, which can take minutes.

    Raises:
        UserError: If the selected program is not installed, or cannot run the model or use the device.
    """
    selected, device, file = source.infer.engine, source.run.device, source.file
    if source.needs_paddle:
        if selected != "auto":
            raise UserError(
                f"{file}: only Paddle runs this model, not Infer.engine={selected}; "
                "export it with --format onnx, or remove Infer.engine"
            )
        return "paddle"
    if file.suffix == ".xml":
        if selected not in ("auto", "openvino"):
            raise UserError(
                f"{file}: only OpenVINO runs this file, not Infer.engine={selected}; "
                "export it with --format onnx, or remove Infer.engine"
            )
        _need_openvino(str(file), device)
        return "openvino"
    match selected:
        case "openvino":
            _need_openvino("Infer.engine=openvino", device)
        case "tensorrt":
            _need_tensorrt(device)
        case "auto":
            on_cpu = device == "cpu" or (device == "auto" and _CUDA not in onnxruntime_providers())
            return "openvino" if on_cpu and find_spec("openvino") is not None else "onnxruntime"
    return selected


def onnxruntime_providers() -> tuple[str, ...]:
    """Returns the devices and libraries that the installed ONNX Runtime supports; none if it is missing."""
    try:
        import onnxruntime
    except ImportError:
        return ()
    return tuple(onnxruntime.get_available_providers())


def find_tensorrt() -> str:
    """Returns why TensorRT cannot be used, with the packages to install; "" if it can."""
    providers = onnxruntime_providers()
    if _TENSORRT not in providers:
        reason = "has no support for it" if providers else "is not installed"
        return f"the package onnxruntime {reason}; pip install onnxruntime-gpu tensorrt"
    if find_spec("tensorrt_libs") is None and find_spec("tensorrt") is None:
        return "its libraries are not installed; pip install tensorrt"
    return ""


def _need_openvino(name: str, device: str) -> None:
    if find_spec("openvino") is None:
        raise UserError(f"{name}: OpenVINO is not installed; pip install 'openvino>=2025'")
    if device == "gpu":
        raise UserError(f"{name}: OpenVINO runs on CPUs only; set Global.device=cpu")


def _need_tensorrt(device: str) -> None:
    if device == "cpu":
        raise UserError("Infer.engine=tensorrt runs on GPUs only; remove Global.device=cpu")
    if problem := find_tensorrt():
        raise UserError(f"Infer.engine=tensorrt: {problem}")
