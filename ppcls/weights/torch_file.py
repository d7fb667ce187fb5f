"""Reads files of PyTorch (`TORCH_ENDINGS`) without PyTorch and without executing code in the file.

Since PyTorch 1.6, the file is a zip archive with one pickle and one member per storage. In older versions,
the file is a series of pickles followed by the storages. PyTorch's torch/serialization.py documents both
formats. A tensor consists of a storage, an offset, a shape and strides.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppcls.files import open_regular
from ppcls.weights.pickle_interpreter import (
    MAX_DIMENSIONS,
    MAX_INTEGER,
    PickledConstructor,
    PickleInterpreter,
    ReadBudget,
    RejectedFileError,
    describe_value,
    expect_type,
)
from ppcls.weights.pickled import reading_weights

# timm writes .pth.tar, Hugging Face .bin, and PyTorch Lightning .ckpt.
TORCH_ENDINGS = (".pth", ".pt", ".pth.tar", ".bin", ".ckpt")
# Keys under which training scripts save the state dict. Like timm, ppcls prefers a moving average.
_STATE_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model", "net")
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # first value of files before PyTorch 1.6
_BYTE_ORDER = "byteorder"  # member of the archive
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",  # the upper half of a float32
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_TENSOR_ARGUMENTS = 4  # storage, offset, shape and strides; further arguments do not change the values


@dataclass
class _Storage:
    """A one-dimensional array of the file. In the older format, its values are read after the pickles."""

    kind: str
    key: str
    values: NDArray[Any] | None = None


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _TorchInterpreter(PickleInterpreter):
    """Interprets the pickle of a PyTorch file, in which tensors refer to storages."""

    constructors: ClassVar[Mapping[tuple[str, str], str]] = {
        **PickleInterpreter.constructors,
        ("argparse", "Namespace"): "dict",  # the options of timm's training script; `build` ignores them
        ("torch._utils", "_rebuild_tensor_v2"): "tensor",
        ("torch._utils", "_rebuild_parameter"): "parameter",
        **{("torch", name): name for name in _DTYPES},
    }

    def __init__(self, budget: ReadBudget) -> None:
        super().__init__(budget)
        self.storages: dict[str, _Storage] = {}

    def persistent_value(self, value: Any) -> Any:
        """Returns the storage that a persistent id describes: ("storage", type, key, device, size …)."""
        tag, constructor, key = expect_type(tuple, value)[:3]
        kind = expect_type(PickledConstructor, constructor).kind
        if tag != "storage" or kind not in _DTYPES:
            raise RejectedFileError("a reference to an object that is not a storage")
        return self.storages.setdefault(expect_type(str, key), _Storage(kind, key))

    def construct(self, kind: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the object that a constructor creates. Supports the constructors that state dicts need."""
        if kind == "tensor":
            storage, offset, shape, strides = arguments[:_TENSOR_ARGUMENTS]
            numbers = [offset, *expect_type(tuple, shape), *expect_type(tuple, strides)]
            if not len(shape) == len(strides) <= MAX_DIMENSIONS:
                raise ValueError(
                    f"expected a tensor with at most {MAX_DIMENSIONS} dimensions and one stride for each, "
                    f"found {len(shape)} dimensions and {len(strides)} strides"
                )
            for number in numbers:
                if type(number) is not int or not 0 <= number < MAX_INTEGER:
                    raise ValueError(
                        "expected integers from 0 to 2**63 - 1 as offset, shape and strides of a tensor, "
                        f"found {describe_value(number)}"
                    )
            return _Tensor(expect_type(_Storage, storage), offset, shape, strides)
        if kind == "parameter":
            return expect_type(_Tensor, arguments[0])
        return super().construct(kind, arguments)


