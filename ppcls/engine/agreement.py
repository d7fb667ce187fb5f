"""Checks before training that all processes of a run have the same config, data and software.

Each machine has its own copies, and differences between them would give wrong results without an error.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import paddle

from ppcls.config.base.tree import Tree, leaves
from ppcls.data.index.protocol import Index, describe_index
from ppcls.engine.checkpoint.paddleclas import is_paddleclas
from ppcls.errors import UserError
from ppcls.runtime.collectives import all_gather_json, fail_together
from ppcls.runtime.start import Runtime
from ppcls.version import __version__
from ppcls.weights.manifest import verify

if TYPE_CHECKING:  # only for annotations
    from ppcls.engine.checkpoint.checkpoints import Checkpoints

Facts = dict[str, Any]
_SHOWN = 10  # number of differences that an error lists


def agree(config: Tree, runtime: Runtime, indexes: Mapping[str, Index]) -> None:
    """Checks that all processes have the same config, data and software. All processes must call it.

    Args:
        config: Config of this process as plain data.
        indexes: Indexes of the data sets, keyed by their paths in the config.

    Raises:
        UserError: The processes differ. The message lists ranks, machines and values.
    """
    if runtime.world_size == 1:
        return
    facts = {
        **_software(),
        **{f"{name}.dataset": describe_index(index) for name, index in indexes.items()},
        **dict(leaves(config)),
    }
    gathered = all_gather_json(runtime, [socket.gethostname(), facts])
    hosts, all_facts = zip(*gathered, strict=True)
    if differences := compare(hosts, all_facts):
        raise UserError(
            "\n  ".join(["the processes of this run differ:", *differences])
            + "\nUse the same config, data and software on every machine"
        )


def compare(hosts: tuple[str, ...], facts: tuple[Facts, ...]) -> list[str]:
    """Returns the differences between each rank and rank 0, one line each, at most 10.

    Args:
        hosts: Host name of each rank.
        facts: Config, data and software of each rank, keyed by name.
    """
    differences = [
        f"rank {rank} on {hosts[rank]}: {name} is {_show(other, name)}, "
        f"but {_show(facts[0], name)} on rank 0 on {hosts[0]}"
        for rank, other in enumerate(facts)
        for name in dict.fromkeys([*facts[0], *other])
        if _show(facts[0], name) != _show(other, name)
    ]
    more = [f"… and {len(differences) - _SHOWN} more"] if len(differences) > _SHOWN else []
    return [*differences[:_SHOWN], *more]


def _show(facts: Facts, name: str) -> str:
    return json.dumps(facts[name], ensure_ascii=False) if name in facts else "missing"


def digest_package(package: Path) -> str:
    """Returns a digest of a package's modules and tables. The configs in it are not part of the digest."""
    digest = hashlib.blake2b(digest_size=6)
    tables = (file for file in package.rglob("*.yaml") if file.parent.name != "configs")
    for file in sorted([*package.rglob("*.py"), *tables]):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _software() -> dict[str, str]:
    versions = {
        "ppcls": f"{__version__} ({digest_package(Path(__file__).parents[1])})",
        "Paddle": paddle.__version__,
        "OpenCV": cv2.__version__,
    }
    if (dali := sys.modules.get("nvidia.dali")) is not None:  # not imported here: it may not be installed
        versions["DALI"] = str(dali.__version__)
    return versions


def choose_checkpoint(
    checkpoints: Checkpoints, requested: str | None, runtime: Runtime, *, writing: bool = True
) -> Path | None:
    """Returns the checkpoint that all processes resume from; None for a new run.

    Rank 0 chooses the checkpoint, because on a shared disk another machine may still see an older `latest`.

    Args:
        requested: Value of ``Global.checkpoints``.
        writing: Whether the run will write to its output folder.

    Raises:
        UserError: ``requested`` is not a checkpoint, is damaged, or is missing on a machine; or the output
            folder of a run that will write contains another run.
    """
    folder = None
    with fail_together(runtime):
        if runtime.is_main:
            if requested and writing:
                checkpoints.restore_links()
            folder = checkpoints.find(requested) if requested else None
            if writing:
                checkpoints.check_unused(folder)
    place = None if folder is None else str(_link_target(folder))
    gathered = all_gather_json(runtime, [place, _machine()])
    chosen = gathered[0][0]
    machines = [machine for _, machine in gathered]
    with fail_together(runtime):
        if chosen is not None and not runtime.is_main:
            folder = Path(chosen)
            if folder.is_dir():
                # One rank per machine reads the whole checkpoint, which may have many gigabytes.
                is_first = machines.index(machines[runtime.rank]) == runtime.rank
                verify(folder, None if is_first else ())
            elif not is_paddleclas(folder):
                raise UserError(
                    f"{folder}: rank 0 resumes from this checkpoint, but it is missing on this machine. Set "
                    "Global.output_dir to a disk that all machines share, or copy the checkpoint to this path"
                )
    return folder


def _machine() -> str:
    """Returns a text that differs between machines, and between containers with their own host names."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text(encoding='ascii').strip() if boot.exists() else ''}"


def _link_target(folder: Path) -> Path:
    """Returns the target if the path is a link such as ``latest``, otherwise the path itself."""
    return folder.parent / folder.readlink() if folder.is_symlink() else folder


def describe_unshared(runtime: Runtime, folder: Path) -> list[str]:
    """Checks that all machines see the files that rank 0 writes to ``folder``.

    Returns:
        One line for the log if some machines do not see them, else an empty list.
    """
    if runtime.world_size == 1:
        return []
    probe = folder / f".shared.{secrets.token_hex(4)}"
    if runtime.is_main:
        probe.touch()
    try:
        name = all_gather_json(runtime, probe.name)[0]
        gathered = all_gather_json(runtime, [socket.gethostname(), (folder / name).exists()])
    finally:
        if runtime.is_main:
            probe.unlink(missing_ok=True)
    blind = sorted({host for host, seen in gathered if not seen})
    if not blind:
        return []
    return [
        f"{folder} is not shared with {', '.join(blind)}: only rank 0 writes there. To resume from a "
        "checkpoint, all machines need access to its files"
    ]
