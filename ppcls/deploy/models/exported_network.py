"""Models that ppcls exported for itself: an architecture in ``inference.yml``, and its weights.

On a GPU, such a model is as fast as the checkpoint, because ppcls builds the network with its own kernels.
Paddle Inference has neither these kernels nor fused attention. The files contain no program, so they run no
code of their author.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from ppcls.arch.fuse import InferenceLayers
from ppcls.deploy.models.description import ModelDescription
from ppcls.deploy.models.description import Precision as PrecisionName
from ppcls.deploy.models.trained import TrainedModel, load_network
from ppcls.engine.core.precision import FP32, Precision, build_precision
from ppcls.engine.core.settings import AMP, ExecutionSettings
from ppcls.errors import UserError
from ppcls.files import atomic_write
from ppcls.runtime.start import Runtime
from ppcls.weights.files import Arrays, pack_arrays, read_arrays


def write_weights(file: Path, arrays: Arrays) -> None:
    """Writes the weights of a network.

    Raises:
        OSError: The file cannot be written.
    """
    with atomic_write(file) as stream:
        stream.writelines(pack_arrays(arrays))


def to_float16(file: Path, name: str) -> None:
    """Rounds the kernels and matrices in a file of weights to float16, in place.

    Vectors, such as biases and the statistics of batch norms, are small and remain float32.

    Args:
        file: Weights in float32.
        name: Name of the architecture, for messages.

    Raises:
        UserError: A weight is too large for float16.
    """
    arrays = read_arrays(file)
    for key, array in arrays.items():
        if array.dtype != np.float32 or array.ndim < 2:
            continue
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float16)
        if np.isinf(rounded).any() and np.isfinite(array).all():
            raise UserError(
                f"{name}: {key} contains {np.abs(array).max():.3g}, which float16 cannot represent; nothing "
                "was written; use --precision float32 or bfloat16"
            )
        arrays[key] = rounded
    write_weights(file, arrays)


def load_exported_network(
    file: Path, description: ModelDescription, settings: ExecutionSettings, runtime: Runtime
) -> TrainedModel:
    """Loads a model that ppcls exported for itself.

    On a GPU, it computes in the precision of the export, with the fused kernels unless
    ``Global.fused_kernels`` is False. On a CPU, it computes in float32.

    Args:
        file: Weights.
        description: Description of the model, with its architecture.
        settings: Whether fused kernels and CUDA graphs are used.
        runtime: Device to run on.

    Raises:
        UserError: The weights cannot be read, or do not fit the architecture.
    """
    assert description.Arch is not None  # checked when the model was found
    precision = _build_precision(description.precision, runtime.device)
    chosen = settings.fused_kernels
    layers = InferenceLayers.choose(description.Arch, chosen, runtime.device, precision.name)
    network = load_network(layers.arch, (), file)
    layers.apply(network, constant=True)
    # Also for a run that did not use them. The fused kernels need NHWC, in which all but a few architectures
    # were exported.
    fuses = description.Arch.data_format == "NHWC" and chosen is not False
    settings = settings.model_copy(update={"fused_kernels": fuses})
    return TrainedModel(network, precision, settings, description, file, runtime)


def _build_precision(name: PrecisionName, device: Literal["cpu", "gpu"]) -> Precision:
    if name == "float32" or device == "cpu":
        return FP32()
    # With O1, the weights would be float32, and cast for each batch.
    return build_precision(AMP.model_validate({"level": "O2", "dtype": name}), device)
