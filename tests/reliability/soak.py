"""Trains on two processes while faults end them again and again: `make soak MINUTES=60`.

An undisturbed run comes first. Then runs with the same config are disturbed every few seconds: a random
process is killed, stopped by a signal, or frozen, or the launcher is killed with all its processes. Each
time, the same command continues the run. At the end, its weights must have the bits of the undisturbed run,
and its metrics the same updates, each once. That is only possible if no sample was lost or repeated.

The running statistics of BatchNorm are averaged over the ranks at each checkpoint, also at that of a signal,
which rounds them once more. They may differ in the last bits.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ppcls.report.jsonlines import read_records  # noqa: E402 - after the path
from ppcls.report.record import EvalRecord  # noqa: E402
from ppcls.weights.files import read_arrays  # noqa: E402

_HANG = 20  # seconds without progress after which a run ends itself
_LIMIT = 900.0  # seconds for one start of the run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="in all (%(default)s)")
    parser.add_argument(
        "--interval", type=float, default=60.0, help="longest seconds between faults (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=12, help="of each run (%(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--gpus", help="GPUs of the processes, such as 0,1; default: CPU")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "output/soak")
    options = parser.parse_args()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    return Soak(options).run()


class Soak:
    """The runs, and what happened to them.

    Args:
        options: Options of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self._faults: Counter[str] = Counter()
        self._starts = 0

    def run(self) -> int:
        """Runs until the time is over, and returns the exit code."""
        deadline = time.monotonic() + self._options.minutes * 60
        undisturbed = self._options.output / "undisturbed"
        began = time.monotonic()
        code = self._start(undisturbed).wait(_LIMIT)
        assert code == 0, f"the undisturbed run failed: see {undisturbed}"
        useful = time.monotonic() - began
        print(f"undisturbed: {useful:.0f} s", flush=True)
        runs = 0
        spent = 0.0
        while not runs or time.monotonic() + spent / runs < deadline:
            folder = self._options.output / f"run{runs}"
            began = time.monotonic()
            self._disturb_until_done(folder)
            spent += time.monotonic() - began
            runs += 1
            self._compare(folder, undisturbed)
            share = 100 * useful * runs / spent
            faults = ", ".join(f"{count} × {name}" for name, count in sorted(self._faults.items()))
            print(
                f"{runs} runs, {self._starts - 1} starts, {spent / 60:.1f} minutes; {faults}; effective "
                f"training time {share:.0f} %; weights equal to the last bit, no update lost or repeated",
                flush=True,
            )
            shutil.rmtree(folder)
        return 0

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        self._starts += 1
        places = (
            [f"--gpus={self._options.gpus}"]
            if self._options.gpus
            else [f"--nproc_per_node={self._options.ranks}"]
        )
        device = "gpu" if self._options.gpus else "cpu"
        settings = {
            "Global.output_dir": folder,
            "Global.device": device,
            "Global.checkpoints": "auto",
            "Global.epochs": self._options.epochs,
            "Global.save_steps": 10,
            "Global.hang_timeout": _HANG,
            "Global.use_visualdl": False,
            "Arch.name": "ShuffleNetV2_x0_25",
            "DataLoader.Train.sampler.batch_size": "null",
            "DataLoader.Train.sampler.global_batch_size": 64,
        }
        log = (self._options.output / f"{folder.name}.log").open("ab")
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "paddle.distributed.launch", *places),
                *("--log_dir", str(self._options.output / "log"), str(ROOT / "tools/train.py")),
                *("-c", str(ROOT / "configs/quickstart.yaml"), "-o"),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )

    def _disturb_until_done(self, folder: Path) -> None:
        while True:
            process = self._start(folder)
            try:
                code = process.wait(self._chance.uniform(0, self._options.interval))
            except subprocess.TimeoutExpired:
                self._disturb(process)
                code = self._await(process)
            if code == 0 and "done:" in (folder / "train.log").read_text(errors="replace"):
                return

    def _disturb(self, launcher: subprocess.Popen[bytes]) -> None:
        ranks = [
            each for each in psutil.Process(launcher.pid).children() if "train.py" in " ".join(each.cmdline())
        ]
        if not ranks:
            return
        rank = self._chance.choice(ranks)
        faults: dict[str, Callable[[], object]] = {
            "killed rank": rank.kill,
            "SIGTERM to a rank": rank.terminate,
            "Ctrl-C to a rank": lambda: rank.send_signal(signal.SIGINT),
            "frozen rank": rank.suspend,
            "killed machine": lambda: _kill_all(launcher),
        }
        name = self._chance.choice(list(faults))
        with suppress(psutil.NoSuchProcess):
            faults[name]()
            self._faults[name] += 1

    def _await(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end after a fault: {dict(self._faults)}") from None
        finally:
            _kill_all(process)

    def _compare(self, folder: Path, undisturbed: Path) -> None:
        expected = read_arrays(undisturbed / "latest" / "model.safetensors")
        found = read_arrays(folder / "latest" / "model.safetensors")
        assert found.keys() == expected.keys()
        different = [name for name, value in expected.items() if not _equal(name, found[name], value)]
        assert not different, f"{folder}: other weights than {undisturbed}: {different[:3]}"
        for kind in (EvalRecord, object):
            updates = [
                [each.update for each in read_records(run / "metrics.jsonl") if isinstance(each, kind)]
                for run in (folder, undisturbed)
            ]
            if kind is EvalRecord:
                assert updates[0] == updates[1], f"{folder}: evaluations of other updates: {updates}"
            else:
                assert updates[0] == sorted(updates[0]), f"{folder}: an update was recorded twice"


def _equal(name: str, found: NDArray[Any], expected: NDArray[Any]) -> bool:
    if name.endswith(("._mean", "._variance")):
        return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-9))
    return found.tobytes() == expected.tobytes()


def _kill_all(launcher: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        processes = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    launcher.wait()


if __name__ == "__main__":
    sys.exit(main())
