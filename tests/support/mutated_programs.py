"""Loads mutated programs of Paddle, each in a process of its own with limits, and prints what happened.

Usage: ``mutated_programs.py EXPORT FILE COUNT IMAGE``. EXPORT is an exported folder,
and FILE one of its files.
A process may load the model, or reject it. Anything else is a find: another error, a signal, a written file.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import paddle.inference  # noqa: F401 - before the fork, because importing takes seconds

from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError

MEMORY = 8 << 30  # bytes of address space of a process
SECONDS = 20  # after which a process counts as hanging
LOADED, REJECTED, FAILED = range(3)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Returns bytes with one to twenty changes: bits, numbers, and parts that are removed or repeated."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(data))
        end = min(len(data), at + rng.randrange(1, 60))
        change = rng.randrange(5)
        if change == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            data[at] = rng.choice([0, 1, 127, 128, 255, ord("9"), ord("-")])
        elif change == 2:
            del data[at:end]
        elif change == 3:
            data[at:at] = data[at:end]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def load(folder: Path, image: bytes, folder_of_process: Path) -> int:
    """Returns the exit code of a process that loads the model and runs it on an image."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.chdir(folder_of_process)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    code = FAILED
    try:
        Predictor(find_source(folder, ["Global.device=cpu"])).predict([image])
        code = LOADED
    except (UserError, ValueError):
        code = REJECTED
    finally:
        os._exit(code)


def main() -> None:
    export, name, count, image = sys.argv[1:]
    original = (Path(export) / name).read_bytes()
    encoded = Path(image).read_bytes()
    rng = random.Random(0)  # the same mutations in each run
    codes: Counter[int] = Counter()
    finds = []
    for number in range(int(count)):
        changed = mutate(original, rng)
        (Path(export) / name).write_bytes(changed)
        with tempfile.TemporaryDirectory() as folder:
            code = load(Path(export), encoded, Path(folder))
            written = sorted(path.name for path in Path(folder).iterdir())
        codes[code] += 1
        if code not in (LOADED, REJECTED) or written:
            finds.append([number, code, written])
    sys.stdout.write("\n" + json.dumps({"codes": codes, "finds": finds}) + "\n")


if __name__ == "__main__":
    main()
