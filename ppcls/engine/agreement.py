"""What the processes of a run must have in common, found out before they train.

Each machine has its own copy of config, data and software. Where these differ, training would go wrong
without a word; where one process fails alone, the others would wait for it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import paddle

from ppcls import __version__
from ppcls.config.schema import Config
from ppcls.data.index.read import Index, describe_index
from ppcls.engine.checkpoint.checkpoints import Checkpoints
from ppcls.engine.checkpoint.paddleclas import is_paddleclas
from ppcls.errors import UserError
from ppcls.runtime.collectives import all_gather_json, fail_together
from ppcls.runtime.start import Runtime

Facts = dict[str, Any]
_SHOWN = 10


def agree(config: Config, runtime: Runtime, indexes: Mapping[str, Index]) -> None:
    """Compares config, data and software of all processes.

    Args:
        config: Of this process.
        runtime: Of this process.
        indexes: The data, by its place in the config.

    Raises:
        UserError: They differ; it says which ranks, on which machines, and how.
    """
    if runtime.world_size == 1:
        return
    facts = {
        **_software(),
        **{f"{name}.dataset": describe_index(index) for name, index in indexes.items()},
        **_leaves(config.model_dump(mode="json")),
    }
    told = all_gather_json(runtime, [socket.gethostname(), facts])
    hosts, all_facts = zip(*told, strict=True)
    if differences := compare(hosts, all_facts):
        raise UserError(
            "\n  ".join(["the processes of this run differ:", *differences])
            + "\nGive every machine the same config, data and software"
        )


def compare(hosts: tuple[str, ...], facts: tuple[Facts, ...]) -> list[str]:
    """Returns how the facts of ranks differ from rank 0's, the first of them; nothing where they agree."""
    found = [
        f"rank {rank} on {hosts[rank]}: {name} is {_show(other, name)}, "
        f"but {_show(facts[0], name)} on rank 0 on {hosts[0]}"
        for rank, other in enumerate(facts)
        for name in dict.fromkeys([*facts[0], *other])
        if _show(facts[0], name) != _show(other, name)
    ]
    more = [f"… and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return [*found[:_SHOWN], *more]


def _show(facts: Facts, name: str) -> str:
    return json.dumps(facts[name], ensure_ascii=False) if name in facts else "not there"


def _software() -> dict[str, str]:
    digest = hashlib.blake2b(digest_size=6)
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    found = {
        "ppcls": f"{__version__} ({digest.hexdigest()})",
        "Paddle": paddle.__version__,
        "OpenCV": cv2.__version__,
    }
    if (dali := sys.modules.get("nvidia.dali")) is not None:  # only where it feeds: it may not be there
        found["DALI"] = str(dali.__version__)
    return found


def _leaves(tree: Any, path: str = "") -> Facts:
    """Returns the values of a config by their dotted paths."""
    if isinstance(tree, dict) and tree:
        items = [(f"{path}.{key}" if path else str(key), each) for key, each in tree.items()]
    elif isinstance(tree, list) and tree:
        items = [(f"{path}[{place}]", each) for place, each in enumerate(tree)]
    else:
        return {path: tree}
    return {name: value for where, each in items for name, value in _leaves(each, where).items()}


def choose_checkpoint(
    checkpoints: Checkpoints, wanted: str | None, runtime: Runtime, *, writing: bool = True
) -> Path | None:
    """Returns the checkpoint folder that all processes go on from; None for a new run.

    Rank 0 chooses, for on a shared disk another machine may see `latest` as it was a while ago.

    Args:
        checkpoints: Of the run.
        wanted: ``Global.checkpoints``.
        runtime: Of this process.
        writing: Whether the run will write into its output folder.

    Raises:
        UserError: ``wanted`` is no checkpoint, or not on every machine; or the output folder, which is to be
            written, holds another run.
    """
    folder = None
    with fail_together(runtime):
        if runtime.is_main:
            folder = checkpoints.find(wanted) if wanted else None
            if writing:
                checkpoints.check_unused(folder)
    chosen = all_gather_json(runtime, None if folder is None else str(_linked(folder)))[0]
    with fail_together(runtime):
        if chosen is not None and not runtime.is_main:
            folder = Path(chosen)
            if not folder.is_dir() and not is_paddleclas(folder):
                raise UserError(
                    f"{folder}: rank 0 goes on with this checkpoint, which is not here. All machines need "
                    "Global.output_dir on a disk that they share, or a copy of the checkpoint at its path"
                )
    return folder


def _linked(folder: Path) -> Path:
    """Returns what a link such as ``latest`` points to, spelt by way of the link's own folder."""
    return folder.parent / folder.readlink() if folder.is_symlink() else folder


def tell_unshared(runtime: Runtime, folder: Path) -> list[str]:
    """Returns a line for the log where machines don't see what rank 0 writes into ``folder``."""
    if runtime.world_size == 1:
        return []
    probe = folder / f".shared.{secrets.token_hex(4)}"
    if runtime.is_main:
        probe.touch()
    try:
        name = all_gather_json(runtime, probe.name)[0]
        told = all_gather_json(runtime, [socket.gethostname(), (folder / name).exists()])
    finally:
        if runtime.is_main:
            probe.unlink(missing_ok=True)
    blind = sorted({host for host, seen in told if not seen})
    if not blind:
        return []
    return [
        f"{folder} is not shared with {', '.join(blind)}: rank 0 alone writes there, and to go on from its "
        "checkpoints all machines have to see them"
    ]
