"""Reads and writes weights: safetensors files, and PaddleClas's ``.pdparams`` files, which are only read."""

from __future__ import annotations

import errno
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import nn
from safetensors import SafetensorError, safe_open

from ppcls.errors import UserError, counted
from ppcls.files import atomic_write, one_line, open_regular
from ppcls.optimizer.name_rules import classifier_layers
from ppcls.registry import suggest
from ppcls.runtime.host_memory import HostMemory
from ppcls.weights.download import download, is_web_page, verify_download
from ppcls.weights.hub import PREFIX, fetch_from_hub
from ppcls.weights.manifest import verify
from ppcls.weights.near_paths import suggest_checkpoint
from ppcls.weights.paddleclas_names import fit_layout, translate
from ppcls.weights.pickled import unpickle
from ppcls.weights.positions import resize_positions
from ppcls.weights.store import BEST
from ppcls.weights.torch_file import TORCH_ENDINGS, read_torch
from ppcls.weights.torch_names import from_torch, is_torch
from ppcls.zoo import (
    ZOO,
    missing_weights_hint,
    package_file,
    published_file,
    weights_folders,
    weights_url,
)

Arrays = dict[str, NDArray[Any]]
_POSITIONS = "pos_embed"  # name of learned position embeddings in vision transformers
_SHOWN = 5
# Names of dtypes in the order of safetensors.
_DTYPE_NAMES = ("BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "F64", "I64", "U64")
_TRANSFER = 64 << 20  # maximum number of bytes that are copied from the device at once

WEIGHTS = "model.safetensors"
AVERAGE = "ema.safetensors"


def copy_to_host(tensors: Mapping[str, paddle.Tensor], memory: HostMemory | None = None) -> Arrays:
    """Returns copies of tensors as NumPy arrays. Later changes of the tensors do not affect the copies.

    Several tensors are joined before the transfer from the device, because one large transfer is faster. It
    also avoids ``numpy()`` of a tensor that is part of a larger buffer, as in `FlatBuffers`, which copies the
    whole buffer.

    Args:
        memory: Memory for the copies, which the next call with the same memory overwrites. If None, the
            copies are in new memory.
    """
    groups: dict[tuple[paddle.dtype, int], list[str]] = {}
    sizes: Counter[paddle.dtype] = Counter()  # bytes
    for name, tensor in tensors.items():
        groups.setdefault((tensor.dtype, sizes[tensor.dtype] // _TRANSFER), []).append(name)
        sizes[tensor.dtype] += math.prod(tensor.shape) * tensor.element_size()
    arrays = {}
    for names in groups.values():
        tensor = paddle.concat([tensors[name].detach().reshape([-1]) for name in names])
        joined = tensor.numpy() if memory is None else memory.copy(f"{tensor.dtype} {names[0]}", tensor)
        ends = np.cumsum([math.prod(tensors[name].shape) for name in names])[:-1]
        for name, part in zip(names, np.split(joined, ends), strict=True):
            arrays[name] = part.reshape(tensors[name].shape)
    return arrays


def pack_arrays(arrays: Arrays) -> Iterator[bytes | memoryview]:
    """Yields the content of a safetensors file with arrays of floats or integers, without copying it.

    The content equals that of ``safetensors.numpy.save``, which however stops all other threads of the
    process while it copies the arrays, for 0.2 s per 100 MB. The order of the arrays is that of safetensors
    0.8: by dtype, then by name. Format: https://huggingface.co/docs/safetensors#format.
    """
    names = sorted(arrays, key=lambda name: (-_DTYPE_NAMES.index(_dtype_name(arrays[name])), name))
    header = {}
    end = 0
    for name in names:
        start = end
        end = end + arrays[name].nbytes
        array = arrays[name]
        header[name] = {
            "dtype": _dtype_name(array),
            "shape": array.shape,
            "data_offsets": (start, end),
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data


def _dtype_name(array: NDArray[Any]) -> str:
    """Returns safetensors' name of an array's dtype, for example F32."""
    return f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}" if array.dtype != bool else "BOOL"


def write_arrays(path: Path, tensors: Mapping[str, paddle.Tensor]) -> None:
    """Writes tensors (float32, float16 or integers) as a safetensors file, atomically.

    Raises:
        OSError: The file can't be written.
    """
    with atomic_write(path) as file:
        file.writelines(pack_arrays(copy_to_host(tensors)))


def read_arrays(path: Path) -> Arrays:
    """Returns the arrays of a safetensors file, which are mapped into memory.

    An array is read from the disk when it is used, and processes of one machine share the memory. So a model
    that is filled from the arrays needs no second copy of all of them. Changes of an array do not change the
    file.

    Raises:
        UserError: The file is missing or damaged, has a dtype that NumPy lacks, such as bfloat16, or is
            larger than the memory.
    """
    try:
        with open_regular(path) as file:  # safe_open would wait for the writer of a pipe
            return _map_arrays(path, file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: shapes that NumPy does not support
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise UserError(_exceeds_memory(path)) from None
        raise UserError(f"{path}: damaged, or not a safetensors file: {error}") from None
    except TypeError as error:
        raise UserError(
            f"{path}: tensors of this dtype are not supported ({error}); save them as float32"
        ) from None
    except BaseException as error:
        # If memory is missing, safetensors raises an exception of Rust that is no Exception.
        if not isinstance(error, MemoryError) and type(error).__name__ != "PanicException":
            raise
        raise UserError(_exceeds_memory(path)) from None


def _map_arrays(path: Path, file: BinaryIO) -> Arrays:
    """Maps the arrays of a file. Safetensors validates the header: the arrays follow each other."""
    with safe_open(path, framework="numpy") as tensors:
        names = tensors.offset_keys()
        headers = [tensors.get_slice(name) for name in names]
        kinds = [(header.get_dtype(), header.get_shape()) for header in headers]
    for dtype, _ in kinds:
        if dtype not in _DTYPE_NAMES:
            raise TypeError(f"found {dtype}")
    start = 8 + int.from_bytes(file.read(8), "little")
    content = np.asarray(np.memmap(file, np.uint8, "c"))
    arrays = {}
    for name, (code, shape) in zip(names, kinds, strict=True):
        dtype = np.dtype(np.bool_ if code == "BOOL" else f"<{code[0].lower()}{int(code[1:]) // 8}")
        end = start + math.prod(shape) * dtype.itemsize
        array = content[start:end].view(dtype).reshape(shape)
        # Other writers may place an array at an odd address.
        arrays[name] = array if array.flags.aligned else array.copy()
        start = end
    return arrays


def _exceeds_memory(path: Path) -> str:
    size = path.stat().st_size
    return (
        f"{path}: there is not enough memory to read {size / 1e9:.2f} GB; free some memory, or start "
        "fewer processes on this machine"
    )


def read_pdparams(path: Path) -> Arrays:
    """Reads weights from a Paddle pickle file, without executing code in the file.

    Raises:
        UserError: The file is missing or damaged, contains objects other than arrays, or contains no arrays.
    """
    content = unpickle(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping from names to arrays, got {type(content).__name__}")
    arrays = arrays_in(content)
    if not arrays:
        raise UserError(f"{path}: contains no arrays; expected the weights of a model")
    return arrays


def arrays_in(content: Mapping[Any, Any]) -> Arrays:
    """Returns the numeric arrays of a mapping. Paddle stores some arrays as pairs of a name and an array.

    An array that occurs several times is converted only once.
    """
    arrays = {}
    converted = dict[int, NDArray[Any]]()
    for key, entry in content.items():
        value = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            continue
        if value.dtype == np.uint16:  # Paddle stores bfloat16 as uint16, the upper half of a float32
            if id(value) not in converted:
                converted[id(value)] = (value.astype(np.uint32) << 16).view(np.float32)
            value = converted[id(value)]
        arrays[str(key)] = value
    return arrays


def read_weights(path: Path) -> Arrays:
    """Reads the weights of a model.

    Args:
        path: One of these: a checkpoint folder, whose moving average is preferred; a ``.safetensors``,
            ``.pdparams`` file, or a file of PyTorch; the name of published weights, such as ``ResNet50``,
            which are downloaded; a model of the Hugging Face hub, as ``hf-hub:OWNER/MODEL``. The ending
            ``.pdparams`` may be omitted, as in PaddleClas.

    Raises:
        UserError: No weights exist at ``path``, or a file of the checkpoint folder is missing or has changed.
    """
    path = fetch_weights(path)
    arrays = _read_file(path)
    if strange := next((name for name in arrays if one_line(name) != name), None):
        raise UserError(f"{path}: expected names of weights without control characters, found {strange!r}")
    return arrays


def _read_file(path: Path) -> Arrays:
    if path.is_dir():
        return read_arrays(path / _weights_file(path))
    if path.is_file() and is_web_page(path):
        raise UserError(f"{path}: expected weights, got a web page; download the file itself")
    if path.suffix == ".safetensors":
        return read_arrays(path)
    if path.name.endswith(TORCH_ENDINGS):
        return read_torch(path)
    return read_pdparams(path)


def fetch_weights(path: Path, *, retry: bool = True) -> Path:
    """Returns the path of the weights that ``path`` names. Downloads published weights if they are missing.

    Args:
        path: Argument of `read_weights`.
        retry: Whether to retry a download after errors that may be temporary.

    Raises:
        UserError: No weights exist at ``path``, or a file has changed since its download.
    """
    if str(path).startswith(PREFIX):
        return fetch_from_hub(str(path))
    if not path.is_dir() and not path.name.endswith((".safetensors", ".pdparams", *TORCH_ENDINGS)):
        with_ending = path.with_name(f"{path.name}.pdparams")
        file = with_ending if with_ending.is_file() else published_file(str(path))
        if file is None:
            similar = suggest(str(path), list(ZOO)) if path.parent == Path() else ""
            raise UserError(
                f"{path}: no weights found; expected a checkpoint folder, a .safetensors, .pdparams or .pth "
                f"file, or the name of an architecture{similar or suggest_checkpoint(path, WEIGHTS)}"
            )
        path = file
    if not path.exists() and (hint := missing_weights_hint(path)) is not None:
        raise UserError(f"{path}: file not found: {hint}; or set `pretrained` to another file")
    if not path.exists() and (near := suggest_checkpoint(path, WEIGHTS)):
        raise UserError(f"{path}: no such file{near}")
    if path.parent in weights_folders() and (url := weights_url(path.name)) is not None:
        download(path, url, read_pdparams, retry=retry)
        verify_download(path)
    elif any(entry.package and path == package_file(entry.package) for entry in ZOO.values()):
        verify_download(path)
    return path


def _weights_file(folder: Path) -> str:
    """Verifies a checkpoint folder and returns the file name of its moving average, or of its weights."""
    if not (folder / WEIGHTS).is_file():
        best = folder / BEST
        hint = f"; expected the best model of the run, {best}" if best.is_dir() else ""
        # Such as inference.safetensors of a model that ppcls exported for itself.
        other = next((file for file in folder.glob("*.safetensors") if file.name != AVERAGE), None)
        if not hint and other is not None:
            hint = f"; to use the weights in {other.name}, name this file: {other}"
        raise UserError(f"{folder}: not a checkpoint folder: {WEIGHTS} is missing{hint}")
    return AVERAGE if AVERAGE in verify(folder).files else WEIGHTS


def non_finite_names(arrays: Arrays) -> list[str]:
    """Returns the names of the arrays that contain NaN or infinite values."""
    return [
        name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()
    ]


def fill_model(model: nn.Layer, arrays: Arrays, source: Path | str) -> None:
    """Copies weights into a model with `fill`.

    Entries whose names end with a name in the model's ``derived`` may be missing and are ignored. The
    architecture determines their values, and only some versions of PaddleClas save them.
    """
    arrays, _ = select_network(model.state_dict().keys(), arrays, source)
    arrays = from_torch(model, arrays, str(source)) if is_torch(model, arrays) else arrays
    derived = tuple(f".{name}" for name in getattr(model, "derived", ()))
    tensors, learned = (
        {name: value for name, value in entries.items() if not name.endswith(derived)}
        for entries in (model.state_dict(), arrays)
    )
    fill(tensors, learned, source)


def fill(tensors: Mapping[str, paddle.Tensor], arrays: Arrays, source: Path | str) -> None:
    """Copies arrays into the tensors with the same names.

    Args:
        tensors: Tensors to change, by name.
        arrays: New values, by name.
        source: Path or name of the weights, for error messages.

    Raises:
        UserError: Names or shapes differ, or an array of integers has the name of a weight. In this case, no
            tensor is changed.
    """
    common = tensors.keys() & arrays.keys()
    problems = [f"{name}: missing" for name in tensors.keys() - arrays.keys()]
    problems += [f"{name}: not in the model" for name in arrays.keys() - tensors.keys()]
    problems += [
        f"{name}: expected shape {list(tensors[name].shape)}, got {list(arrays[name].shape)}"
        for name in common
        if list(tensors[name].shape) != list(arrays[name].shape)
    ]
    problems += [
        f"{name}: expected floating-point numbers, got {arrays[name].dtype}"
        for name in common
        if tensors[name].is_floating_point() and arrays[name].dtype.kind != "f"
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "; ".join(sorted(problems)[:_SHOWN])
        raise UserError(f"{source}: weights of another model (check that Arch is the same): {shown}{more}")
    with paddle.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(paddle.to_tensor(arrays[name]).astype(tensor.dtype), True)


def select_network(names: Collection[str], arrays: Arrays, source: Path | str) -> tuple[Arrays, str]:
    """Selects the weights of one model in a file that PaddleClas wrote; see `translate`.

    Returns:
        The weights, and a text for the log about what was selected; "" if nothing was.

    Raises:
        UserError: See `translate`.
    """
    translation = translate(names, arrays, source)
    selected = {own: fit_layout(own, arrays[name]) for name, own in translation.names.items()}
    return selected, translation.selected


class StartReport(NamedTuple):
    """The differences between a model's initial weights and the weights in a file.

    Attributes:
        random: Names of the weights that were not copied from the file and keep their random values.
        adapted: Line for the log if the weights were adapted to another number of input channels or another
            image size; otherwise "".
        selected: Text for the log about the part of the file that was used; "" if all weights were used.
    """

    random: list[str]
    adapted: str = ""
    selected: str = ""


def start_from(model: nn.Layer, arrays: Arrays, source: Path | str) -> StartReport:
    """Fills a model before training. Classes, input channels and the size of the images may differ.

    A classifier for another number of classes keeps its random weights, and so does one that the file lacks.
    A head of another kind also keeps its random weights (``new_head``, see `ppcls.arch.layers.ml_decoder`).
    Learned position embeddings are interpolated to the size of the images. If the number of input channels
    differs, the weights of the first layer are averaged or repeated. They are then scaled, so that outputs
    keep a similar magnitude.

    Args:
        model: Model to fill.
        arrays: Weights, by name. They may have the names and layouts of PyTorch.
        source: Path or name of the weights, for error messages.

    Raises:
        UserError: The weights differ in another way.
    """
    tensors = model.state_dict()
    arrays, selected = select_network(tensors.keys(), arrays, source)
    arrays = from_torch(model, arrays, str(source)) if is_torch(model, arrays) else arrays
    head = f"{getattr(model, 'new_head', None)}."
    of_head = [name for name in tensors if name.startswith(head)]
    if of_head and not any(name in arrays for name in of_head):
        arrays = {name: array for name, array in arrays.items() if not name.startswith(head)}
        arrays |= {name: tensors[name].numpy() for name in of_head}
    else:
        of_head = _missing_classifier(model, arrays)
        arrays = {**arrays, **{name: tensors[name].numpy() for name in of_head}}
    arrays, resized = _resize_positions(model, arrays)
    shapes = {
        name: (list(tensors[name].shape), list(arrays[name].shape)) for name in tensors.keys() & arrays.keys()
    }
    differing = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    first = {name: pair for name, pair in differing.items() if len(pair[0]) == 4}
    others = {name: pair for name, pair in differing.items() if name not in first}
    adapted = ""
    if first and _only_channels_differ(first):
        new, old = next((new[1], old[1]) for new, old in first.values())
        arrays = {**arrays, **{name: _adapt_channels(arrays[name], new) for name in first}}
        done = "averaged" if new < old else "repeated"
        adapted = f"{', '.join(sorted(first))}: weights of {counted(old, 'input channel')} {done} for {new}"
    random = sorted(others) if _only_classes_differ(model, others) else []
    fill_model(model, {**arrays, **{name: tensors[name].numpy() for name in random}}, source)
    return StartReport([*random, *of_head], "; ".join(filter(None, (adapted, resized))), selected)


def _missing_classifier(model: nn.Layer, arrays: Arrays) -> list[str]:
    """Returns the weights of the classifier if only these are missing, as in files of backbones."""
    names = [f"{layer}.{name}" for layer in classifier_layers(model) for name in ("weight", "bias")]
    own = model.state_dict().keys()
    missing = own - arrays.keys()
    is_backbone = own & arrays.keys() and missing == own & set(names)
    return sorted(missing) if is_backbone else []


def _resize_positions(model: nn.Layer, arrays: Arrays) -> tuple[Arrays, str]:
    """Interpolates the position embeddings in a file to the size of the model's images.

    Returns:
        The weights, and a line for the log; "" if the sizes agree or the model has no such embeddings.
    """
    prefix = getattr(model, "prefix_positions", None)
    own = model.state_dict().get(_POSITIONS)
    array = arrays.get(_POSITIONS)
    if prefix is None or own is None or array is None or array.ndim != 3 or array.shape[1] == own.shape[1]:
        return arrays, ""
    resized = resize_positions(array, prefix, own.shape[1] - prefix)
    if resized is None:
        return arrays, ""
    sides = [math.isqrt(positions.shape[1] - prefix) for positions in (array, resized)]
    line = f"{_POSITIONS}: interpolated from {sides[0]} x {sides[0]} to {sides[1]} x {sides[1]} patches"
    return {**arrays, _POSITIONS: resized}, line


def _only_channels_differ(shapes: Mapping[str, tuple[list[int], list[int]]]) -> bool:
    """Returns whether all shapes are those of convolutions and differ only in the number of input channels.

    Args:
        shapes: For each weight whose shapes differ, its shape in the model and in the file.
    """
    return (
        all(len(old) == 4 and (new[0], new[2:]) == (old[0], old[2:]) for new, old in shapes.values())
        and len({(new[1], old[1]) for new, old in shapes.values()}) == 1
    )


def _adapt_channels(weight: NDArray[Any], channels: int) -> NDArray[Any]:
    """Adapts the weight [out, in, height, width] of a first layer to another number of input channels."""
    old = weight.shape[1]
    if channels < old:
        repeated = np.repeat(weight.mean(axis=1, keepdims=True), channels, axis=1)
    else:
        repeated = weight[:, np.arange(channels) % old]
    adapted: NDArray[Any] = (repeated * (old / channels)).astype(weight.dtype)
    return adapted


def _only_classes_differ(model: nn.Layer, shapes: Mapping[str, tuple[list[int], list[int]]]) -> bool:
    """Returns whether all shapes are those of linear layers and differ only in the number of outputs.

    Args:
        model: Model that contains the layers.
        shapes: For each weight whose shapes differ, its shape in the model and in the file.
    """
    linear = {name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)}
    return (
        all(name.rpartition(".")[0] in linear for name in shapes)
        and all(len(new) == len(old) and new[:-1] == old[:-1] for new, old in shapes.values())
        and len({(new[-1], old[-1]) for new, old in shapes.values()}) == 1
    )
