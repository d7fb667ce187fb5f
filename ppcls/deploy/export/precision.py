"""Converts ONNX models to float16, and to int8 with ONNX Runtime's static quantization."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from ppcls.deploy.models.description import Precision
from ppcls.deploy.models.paddle_inference import capture_native_output
from ppcls.errors import UserError
from ppcls.files.temporary import temporary_folder

Array = NDArray[Any]
CalibrationMethod = Literal["percentile", "entropy", "minmax"]
Activations = Literal["unsigned", "signed"]

CALIBRATION_METHODS: tuple[CalibrationMethod, ...] = get_args(CalibrationMethod)
# For the ResNet18 of the quick start, the largest difference of a score from float32 is 0.48 with one
# calibration image, 0.13 with two, and 0.08 to 0.10 with 4 to 64: it needs a quarter of these images.
FEWEST_CALIBRATION_IMAGES = 16
# Packages that onnxruntime's conversion tools import.
_PACKAGES = "'onnx>=1.16' 'ml_dtypes>=0.5'"
_QUANTIZE = "QuantizeLinear"
_DEQUANTIZE = "DequantizeLinear"
_WEIGHTED = ("Conv", "Gemm", "MatMul")
# Networks with this operator are quantized only in layers with weights. The sums of residual branches and the
# weights of attention have values of very different sizes, of which 8 bits keep only the largest.
_NORMALIZATION = "LayerNormalization"
_FLOAT_OUTPUT = ("Gemm", "MatMul")  # int8 operators that return float32


@contextmanager
def _temporary_files() -> Iterator[Path]:
    """Yields a temporary folder, in which onnxruntime then creates its own temporary folders, too."""
    with temporary_folder("int8") as folder:
        default = tempfile.tempdir
        tempfile.tempdir = str(folder)
        try:
            yield folder
        finally:
            tempfile.tempdir = default


@dataclass(frozen=True)
class QuantizedOperators:
    """Operators of an int8 model.

    Attributes:
        int8: Number of operators with int8 inputs, by type.
        float32: Types of the operators that compute in float32, for example because they do not support int8.
    """

    int8: dict[str, int]
    float32: tuple[str, ...]


def need_precision_tools(precision: Precision) -> None:
    """Checks that the packages that convert a model to a precision are installed.

    Raises:
        UserError: A package is missing. The message contains the command that installs it.
    """
    try:
        if precision in ("float16", "int8"):
            import onnxruntime.quantization
            import onnxruntime.transformers.float16

            onnxruntime.disable_telemetry_events()
    except ImportError as error:
        raise UserError(f"--precision {precision}: {error}; pip install {_PACKAGES}") from None


def to_float16(file: Path, name: str) -> None:
    """Converts an ONNX model to float16, in place. Its input and output remain float32.

    Batch normalization becomes part of the convolutions before weights are rounded. Otherwise, engines that
    join both later round again, each in its own way: the probabilities of EfficientNet-Lite0 then differed
    by 0.02 between two engines, and by 1e-6 with joined weights.

    Args:
        file: The model in float32.
        name: Name of the architecture, for messages.

    Raises:
        UserError: onnxruntime cannot convert the model.
    """
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _temporary_files() as folder, _explaining_errors(name, folder, "--precision float32"):
        fused = folder / "fused.onnx"
        _fuse(file, fused)
        converted = convert_float_to_float16(onnx.load(fused), keep_io_types=True)
        remove_unused_domains(converted)
        data = converted.SerializeToString()
    file.write_bytes(data)


def remove_unused_domains(model: Any) -> None:
    """Removes the domains of operators that no node uses, which conversion tools add."""
    used = {node.domain for node in model.graph.node}
    kept = [entry for entry in model.opset_import if entry.domain in used | {""}]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _fuse(file: Path, fused: Path) -> None:
    """Writes a model with computed constants, and with batch normalization inside its convolutions."""
    from onnxruntime import quantization

    with hide_tool_output():
        quantization.quant_pre_process(file, fused, skip_symbolic_shape=True)


@contextmanager
def _explaining_errors(name: str, folder: Path, alternative: str) -> Iterator[None]:
    """Raises errors of onnxruntime's conversion tools as `UserError`.

    Args:
        name: Name of the architecture.
        folder: Folder of the temporary files.
        alternative: Options that avoid the conversion.
    """
    from google.protobuf.message import DecodeError

    try:
        yield
    except (DecodeError, OSError) as error:
        # onnxruntime does not notice when it writes an incomplete file, and cannot decode it later.
        place = folder.parent
        raise UserError(
            f"onnxruntime cannot convert {name}: {type(error).__name__}: {error}; its temporary files in "
            f"{place} ({shutil.disk_usage(place).free / 1e6:.0f} MB are free) may not fit; set TMPDIR to a "
            "folder on another disk"
        ) from None
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise UserError(
            f"onnxruntime cannot convert {name}: {type(error).__name__}: {error}; use {alternative}"
        ) from None


def quantize(
    file: Path,
    name: str,
    input_name: str,
    batches: Sequence[Array],
    method: CalibrationMethod,
    activations: Activations = "unsigned",
) -> QuantizedOperators:
    """Converts an ONNX model to int8, in place.

    The model has the QDQ format, with ranges per channel for weights and per tensor for activations. Weights
    have 7 bits: with 8 bits, sums of two products saturate on CPUs without VNNI instructions, so the accuracy
    would depend on the machine.

    Args:
        file: The model in float32.
        name: Name of the architecture, for messages.
        input_name: Name of the model's input.
        batches: Inputs of the model, from which the ranges of activations are computed.
        method: Method that chooses a range from the values of a tensor.
        activations: Type of the activations. ``unsigned`` uses all 8 bits for outputs of ReLU. ``signed`` has
            no zero points and no int32 biases, because TensorRT supports neither.

    Returns:
        The operators of the int8 model.

    Raises:
        UserError: onnxruntime cannot quantize the model, or none of its operators supports int8.
    """
    import onnx
    from onnxruntime import quantization

    methods = {
        "percentile": quantization.CalibrationMethod.Percentile,
        "entropy": quantization.CalibrationMethod.Entropy,
        "minmax": quantization.CalibrationMethod.MinMax,
    }
    signed = activations == "signed"
    with (
        _temporary_files() as folder,
        _explaining_errors(name, folder, "--precision float16 or float32"),
    ):
        fused, result = (folder / f"{step}.onnx" for step in ("fused", "int8"))
        _fuse(file, fused)
        graph = onnx.load(fused).graph
        is_transformer = any(node.op_type == _NORMALIZATION for node in graph.node)
        excluded = [*_find_float_nodes(graph), *(_find_products(graph) if is_transformer else ())]
        with hide_tool_output():
            quantization.quantize_static(
                fused,
                result,
                _CalibrationBatches(input_name, batches),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                reduce_range=True,
                activation_type=quantization.QuantType.QInt8 if signed else quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=methods[method],
                op_types_to_quantize=list(_WEIGHTED) if is_transformer else None,
                nodes_to_exclude=excluded,
                extra_options={
                    # Number of batches whose activations the calibrator keeps in memory.
                    "CalibStridedMinMax": 1,
                    # Logits with 8 bits would often be equal.
                    "OpTypesToExcludeOutputQuantization": list(_FLOAT_OUTPUT),
                    "ActivationSymmetric": signed,
                    "QuantizeBias": not signed,
                },
            )
        model = onnx.load(result)
    operators = _count_operators(model.graph)
    if not operators.int8:
        raise UserError(
            f"{name}: no operator of this model supports int8 ({', '.join(operators.float32)}); "
            "use --precision float16 or float32"
        )
    remove_unused_domains(model)
    file.write_bytes(model.SerializeToString())
    return operators


class _CalibrationBatches:
    """A ``CalibrationDataReader`` of onnxruntime, which returns one batch after another."""

    def __init__(self, name: str, batches: Sequence[Array]) -> None:
        self._name = name
        self._batches = batches
        self._range = iter(batches)

    def __len__(self) -> int:
        return len(self._batches)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Selects the batches that `get_next` returns."""
        self._range = iter(self._batches[start_index:end_index])

    def get_next(self) -> dict[str, Array] | None:
        """Returns a dict from the input's name to the next batch, or None after the last batch."""
        batch = next(self._range, None)
        return None if batch is None else {self._name: batch}


