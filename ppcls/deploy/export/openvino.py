"""Converts ONNX models to OpenVINO's format, and to int8 with NNCF."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ppcls.deploy.export.precision import Array, QuantizedOperators, hide_tool_output
from ppcls.deploy.models.description import Precision
from ppcls.errors import UserError

_NO_TELEMETRY = "NNCF_CI"
_INT8 = ("i8", "u8")
_WEIGHTED = ("Convolution", "GroupConvolution", "MatMul")
# Operators of a compiled model that only move, convert or describe values.
_PASSIVE = (
    "Input",
    "Output",
    "Const",
    "Reorder",
    "Reshape",
    "Transpose",
    "FakeQuantize",
    "ShapeOf",
    "Convert",
)


def need_openvino(precision: Precision) -> None:
    """Checks that the packages that write OpenVINO's format are installed.

    Raises:
        UserError: A package is missing. The message contains the command that installs it.
    """
    needed = ("openvino", "nncf") if precision == "int8" else ("openvino",)
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(
            f"--format openvino --precision {precision}: not installed: {' and '.join(missing)}; "
            "pip install 'openvino>=2025' 'nncf>=2.14'"
        )


def write_openvino(onnx: Path, file: Path) -> None:
    """Writes an ONNX model in OpenVINO's format: ``file``, and a ``.bin`` file with float32 weights.

    Operators are fused first, as in ``openvino.convert_model``, which would also send telemetry. Otherwise,
    NNCF quantizes the input of batch norm, and assigns the scales of depthwise weights to wrong axes, so
    OpenVINO runs depthwise convolutions in float32.
    """
    import openvino

    # Only `convert_model` calls it publicly. tests/deploy/export/test_openvino_export.py notices a change.
    from openvino._offline_transformations import apply_moc_transformations

    model = openvino.Core().read_model(onnx)
    apply_moc_transformations(model, cf=True)  # cf: also folds constants
    _save(model, file, compress=False)


def store_weights_in_float16(file: Path) -> None:
    """Converts the weights of a model in OpenVINO's format to float16, in place."""
    import openvino

    _replace(openvino.Core().read_model(file), file, compress=True)


def quantize_with_nncf(file: Path, name: str, batches: Sequence[Array]) -> QuantizedOperators:
    """Converts a model in OpenVINO's format to int8, in place, with NNCF's symmetric ranges.

    Args:
        file: The model in float32.
        name: Name of the architecture, for messages.
        batches: Inputs of the model, from which the ranges of activations are computed.

    Returns:
        The operators of the int8 model.

    Raises:
        UserError: NNCF cannot quantize the model, or none of its operators supports int8.
    """
    os.environ.setdefault(_NO_TELEMETRY, "1")  # NNCF reads the variable when it is imported
    import nncf
    import openvino

    model = openvino.Core().read_model(file)
    attention = _has_attention(model)
    try:
        with hide_tool_output():
            quantized = nncf.quantize(
                model,
                nncf.Dataset(batches),
                preset=nncf.QuantizationPreset.PERFORMANCE,
                subset_size=len(batches),
                model_type=nncf.ModelType.TRANSFORMER if attention else None,
                ignored_scope=nncf.IgnoredScope(names=_find_normalization(model)),
            )
    except (RuntimeError, ValueError, nncf.ValidationError, nncf.InternalError) as error:
        raise UserError(
            f"NNCF cannot quantize {name}: {type(error).__name__}: {error}; "
            "use --precision bfloat16 or float32"
        ) from None
    operators = _count_operators(quantized)
    if not operators.int8:
        raise UserError(
            f"{name}: no operator of this model supports int8 ({', '.join(operators.float32)}); "
            "use --precision bfloat16 or float32"
        )
    _replace(quantized, file, compress=False)
    return operators


def _has_attention(model: Any) -> bool:
    """Returns whether a model contains attention, for which NNCF first balances activations and weights.

    OpenVINO fuses most attention into one operator. One softmax alone can be the last activation.
    """
    kinds = Counter(node.get_type_name() for node in model.get_ops())
    return kinds["ScaledDotProductAttention"] > 0 or kinds["Softmax"] > 1


def _find_normalization(model: Any) -> list[str]:
    """Returns the names of the operators that normalize 8-bit images. They remain in float32."""
    (image,) = model.get_parameters()
    pending = [image] if image.get_element_type().get_type_name() == "u8" else []
    names: list[str] = []
    while pending:
        for tensor in pending.pop().output(0).get_target_inputs():
            node = tensor.get_node()
            if node.get_type_name() not in _WEIGHTED and node.get_friendly_name() not in names:
                names.append(node.get_friendly_name())
                pending.append(node)
    return names


def _replace(model: Any, file: Path, *, compress: bool) -> None:
    """Replaces the files of a model. Old files are not modified, because OpenVINO may have mapped them."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        written = Path(folder) / file.name
        _save(model, written, compress=compress)
        for part in (written, written.with_suffix(".bin")):
            part.replace(file.with_name(part.name))


def _save(model: Any, file: Path, *, compress: bool) -> None:
    """Writes a model.

    Raises:
        OSError: The model cannot be written. The message contains the free disk space.
    """
    import openvino

    try:
        openvino.save_model(model, file, compress_to_fp16=compress)
    except RuntimeError as error:
        free = shutil.disk_usage(file.parent).free / 1e6
        raise OSError(f"OpenVINO cannot write {file.name} ({free:.0f} MB are free): {error}") from None


def _count_operators(model: Any) -> QuantizedOperators:
    """Returns the operators that OpenVINO runs on this CPU, after it has fused and converted them."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    int8: Counter[str] = Counter()
    float32: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        kind, precision = (info[key].astype(str) for key in ("layerType", "runtimePrecision"))
        if kind not in _PASSIVE:
            (int8 if precision in _INT8 else float32)[kind] += 1
    return QuantizedOperators(
        dict(int8.most_common()), tuple(f"{count} {kind}" for kind, count in float32.most_common())
    )
