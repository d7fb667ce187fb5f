"""Arrays in files: safetensors for what we write, and PaddleClas's ``.pdparams`` to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import safetensors.numpy
from numpy.typing import NDArray
from paddle import nn
from safetensors import SafetensorError

from ppcls.errors import UserError
from ppcls.files import atomic_write
from ppcls.weights.manifest import MANIFEST, check_file, read_manifest
from ppcls.weights.pickled import unpickle
from ppcls.weights.store import BEST
from ppcls.zoo import weights_folder, weights_url

Arrays = dict[str, NDArray[Any]]
_SHOWN = 5

WEIGHTS = "model.safetensors"
AVERAGE = "ema.safetensors"


def pack_arrays(tensors: Mapping[str, paddle.Tensor]) -> bytes:
    """Returns tensors (float32, float16 or integers) as the bytes of a safetensors file."""
    arrays = {}
    for key, tensor in tensors.items():
        # Of a tensor that lies in a larger buffer, as in `Flat`, Paddle's numpy() copies the whole buffer.
        copy = paddle.assign(tensor.detach())
        arrays[key] = np.ascontiguousarray(copy.numpy())
    packed: bytes = safetensors.numpy.save(arrays)
    return packed


def write_arrays(path: Path, tensors: Mapping[str, paddle.Tensor]) -> None:
    """Writes tensors (float32, float16 or integers) as one safetensors file, atomically.

    Raises:
        OSError: It can't be written, such as on a full disk.
    """
    with atomic_write(path) as file:
        file.write(pack_arrays(tensors))


def read_arrays(path: Path) -> Arrays:
    """Reads a safetensors file.

    Raises:
        UserError: It is missing or damaged, or holds a type that numpy lacks, such as bfloat16.
    """
    try:
        return dict(safetensors.numpy.load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: damaged, or not a safetensors file: {error}") from None
    except (AttributeError, TypeError) as error:
        raise UserError(f"{path}: holds a type that can't be read; save it as float32: {error}") from None


def read_pdparams(path: Path) -> Arrays:
    """Reads weights that Paddle pickled, running none of the file's code.

    Raises:
        UserError: It is missing, damaged, asks for more than arrays, or has none.
    """
    content = unpickle(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping from names to arrays, got {type(content).__name__}")
    arrays = {str(key): array for key, value in content.items() if (array := as_array(value)) is not None}
    if not arrays:
        raise UserError(f"{path}: no arrays in it; expected a model's weights")
    return arrays


def as_array(value: Any) -> NDArray[Any] | None:
    """Returns the array of an entry, which Paddle may have put into a pair with its name."""
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        return None
    if value.dtype == np.uint16:  # Paddle's word for bfloat16: the upper half of a float32
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value


def read_weights(path: Path) -> Arrays:
    """Reads model weights from wherever they are.

    Args:
        path: A checkpoint folder (its moving average where it has one), a ``.safetensors`` or a
            ``.pdparams`` file; the ending ``.pdparams`` may be left out, as PaddleClas does.

    Raises:
        UserError: Nothing there, or nothing that is weights.
    """
    if path.parent == weights_folder() and not path.exists():
        url = weights_url(path.name)
        raise UserError(
            f"{path}: file not found. `pretrained: True` does not download: "
            + (f"save {url} there" if url else "PaddleClas publishes no such file")
            + ", or set `pretrained` to another file"
        )
    if path.is_dir():
        average = path / AVERAGE
        if not (path / WEIGHTS).is_file():
            best = path / BEST
            hint = f"; name the run's best model, {best}" if best.is_dir() else ""
            raise UserError(f"{path}: not a checkpoint folder: it has no {WEIGHTS}{hint}")
        file = average if average.is_file() else path / WEIGHTS
        if (path / MANIFEST).is_file() and (expected := read_manifest(path).files.get(file.name)):
            check_file(file, expected)
        return read_arrays(file)
    if path.suffix == ".safetensors":
        return read_arrays(path)
    if path.suffix != ".pdparams":
        named = path.with_name(f"{path.name}.pdparams")
        if not named.is_file():
            raise UserError(
                f"{path}: no weights there; expected a checkpoint folder, a .safetensors or a .pdparams file"
            )
        path = named
    return read_pdparams(path)


def fill_model(model: nn.Layer, arrays: Arrays, source: Path | str) -> None:
    """Puts weights into a model, all of them; raises as `fill` does.

    What the model calls ``derived``, by the last part of the name, may be missing and is not read: its
    values follow from the architecture, and PaddleClas's versions differ in whether they write it.
    """
    derived = tuple(f".{name}" for name in getattr(model, "derived", ()))
    own, learnt = (
        {name: value for name, value in each.items() if not name.endswith(derived)}
        for each in (model.state_dict(), arrays)
    )
    fill(own, learnt, source)


def fill(own: Mapping[str, paddle.Tensor], arrays: Arrays, source: Path | str) -> None:
    """Puts arrays into tensors of the same names, all of them.

    Raises:
        UserError: A name is missing or unknown, or a shape differs, or integers are to be weights;
            nothing is changed.
    """
    problems = [f"{name}: missing" for name in own.keys() - arrays.keys()]
    problems += [f"{name}: not in the model" for name in arrays.keys() - own.keys()]
    problems += [
        f"{name}: expected {list(own[name].shape)}, got {list(arrays[name].shape)}"
        for name in own.keys() & arrays.keys()
        if list(own[name].shape) != list(arrays[name].shape)
    ]
    problems += [
        f"{name}: expected floating numbers, got {arrays[name].dtype}"
        for name in own.keys() & arrays.keys()
        if own[name].is_floating_point() and arrays[name].dtype.kind != "f"
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "; ".join(sorted(problems)[:_SHOWN])
        raise UserError(f"{source}: weights of another model (is Arch the same?): {shown}{more}")
    _copy(own, arrays)


def start_from(model: nn.Layer, arrays: Arrays, source: Path | str) -> list[str]:
    """Fills a model that is about to be trained; a classifier for other classes stays fresh.

    Returns:
        Names that keep their fresh values because their shape depends on the classes.

    Raises:
        UserError: Something else differs than the shape of linear layers that end in the classes.
    """
    own = model.state_dict()
    differing = [
        name for name in own.keys() & arrays.keys() if list(own[name].shape) != list(arrays[name].shape)
    ]
    fresh = differing if _ends_in_classes(model, differing, own, arrays) else []
    kept = {**arrays, **{name: own[name].numpy() for name in fresh}}
    fill_model(model, kept, source)
    return sorted(fresh)


def _ends_in_classes(
    model: nn.Layer, names: list[str], own: Mapping[str, paddle.Tensor], arrays: Arrays
) -> bool:
    """Whether all of ``names`` are linear layers', and their last sides m in the model and n in the file."""
    linear = {name for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)}
    return (
        all(name.rpartition(".")[0] in linear for name in names)
        and all(_only_classes_differ(list(own[name].shape), list(arrays[name].shape)) for name in names)
        and len({(own[name].shape[-1], arrays[name].shape[-1]) for name in names}) == 1
    )


def _only_classes_differ(own: list[int], other: list[int]) -> bool:
    return own != other and len(own) == len(other) and own[:-1] == other[:-1]


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _copy(own: Mapping[str, paddle.Tensor], arrays: Arrays) -> None:
    for name, tensor in own.items():
        tensor.copy_(paddle.to_tensor(arrays[name]).astype(tensor.dtype), True)