@contextmanager
def hide_tool_output() -> Iterator[None]:
    """Hides the output of quantization tools, which users of ppcls cannot act on."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()), capture_native_output():
            yield
    finally:
        logging.disable(logging.NOTSET)


def _find_float_nodes(graph: Any) -> list[str]:
    """Returns the names of the nodes that remain in float32.

    These are all Softmax nodes, the output node, and the nodes that normalize 8-bit images.
    """
    import onnx

    outputs = {tensor.name for tensor in graph.output}
    (image,) = graph.input
    unsigned = image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    pixels = {image.name} if unsigned else set()
    names = []
    for node in graph.node:  # in topological order
        if not pixels.isdisjoint(node.input) and node.op_type not in _WEIGHTED:
            pixels |= set(node.output)
            names.append(node.name)
        elif node.op_type == "Softmax" or not outputs.isdisjoint(node.output):
            names.append(node.name)
    return names


def _find_products(graph: Any) -> list[str]:
    """Returns the names of the matrix products without weights, as in attention."""
    stored = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and stored.isdisjoint(node.input)]


def _count_operators(graph: Any) -> QuantizedOperators:
    """Returns the number of int8 operators by type, and the types of all other operators."""
    from_int8 = {node.output[0] for node in graph.node if node.op_type == _DEQUANTIZE}
    quantized = {node.input[0] for node in graph.node if node.op_type == _QUANTIZE}
    int8: Counter[str] = Counter()
    float32: set[str] = set()
    for node in graph.node:
        if node.op_type in (_QUANTIZE, _DEQUANTIZE):
            continue
        if (
            node.input[:1]
            and node.input[0] in from_int8
            and (node.op_type in _FLOAT_OUTPUT or node.output[0] in quantized)
        ):
            int8[node.op_type] += 1
        else:
            float32.add(node.op_type)
    return QuantizedOperators(dict(int8.most_common()), tuple(sorted(float32)))
