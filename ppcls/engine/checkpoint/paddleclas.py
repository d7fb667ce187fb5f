"""PaddleClas's checkpoints: three files of one name, ``.pdparams``, ``.pdopt`` and ``.pdstates``.

With a moving average there is ``.pdema`` too, and then the average is in ``.pdparams`` and the raw weights in
``.pdema``. The optimizer's state goes by Paddle's own names, such as ``conv2d_0.w_0_velocity_0``;
``.pdparams`` says which is which.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import paddle

from ppcls.engine.checkpoint.snapshot import fill_average, fill_optimizer, keep_schedule
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.files import atomic_path
from ppcls.optimizer.state import MASTER
from ppcls.weights.files import Arrays, as_array, fill, read_pdparams
from ppcls.weights.pickled import unpickle

_NAMES = "StructuredToParameterName@@"
_MASTERS = "master_weights"


def is_paddleclas(prefix: Path) -> bool:
    """Whether ``prefix`` is the common name of a checkpoint's files."""
    return all(_file(prefix, ending).is_file() for ending in ("pdparams", "pdopt"))


def restore_paddleclas(state: TrainState, prefix: Path) -> None:
    """Puts a run where PaddleClas left it: at the end of an epoch.

    What PaddleClas does not save begins anew: the loss scale, and random states.

    Raises:
        UserError: A file is missing or damaged, or asks for more than arrays; or it is of another model
            or optimizer.
    """
    epoch, best = _read_states(_file(prefix, "pdstates"))
    params = _file(prefix, "pdparams")
    raw = _file(prefix, "pdema") if _file(prefix, "pdema").is_file() else params
    weights = read_pdparams(raw)
    fill(state.model.state_dict(), weights, raw)
    optimizer = _read_optimizer(_file(prefix, "pdopt"), _names(raw))
    fill_optimizer(state, optimizer, weights, _file(prefix, "pdopt"))
    if state.ema is not None:
        fill_average(state, read_pdparams(params), params)
    state.loader.load_state_dict({**state.loader.state_dict(), "epoch": epoch, "step": 0})
    state.update, state.best = epoch * state.updates_per_epoch, best
    keep_schedule(state)


def write_pdparams(path: Path, arrays: Arrays) -> None:
    """Writes weights as a ``.pdparams`` file, which PaddleClas and ``paddle.load`` read; atomically.

    Raises:
        OSError: It can't be written.
    """
    with atomic_path(path) as temporary:
        paddle.save({name: paddle.to_tensor(array) for name, array in arrays.items()}, str(temporary))


def _file(prefix: Path, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{ending}")


def _names(path: Path) -> dict[str, str]:
    """Returns Paddle's names of the parameters, to the model's."""
    content = unpickle(path)
    names = content.get(_NAMES) if isinstance(content, dict) else None
    if not isinstance(names, dict):
        raise UserError(f"{path}: does not say the parameters' names ({_NAMES}), which the .pdopt goes by")
    return {str(own): str(structured) for structured, own in names.items()}


def _read_states(path: Path) -> tuple[int, float | None]:
    """Returns the epochs done, and the best metric so far."""
    content = unpickle(path)
    if not isinstance(content, dict) or not isinstance(content.get("epoch"), int) or content["epoch"] < 0:
        raise UserError(f"{path}: expected a mapping with the number of the epoch")
    metric = content.get("metric")
    return content["epoch"], float(metric) if isinstance(metric, float) and metric >= 0 else None


def _read_optimizer(path: Path, names: dict[str, str]) -> Arrays:
    """Returns the optimizer's state under our names, ``fc.weight/velocity``."""
    content = unpickle(path)
    content = content[0] if isinstance(content, list) and len(content) == 1 else content
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected the state of one optimizer")
    arrays = dict(_renamed(path, content, names))
    masters = content.get(_MASTERS)
    for own, value in masters.items() if isinstance(masters, dict) else ():
        if own in names and (array := as_array(value)) is not None:
            arrays[f"{names[own]}/{MASTER}"] = array
    return arrays


def _renamed(path: Path, content: dict[str, Any], names: dict[str, str]) -> Any:
    longest_first = sorted(names, key=len, reverse=True)
    for key, value in content.items():
        if key in (_MASTERS, "LR_Scheduler") or (array := as_array(value)) is None:
            continue
        own = next((each for each in longest_first if str(key).startswith(f"{each}_")), None)
        if own is None:
            raise UserError(f"{path}: {key}: of a parameter that the .pdparams does not name")
        kind = re.sub(r"^fp32_master_\d+_", "", str(key)[len(own) + 1 :])
        yield f"{names[own]}/{re.sub(r'_[0-9]+$', '', kind)}", array
