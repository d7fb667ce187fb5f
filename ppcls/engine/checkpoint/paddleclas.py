"""Reads checkpoints of PaddleClas: files ``.pdparams``, ``.pdopt`` and ``.pdstates`` with a common prefix.

If the run had a moving average, ``.pdparams`` contains the average, and an additional file ``.pdema``
contains the raw weights. The optimizer's state uses Paddle's own names, such as ``conv2d_0.w_0_velocity_0``;
``.pdparams`` contains a map from these to the names of the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paddle

from ppcls.engine.checkpoint.snapshot import align_schedule, fill_average, fill_optimizer
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.files import atomic_path
from ppcls.optimizer.functional import SGD_RATE
from ppcls.optimizer.state import MASTER, optimizer_state
from ppcls.weights.files import Arrays, arrays_in, fill, read_pdparams
from ppcls.weights.paddleclas_names import fit_layout, translate
from ppcls.weights.pickled import unpickle

_NAMES = "StructuredToParameterName@@"
_MASTERS = "master_weights"
_MAX_EPOCHS = 1_000_000  # a larger number of epochs means that the file is damaged


def is_paddleclas(prefix: Path) -> bool:
    """Returns whether ``prefix`` is the common prefix of the files of a PaddleClas checkpoint."""
    return all(_file(prefix, ending).is_file() for ending in ("pdparams", "pdopt"))


def restore_paddleclas(state: TrainState, prefix: Path) -> None:
    """Restores a run from a checkpoint of PaddleClas. PaddleClas saves them at the end of an epoch.

    The loss scale and the random states are reset, because PaddleClas does not save them.

    Args:
        prefix: Common prefix of the files.

    Raises:
        UserError: A file is missing or damaged, contains objects that are not arrays, or does not fit the
            model or the optimizer.
    """
    epoch, best = _read_states(_file(prefix, "pdstates"))
    params = _file(prefix, "pdparams")
    raw = _file(prefix, "pdema") if _file(prefix, "pdema").is_file() else params
    saved = read_pdparams(raw)
    names = translate(state.model.state_dict().keys(), saved, raw).names
    weights = {own: fit_layout(own, saved[name]) for name, own in names.items()}
    fill(state.model.state_dict(), weights, raw)
    optimizer = _plain_sgd_state(state)
    optimizer |= _read_optimizer(_file(prefix, "pdopt"), _read_names(raw, names))
    fill_optimizer(state, optimizer, weights, _file(prefix, "pdopt"))
    if state.ema is not None:
        average = read_pdparams(params)
        renamed = {own: fit_layout(own, average[name]) for name, own in names.items() if name in average}
        fill_average(state, renamed, params)
    state.loader.load_state_dict({**state.loader.state_dict(), "epoch": epoch, "step": 0})
    state.progress.update = epoch * state.updates_per_epoch
    state.progress.best = best
    align_schedule(state)


def write_pdparams(path: Path, arrays: Arrays) -> None:
    """Writes weights as a ``.pdparams`` file for PaddleClas and ``paddle.load``, atomically.

    Raises:
        OSError: The file can't be written.
    """
    with atomic_path(path) as temporary:
        paddle.save({name: paddle.to_tensor(array) for name, array in arrays.items()}, str(temporary))


def _file(prefix: Path, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{ending}")


def _read_names(path: Path, own_names: Mapping[str, str]) -> dict[str, str]:
    """Returns a map from Paddle's names of the weights to the names of the model.

    Args:
        own_names: Maps names in the file to names of the model.
    """
    content = unpickle(path)
    names = content.get(_NAMES) if isinstance(content, dict) else None
    if not isinstance(names, dict):
        raise UserError(
            f"{path}: the entry {_NAMES} is missing; it is needed to match the state in the .pdopt file to "
            "the weights; to train from these weights only, use Global.pretrained_model"
        )
    return {str(paddle_name): own_names[name] for name, paddle_name in names.items() if name in own_names}


def _read_states(path: Path) -> tuple[int, float | None]:
    """Returns the number of finished epochs, and the best metric so far or None."""
    content = unpickle(path)
    epoch = content.get("epoch") if isinstance(content, dict) else None
    if not isinstance(epoch, int) or not 0 <= epoch < _MAX_EPOCHS:
        raise UserError(f"{path}: expected a mapping with an integer 'epoch' from 0 to {_MAX_EPOCHS - 1}")
    metric = content.get("metric")
    return epoch, float(metric) if isinstance(metric, float) and 0 <= metric < math.inf else None


def _read_optimizer(path: Path, names: dict[str, str]) -> Arrays:
    """Returns the state of the optimizers, keyed by ppcls's names, such as ``fc.weight/velocity``.

    With `CenterLoss`, the file contains two optimizers, which update different weights.
    """
    content = unpickle(path)
    states = content if isinstance(content, list) else [content]
    arrays: Arrays = {}
    for state in states:
        if not isinstance(state, dict):
            raise UserError(
                f"{path}: expected a mapping with the state of each optimizer, got {type(state).__name__}"
            )
        arrays |= _rename(path, state, names)
        masters = state.get(_MASTERS)
        for paddle_name, array in arrays_in(masters if isinstance(masters, dict) else {}).items():
            if paddle_name in names:
                arrays[f"{names[paddle_name]}/{MASTER}"] = array
    return {name: fit_layout(name, array) for name, array in arrays.items()}


def _plain_sgd_state(state: TrainState) -> Arrays:
    """Returns the optimizer's state for weights that plain SGD updates, which it does not use.

    PaddleClas's files lack it, because another optimizer updates these weights.
    """
    plain = {name for name, weight in state.model.named_parameters() if SGD_RATE in weight.optimize_attr}
    tensors = optimizer_state(state.optimizer, state.model)
    return {name: tensor.numpy() for name, tensor in tensors.items() if name.rpartition("/")[0] in plain}


def _rename(path: Path, content: dict[str, Any], names: dict[str, str]) -> Iterator[tuple[str, Any]]:
    longest_first = sorted(names, key=len, reverse=True)
    for key, array in arrays_in(content).items():
        if key in (_MASTERS, "LR_Scheduler"):
            continue
        parameter = next((name for name in longest_first if key.startswith(f"{name}_")), None)
        if parameter is None:
            raise UserError(f"{path}: {key}: the .pdparams file has no parameter of this name")
        kind = re.sub(r"^fp32_master_\d+_", "", key[len(parameter) + 1 :])
        yield f"{names[parameter]}/{re.sub(r'_[0-9]+$', '', kind)}", array
