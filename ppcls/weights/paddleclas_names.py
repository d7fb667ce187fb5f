"""Names of weights in files that PaddleClas wrote, and the names that ppcls gives to the same weights.

PaddleClas saves all weights of a run in one file. The weights of each model of a DistillationModel have its
name as a prefix, such as ``Student.`` or ``Teacher.``, and those of an AttentionModel also the name of its
backbone. Trainable losses have the prefix ``loss_func.`` and their position. In ppcls, the weights of the
student have no prefix, and the trainable layers of a loss have the prefix ``loss`` and the same position.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ppcls.config.base.tree import STUDENT
from ppcls.errors import UserError

_LOSS = "loss_func."
# Parts of PaddleClas's names of the layers of losses, which ppcls's names lack.
_LOSS_LAYER = re.compile(r"loss_func\.(\d+)\.(?:loss_func\.|attention\.)?")
_PROJECTOR = re.compile(r"(loss\d+\.projectors\.\d+\.)conv\.")
_PROJECTION = re.compile(r"loss\d+\.projectors\.\d+\.weight(/|$)")
_OWN_LOSS = re.compile(r"loss\d+\.")
_TRANSFORM = re.compile(r"\w+\.LinearTransform(?:Teacher|Student)\.")
_ATTENTION = re.compile(r"(loss\d+\.)p_t")  # a weight that only the attention of AFDLoss has


@dataclass(frozen=True)
class NetworkNames:
    """The weights in a file of PaddleClas that a model uses.

    Attributes:
        names: Maps the name of each used weight in the file to its name in the model. Weights that fit no
            name keep theirs, so that errors can name them.
        selected: Text for the log about the part of the file that is used; "" if all weights are.
    """

    names: Mapping[str, str]
    selected: str = ""


def translate(names: Collection[str], saved: Iterable[str], source: Path | str) -> NetworkNames:
    """Finds the weights of a model in a file that PaddleClas may have written.

    Args:
        names: Names of the weights of the model, including its peers and losses.
        saved: Names in the file.
        source: Path or name of the file, for error messages.

    Raises:
        UserError: Several models of a DistillationModel have these weights, and none is named Student.
    """
    known = {name: name for name in saved if name in names}
    others = [name for name in saved if name not in names]
    losses = {name: own for name in others if (own := _loss_name(name, names)) in names}
    network = [name for name in others if name not in losses and not name.startswith(_LOSS)]
    own_names = {name for name in names if name not in known and not _OWN_LOSS.match(name)}
    prefixes = sorted({prefix for name in network for prefix in _prefixes(name)})
    parts = {
        prefix: {name: name[len(prefix) :] for name in network if name.startswith(prefix)}
        for prefix in prefixes
    }
    # Some names may differ, such as those of a classifier.
    fitting = [
        prefix for prefix, part in parts.items() if 2 * len(own_names & set(part.values())) > len(own_names)
    ]
    if not own_names or not fitting:
        is_part = len(network) + len(losses) < len(others)
        return NetworkNames(
            {**known, **losses, **{name: name for name in network}}, "without those of the loss" * is_part
        )
    # A student and a teacher of one family have many names in common.
    fitting = [prefix for prefix in fitting if own_names <= set(parts[prefix].values())] or fitting
    chosen = next((prefix for prefix in fitting if prefix.startswith(f"{STUDENT}.")), fitting[0])
    label = chosen.partition(".")[0]
    if len(fitting) > 1 and label != STUDENT:
        shown = ", ".join(prefix.rstrip(".") for prefix in fitting)
        raise UserError(
            f"{source}: contains the weights of several models, {shown}; save those of one model in a file "
            "of their own"
        )
    return NetworkNames({**parts[chosen], **known, **losses}, f"of {label}")


def fit_layout(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Returns the array of a weight, or of the optimizer's state for it, in the layout of ppcls.

    The projections of PEFDLoss are linear layers [in, out] in PaddleClas, here convolutions [out, in, 1, 1].

    Args:
        name: Name in ppcls.
    """
    is_projection = _PROJECTION.match(name) is not None and array.ndim == 2
    return array.T[:, :, None, None] if is_projection else array


def _prefixes(name: str) -> list[str]:
    """Returns the prefixes of a name that may be those of a model, or of the backbone of a model."""
    parts = name.split(".")
    return ["".join(f"{part}." for part in parts[:count]) for count in (1, 2) if count < len(parts)]


def _loss_name(name: str, names: Collection[str]) -> str:
    """Returns ppcls's name of a weight of a loss of PaddleClas; ``name`` itself for other weights."""
    if name.startswith(_LOSS):
        return _PROJECTOR.sub(r"\1", _LOSS_LAYER.sub(r"loss\1.", name, count=1))
    if transform := _TRANSFORM.match(name):
        losses = {match[1] for other in names if (match := _ATTENTION.fullmatch(other))}
        if len(losses) == 1:
            return losses.pop() + name[transform.end() :]
    return name
