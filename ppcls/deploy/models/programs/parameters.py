"""Checks ``inference.pdiparams``, the parameters of an exported program, without reading their values.

The file contains the tensors in the order of their names, but not the names. A tensor consists of the version
0 (uint32), the number of lists of sequence lengths (uint64, always 0 here), the version 0 again, the size of
a Protobuf message ``TensorDesc`` (int32), the message, and the values.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from typing import BinaryIO

from ppcls.data.records.messages import ProtobufError
from ppcls.deploy.models.programs.legacy import DTYPES, TensorDesc
from ppcls.deploy.models.programs.parts import MAX_RANK, ProgramError, StoredTensor
from ppcls.errors import counted

_HEADER = struct.Struct("<IQIi")
_MAX_DESCRIPTION = 11 * (MAX_RANK + 1)  # bytes of a message
_SIZES = {"float16": 2, "bfloat16": 2, "int16": 2, "float32": 4, "int32": 4, "float64": 8, "int64": 8}


def check_parameters(file: BinaryIO, parameters: Sequence[StoredTensor]) -> None:
    """Checks that a file contains the parameters of a program.

    Args:
        file: File of parameters.
        parameters: Parameters of the program, in any order.

    Raises:
        ProgramError: The file is damaged, or its tensors have other shapes or data types.
    """
    size = os.fstat(file.fileno()).st_size
    for parameter in sorted(parameters, key=lambda parameter: parameter.name):
        where = f"parameter {parameter.name[:64]!r}"
        dtype, shape = _read_description(file, where)
        if (dtype, shape) != (parameter.dtype, parameter.shape):
            raise ProgramError(
                f"{where}: expected {parameter.dtype} of the shape {list(parameter.shape)} as in the "
                f"program, found {dtype} {list(shape)}"
            )
        end = file.tell() + math.prod(shape) * _SIZES.get(dtype, 1)
        if end > size:
            raise ProgramError(
                f"{where}: expected values up to byte {end:,}, but the file has {size:,} bytes"
            )
        file.seek(end)
    if file.tell() != size:
        raise ProgramError(
            f"expected {counted(len(parameters), 'parameter')}, found {size - file.tell():,} more bytes"
        )


def _read_description(file: BinaryIO, where: str) -> tuple[str, tuple[int, ...]]:
    """Returns the data type and the shape of the next tensor in a file."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ProgramError(f"{where}: the file ends before it")
    version, lengths, tensor_version, length = _HEADER.unpack(header)
    if version or lengths or tensor_version or not 0 < length <= _MAX_DESCRIPTION:
        raise ProgramError(f"{where}: expected a tensor, found other bytes")
    tensor = TensorDesc()
    try:
        tensor.ParseFromString(file.read(length))
    except ProtobufError as error:
        raise ProgramError(f"{where}: damaged description of a tensor: {error}") from None
    shape = tuple(tensor.dims)
    if tensor.data_type not in DTYPES or len(shape) > MAX_RANK or any(side < 0 for side in shape):
        raise ProgramError(
            f"{where}: expected a tensor, found the data type {tensor.data_type} and the shape {list(shape)}"
        )
    return DTYPES[tensor.data_type], shape
