"""Choice of the inference engine that runs a model."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from ppcls.errors import UserError

if TYPE_CHECKING:
    from ppcls.deploy.models.source import ModelSource

Engine = Literal["paddle", "onnxruntime", "openvino", "tensorrt"]

_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"


def choose_engine(source: ModelSource) -> Engine:
    """Returns the engine that runs a model: the selected one, otherwise the fastest installed one.

    Paddle runs checkpoints and its own programs. OpenVINO runs its own files and, on a CPU, ``.onnx`` files
    if it is installed. Otherwise, ONNX Runtime runs ``.onnx`` files. TensorRT must be selected explicitly,
    because it compiles a model each time it is loaded, which can take minutes.

    Raises:
        UserError: The selected engine is not installed, cannot run the model, or does not support the device.
    """
    selected = source.infer.engine
    device = source.run.device
    file = source.file
    if source.needs_paddle:
        if selected != "auto":
            raise UserError(
                f"{file}: only Paddle can run this model, got Infer.engine={selected}; "
                "export it with --format onnx, or remove Infer.engine"
            )
        return "paddle"
    if file.suffix == ".xml":
        if selected not in ("auto", "openvino"):
            raise UserError(
                f"{file}: only OpenVINO can run this file, got Infer.engine={selected}; "
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
            selected = "openvino" if on_cpu and find_spec("openvino") is not None else "onnxruntime"
    if selected == "onnxruntime" and find_spec("onnxruntime") is None:
        raise UserError(
            f"{file}: ONNX Runtime is not installed; pip install 'onnxruntime>=1.20,<2', or, for a faster "
            "engine on CPUs, 'openvino>=2025'"
        )
    return selected


def onnxruntime_providers() -> tuple[str, ...]:
    """Returns the execution providers of the installed ONNX Runtime, or () if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return ()
    return tuple(onnxruntime.get_available_providers())


def find_tensorrt() -> str:
    """Returns the reason why TensorRT cannot be used and the packages to install; "" if it can be used."""
    providers = onnxruntime_providers()
    if _TENSORRT not in providers:
        reason = "does not support TensorRT" if providers else "is not installed"
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
