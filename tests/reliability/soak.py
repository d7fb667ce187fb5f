"""Trains on two processes while faults end them again and again: `make soak MINUTES=60`.

An undisturbed run comes first. Then runs with the same config are disturbed at random times: a random
process is killed, stopped by a signal, or frozen, or the launcher is killed with all its processes. The
kinds come in random order, and each comes once before any comes again. Each time, the same command continues
the run. After each run, three comparisons with the undisturbed run follow:

- The samples of each update, over all ranks. The updates that count are those before the checkpoint from
  which the next start resumed. A sample that is missing there is lost; one that is there too often is
  repeated.
- The weights, bit by bit. They would differ if work that was repeated after a resume counted twice.
- The updates in the metrics.

The effective training time is the part of the time in which updates were computed that count, including
their evaluations and checkpoints. The rest is lost work, noticing faults, and starting again.

The running statistics of BatchNorm are averaged over the ranks at each checkpoint, also at that of a signal,
which rounds them once more. They may differ in the last bits.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ppcls.dataset_tools.digits import make_digits  # noqa: E402 - after the path
from ppcls.report.jsonlines import read_records  # noqa: E402
from ppcls.report.record import EvalRecord  # noqa: E402
from ppcls.runtime.paddle_import import DETERMINISTIC  # noqa: E402
from ppcls.weights.files import read_arrays  # noqa: E402

_LIMIT = 1800.0  # seconds for one start of the run
_SCRIPT = Path(__file__).with_name("soak_run.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="in all; the last run then continues to its end without faults (%(default)s)",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=60.0,
        help="longest seconds between a start and a fault (%(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=12, help="of each run (%(default)s)")
    parser.add_argument(
        "--save-steps", type=int, default=10, help="updates between checkpoints (%(default)s)"
    )
    parser.add_argument("--ranks", type=int, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--gpus", help="GPUs of the processes, such as 0,1; default: CPU")
    parser.add_argument("--arch", default="ShuffleNetV2_x0_25", help="model (%(default)s)")
    parser.add_argument(
        "--hang-timeout",
        type=float,
        default=20.0,
        help="seconds without progress after which a run ends itself (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "output/soak")
    options = parser.parse_args()
    options.output = options.output.resolve()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    make_digits(options.output / "dataset" / "digits")
    return Soak(options).run()


@dataclass
class Trajectory:
    """The updates of a run that count.

    Attributes:
        samples: Epoch and sorted positions of the samples of all ranks, by update.
        repeated_work: Number of updates that were computed again after a fault.
        seconds: Duration of the updates that count.
    """

    samples: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    repeated_work: int = 0
    seconds: float = 0.0

    def count(self) -> Counter[tuple[int, int]]:
        """Returns how often each sample occurs in each epoch."""
        return Counter(
            (epoch, position) for epoch, positions in self.samples.values() for position in positions
        )


@dataclass
class Totals:
    """What the disturbed runs have in common.

    Attributes:
        runs: Number of runs.
        starts: Number of starts.
        failures: Number of starts that failed without a fault.
        seconds: Duration of all runs.
        effective: Duration of the updates that count.
        images: Number of images of the updates that count.
        lost: Number of samples that are missing.
        repeated: Number of samples that occur too often.
        repeated_work: Number of updates that were computed again.
        faults: Number of faults of each kind.
    """

    runs: int = 0
    starts: int = 0
    failures: int = 0
    seconds: float = 0.0
    effective: float = 0.0
    images: int = 0
    lost: int = 0
    repeated: int = 0
    repeated_work: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} × {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.runs} runs, {self.starts} starts, {self.seconds / 60:.1f} minutes; faults: "
            f"{faults or 'none'}; starts that failed without a fault: {self.failures}; effective training "
            f"time {100 * self.effective / self.seconds:.1f} %; updates computed again: "
            f"{self.repeated_work}; of {self.images:,} samples, lost {self.lost}, repeated {self.repeated}"
        )


class Soak:
    """The runs, and what happened to them.

    Args:
        options: Options of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self._deadline = time.monotonic() + options.minutes * 60
        self._totals = Totals()
        self._next: list[str] = []

    def run(self) -> int:
        """Runs until the time is over, and returns the exit code."""
        undisturbed = self._options.output / "undisturbed"
        began = time.monotonic()
        code = self._start(undisturbed, 0).wait(_LIMIT)
        assert code == 0, f"the undisturbed run failed: see {undisturbed}.log"
        seconds = time.monotonic() - began
        expected = self._read_steps(undisturbed, 1)
        updates = len(expected.samples)
        assert updates == max(expected.samples) + 1, f"{undisturbed}: only {updates} updates were recorded"
        print(
            f"undisturbed: {seconds:.0f} s, effective training time {100 * expected.seconds / seconds:.1f} %",
            flush=True,
        )
        totals = self._totals
        while not totals.runs or time.monotonic() < self._deadline:
            folder = self._options.output / f"run{totals.runs}"
            began = time.monotonic()
            starts = self._disturb_until_done(folder)
            totals.seconds += time.monotonic() - began
            found = self._read_steps(folder, starts)
            self._add(found, expected)
            print(totals, flush=True)
            assert found.samples == expected.samples, f"{folder}: other samples than {undisturbed}"
            self._compare(folder, undisturbed)
            print("weights and updates: those of the undisturbed run", flush=True)
            shutil.rmtree(folder)
        return 0

    def _add(self, found: Trajectory, expected: Trajectory) -> None:
        """Adds a run to the totals."""
        totals = self._totals
        totals.runs += 1
        totals.effective += found.seconds
        totals.repeated_work += found.repeated_work
        totals.images += expected.count().total()
        totals.lost += (expected.count() - found.count()).total()
        totals.repeated += (found.count() - expected.count()).total()

    def _start(self, folder: Path, number: int) -> subprocess.Popen[bytes]:
        options = self._options
        places = f"--gpus={options.gpus}" if options.gpus else f"--nproc_per_node={options.ranks}"
        settings = {
            "Global.output_dir": folder,
            "Global.device": "gpu" if options.gpus else "cpu",
            "Global.checkpoints": "auto",
            "Global.epochs": options.epochs,
            "Global.save_steps": options.save_steps,
            "Global.hang_timeout": options.hang_timeout,
            "Global.use_visualdl": False,
            "Global.deterministic": bool(options.gpus),  # CPUs always are
            "Global.cuda_graph": False,  # its steps could not be recorded one by one
            "Arch.name": options.arch,
            "DataLoader.Train.sampler.batch_size": "null",
            "DataLoader.Train.sampler.global_batch_size": 64,
        }
        environment = dict(os.environ)
        if options.gpus:
            # `Global.deterministic` would come too late, because soak_run.py imports Paddle before the run.
            environment |= DETERMINISTIC
        else:
            # Paddle's launcher would look for one GPU per process in this variable, even if it is empty.
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        log = (options.output / f"{folder.name}.log").open("ab")
        steps = options.output / f"{folder.name}.steps"
        steps.mkdir(exist_ok=True)
        return subprocess.Popen(
            [
                *(sys.executable, *(["-s"] if sys.flags.no_user_site else [])),
                *("-m", "paddle.distributed.launch", places),
                *("--log_dir", str(options.output / "log"), str(_SCRIPT)),
                *("-c", str(ROOT / "configs/quickstart.yaml"), "-o"),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=options.output,  # which contains the data set
            # The launcher does not pass -s to its processes.
            env={
                **environment,
                "SOAK_STEPS": str(steps / f"{number:04d}"),
                **({"PYTHONNOUSERSITE": "1"} if sys.flags.no_user_site else {}),
            },
            start_new_session=True,
        )

    def _disturb_until_done(self, folder: Path) -> int:
        """Starts a run until it is done, and returns the number of starts."""
        number = 0
        while True:
            process = self._start(folder, number)
            number += 1
            self._totals.starts += 1
            disturbed = False
            try:
                pause = self._chance.uniform(0, self._options.interval)
                code = process.wait(pause if time.monotonic() + pause < self._deadline else _LIMIT)
            except subprocess.TimeoutExpired:
                disturbed = self._disturb(process)
                code = self._await(process)
            log = folder / "train.log"
            if code == 0 and log.is_file() and "done:" in log.read_text(errors="replace"):
                return number
            if not disturbed:
                self._totals.failures += 1
                assert self._totals.failures < 10, f"the run fails without faults; see {folder}.log"

    def _disturb(self, launcher: subprocess.Popen[bytes]) -> bool:
        """Disturbs a run, and returns False if it had no processes or they have just ended."""
        ranks = []
        for child in psutil.Process(launcher.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if _SCRIPT.name in " ".join(child.cmdline()):
                    ranks.append(child)
        faults: dict[str, Callable[[], object]] = {"killed machine": lambda: _kill_all(launcher)}
        if ranks:
            rank = self._chance.choice(ranks)
            faults |= {
                "killed rank": rank.kill,
                "SIGTERM to a rank": rank.terminate,
                "Ctrl-C to a rank": lambda: rank.send_signal(signal.SIGINT),
                "frozen rank": rank.suspend,
            }
        if not any(name in faults for name in self._next):  # each kind once, before any kind again
            self._next += self._chance.sample(list(faults), len(faults))
        name = next(name for name in self._next if name in faults)
        self._next.remove(name)
        try:
            faults[name]()
        except psutil.NoSuchProcess:
            return False
        self._totals.faults[name] += 1
        return True

    def _await(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end after a fault: {dict(self._totals.faults)}") from None
        finally:
            _kill_all(process)

    def _read_steps(self, folder: Path, starts: int) -> Trajectory:
        """Returns the updates of a run that count, from the lines of all its starts."""
        steps = folder.with_name(f"{folder.name}.steps")
        ranks = len(self._options.gpus.split(",")) if self._options.gpus else self._options.ranks
        found = Trajectory()
        times: dict[int, tuple[int, float, float]] = {}  # start, begin and end of each update
        for number in range(starts):
            lines = [_lines(steps / f"{number:04d}.{rank}") for rank in range(ranks)]
            if not all(lines):
                continue  # a fault before the first update
            first = min(lines[0])
            for update in [update for update in found.samples if update >= first]:
                del found.samples[update], times[update]
                found.repeated_work += 1
            # If a rank was killed, the others may have recorded one step less. Its update never counts.
            for update in set.intersection(*(set(each) for each in lines)):
                began, ended, epoch, _ = lines[0][update]
                times[update] = (number, began, ended)
                positions = sorted(position for each in lines for position in each[update][3])
                found.samples[update] = (epoch, positions)
        for number in {start for start, _, _ in times.values()}:
            kept = [each for each in times.values() if each[0] == number]
            found.seconds += max(ended for _, _, ended in kept) - min(began for _, began, _ in kept)
        return found

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


def _lines(path: Path) -> dict[int, tuple[float, float, int, list[int]]]:
    """Returns begin, end, epoch and samples of each update of one rank and start."""
    found = {}
    *whole, _ = path.read_text().split("\n") if path.is_file() else [""]  # without a line that was cut off
    for line in whole:
        numbers, _, positions = line.partition(":")
        began, ended, update, epoch = numbers.split()
        found[int(update)] = (float(began), float(ended), int(epoch), list(map(int, positions.split())))
    return found


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