def read_torch(path: Path) -> dict[str, NDArray[Any]]:
    """Reads the state dict of a PyTorch file.

    Returns:
        Contiguous arrays by name. Tensors of bfloat16 are converted to float32.

    Raises:
        UserError: The file is missing or damaged, or contains objects other than tensors.
    """
    with reading_weights(path), open_regular(path) as file:
        size = path.stat().st_size
        budget = ReadBudget(size)
        try:
            archived = zipfile.is_zipfile(file)
            content = _read_zip(file, size, budget) if archived else _read_legacy(file, budget)
        except (zipfile.BadZipFile, RuntimeError) as error:  # RuntimeError: encrypted or unknown compression
            raise ValueError(str(error)) from None
        content = expect_type(dict, content)
        while (key := next(filter(partial(_is_state, content), _STATE_KEYS), None)) is not None:
            content = content[key]
        return {
            str(name): _view(tensor, budget)
            for name, tensor in content.items()
            if isinstance(tensor, _Tensor)
        }


def _is_state(content: Mapping[Any, Any], key: str) -> bool:
    """Returns whether the content of a file has a state dict with this key; an unused average is empty."""
    return isinstance(content.get(key), dict) and bool(content[key])


def _read_zip(file: Any, size: int, budget: ReadBudget) -> Any:
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
            raise RejectedFileError("a compressed ZIP archive, which torch.save never writes")
        total = sum(info.file_size for info in members.values())
        if total > size:
            raise ValueError(f"expected members of at most {size} bytes in total, found {total} bytes")
        pickle = next((name for name in members if name.endswith("/data.pkl")), None)
        if pickle is None:
            raise ValueError("expected a ZIP archive with the member data.pkl, found none")
        interpreter = _TorchInterpreter(budget)
        content = interpreter.run(archive.read(pickle))
        root = pickle.removesuffix("data.pkl")
        folder = root + "data/"
        order = archive.read(root + _BYTE_ORDER) if root + _BYTE_ORDER in members else b"little"
        if order not in (b"little", b"big"):
            raise ValueError(f"expected the byte order little or big, found {order[:20]!r}")
        for key, storage in interpreter.storages.items():
            storage.values = _to_array(archive.read(members[folder + key]), storage, order == b"big")
    return content


def _read_legacy(file: Any, budget: ReadBudget) -> Any:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if PickleInterpreter(budget).run(data) != _MAGIC_NUMBER:
            raise ValueError("expected the magic number of PyTorch's files at the start, found another value")
        PickleInterpreter(budget).run(data)  # the version of the format
        system = expect_type(dict, PickleInterpreter(budget).run(data))
        big = system.get("little_endian") is False
        interpreter = _TorchInterpreter(budget)
        content = interpreter.run(data)
        for key in expect_type(list, PickleInterpreter(budget).run(data)):
            storage = interpreter.storages[key]
            (count,) = struct.unpack("<q", data.read(8))
            dtype = np.dtype(_DTYPES[storage.kind])
            rest = len(data) - data.tell()
            if not 0 <= count * dtype.itemsize <= rest:
                raise ValueError(
                    f"expected a storage of at most {rest} bytes, found {count * dtype.itemsize}"
                )
            storage.values = _to_array(data.read(count * dtype.itemsize), storage, big)
    return content


def _to_array(content: bytes, storage: _Storage, big: bool) -> NDArray[Any]:
    """Returns the values of a storage, which a machine with another byte order may have written."""
    dtype = np.dtype(_DTYPES[storage.kind])
    if big:
        return np.frombuffer(content, dtype.newbyteorder(">")).astype(dtype)
    return np.frombuffer(content, dtype)


def _view(tensor: _Tensor, budget: ReadBudget) -> NDArray[Any]:
    """Returns the values of a tensor after checking that its storage contains them."""
    values = tensor.storage.values
    if values is None:
        raise ValueError(f"expected the values of the storage {tensor.storage.key[:20]!r}, found none")
    count = int(np.prod(tensor.shape, dtype=object)) if tensor.shape else 1
    budget.charge(1, count * values.itemsize)
    reach = sum((side - 1) * stride for side, stride in zip(tensor.shape, tensor.strides, strict=True))
    if count and tensor.offset + reach >= len(values):
        raise ValueError(
            f"expected a tensor within the {len(values)} values of its storage, found the position "
            f"{tensor.offset + reach}"
        )
    strides = [stride * values.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides, writeable=False)
    array = np.ascontiguousarray(view).reshape(tensor.shape)
    if tensor.storage.kind == "BFloat16Storage":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
