"""Runs the checks that processes make together before training; each rank writes the result of each case."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from run_checkpoints import checkpoints_of

from ppcls.engine.agreement import agree, choose_checkpoint, describe_unshared
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.runtime import start as runtime
from ppcls.runtime.collectives import all_gather_json, fail_together, gather_rows
from ppcls.weights.manifest import Manifest, write_file, write_manifest

LARGE = 8 << 20  # bytes of a large checkpoint
yaml, scratch = sys.argv[1], Path(sys.argv[2])
config = load_config(yaml, [])
run = runtime.start(config.Global)
train = config.DataLoader.Train
assert train is not None
ended: dict[str, Any] = {}


def case(name: str, does: Callable[[], Any]) -> None:
    try:
        ended[name] = does()
    except (UserError, OSError) as error:
        ended[name] = f"{type(error).__name__}: {error}"


def fail(*ranks: int, error: Exception) -> None:
    with fail_together(run):
        if run.rank in ranks:
            raise error


def agreed(*overrides: str, listing: str | None = None) -> None:
    mine = load_config(yaml, overrides if run.rank == 1 else [])
    dataset = train.dataset
    if listing is not None and run.rank == 1:
        dataset = dataset.model_copy(update={"cls_label_path": listing})
    agree(mine.model_dump(mode="json"), run, {"DataLoader.Train": dataset.read(mine.Arch.class_num)})


def chosen(folder: Path, wanted: str | None) -> str | None:
    found = choose_checkpoint(checkpoints_of(folder, config), wanted, run)
    return None if found is None else str(found)


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])  # rchar


def verified_bytes() -> int:
    before = bytes_read()
    chosen(scratch / "large", "auto")
    return bytes_read() - before


own = scratch / f"rank{run.rank}"  # as a disk of its own
for each in (own, scratch / "one"):
    (each / "checkpoints" / "step_00000001").mkdir(parents=True, exist_ok=True)
if run.is_main:
    for each in (own, scratch / "one"):
        whole = Manifest(serial=0, update=1, epoch=0, step=1, versions={}, files={})
        write_manifest(each / "checkpoints" / "step_00000001", whole)
        (each / "latest").symlink_to("checkpoints/step_00000001")
    large = scratch / "large" / "checkpoints" / "step_00000001"
    large.mkdir(parents=True)
    record = write_file(large / "weights", bytes(LARGE))
    write_manifest(large, whole.model_copy(update={"files": {"weights": record}}))
    (scratch / "large" / "latest").symlink_to("checkpoints/step_00000001")
else:
    (own / "checkpoints" / "step_00000001").rmdir()

case("exchange", lambda: all_gather_json(run, {"rank": run.rank, "text": "ü" * (1 + 1000 * run.rank)}))
for name, rows in (("no rows", 0), ("rows of one rank", 2 * run.rank)):
    case(name, lambda rows=rows: [part.tolist() for part in gather_rows(np.ones((rows, 3)), 2)])  # type: ignore[misc]
case("nobody fails", lambda: fail(error=UserError("never")))
case("one fails", lambda: fail(1, error=UserError("no such folder")))
case("both fail", lambda: fail(0, 1, error=UserError(f"seen by {run.rank}")))
case("the disk fails", lambda: fail(0, error=OSError(28, "No space left on device")))
case("same", agreed)
case("another rate", lambda: agreed("Optimizer.lr.learning_rate=0.5", "Global.cpu_threads=3"))
case("other data", lambda: agreed(listing=str(Path(train.dataset.cls_label_path).with_name("eval.txt"))))
case("shared", lambda: describe_unshared(run, scratch))
case("not shared", lambda: describe_unshared(run, own))
case("new", lambda: chosen(scratch / "new", "auto"))
case("latest", lambda: chosen(scratch / "one", "auto"))
case("verified bytes", verified_bytes)
case("refused", lambda: chosen(scratch / "one", None))
case("none such", lambda: chosen(own, str(scratch / "none")))
os.chdir(own)
case("not there", lambda: chosen(Path(), "auto"))
(scratch / f"{run.rank}.json").write_text(json.dumps(ended))
