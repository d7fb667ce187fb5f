"""``python benchmarks/run.py accuracy``: trains with ppcls and with PyTorch, and compares the accuracy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar, Literal

from ppcls.cli.arguments.options import option
from ppcls.cli.command import command, write_output
from ppcls.cli.shared_options import RequiredConfigOptions
from ppcls.errors import UserError
from ppcls.files import write_text
from ppcls.recipe.load import load_config
from ppcls.runtime.launch import child_environment, ppcls_command

Framework = Literal["ppcls", "PyTorch"]
_ROOT = Path(__file__).resolve().parents[2]  # the folder of the package benchmarks
_EVALUATION = re.compile(r"\[Eval\] epoch (\d+) .*?\btop1 ([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(RequiredConfigOptions):
    """Train a config with ppcls and with PyTorch, from the same initial weights, and compare the accuracy.

    Each run is a process of its own. Its accuracy and its seconds since the start of the process are written
    to a file in --out. If the command is started again, finished runs are not repeated, and a run of ppcls
    continues from its checkpoint; other settings need another --out. Start the command several times at once,
    with other seeds and the variable CUDA_VISIBLE_DEVICES, to use several GPUs; the last one prints the table
    of all results.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py accuracy -c configs/fashion_mnist_wrn.yaml --out accuracy",
        "python benchmarks/run.py accuracy -c configs/fashion_mnist_wrn.yaml --seeds 1 --epochs 30",
    )

    seeds: tuple[int, ...] = option((1, 2, 3), "seeds of the runs")
    frameworks: tuple[Framework, ...] = option(("ppcls", "PyTorch"), "frameworks to train with")
    epochs: int | None = option(None, "number of epochs (default: Global.epochs)", gt=0)
    accuracy: float = option(0.94, "accuracy to which the seconds are measured", gt=0, le=1)
    torch: str = option(
        sys.executable,
        "Python interpreter with PyTorch and NumPy, and timm unless Arch is WideResNet (default: the current "
        "interpreter)",
        metavar="PYTHON",
    )
    torch_eager: bool = option(False, "do not compile the network in PyTorch")
    out: Path = option(Path("accuracy"), "folder for the runs and their results")


@command("accuracy", AccuracyOptions)
def measure_accuracy(options: AccuracyOptions) -> None:
    """Trains the missing runs, and prints the table of all runs in the output folder."""
    if "PyTorch" in options.frameworks:
        _check_pytorch(options)
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for framework in options.frameworks:
            _train(options, framework, seed)
    write_output(describe(read_results(options.out), options.accuracy))


@dataclass(frozen=True)
class AccuracyCurve:
    """The evaluations of one run.

    Attributes:
        top1: Accuracy of each evaluation.
        seconds: Seconds from the start of the process to each evaluation.
    """

    top1: tuple[float, ...]
    seconds: tuple[float, ...]

    def seconds_to(self, accuracy: float) -> float | None:
        """Returns the seconds to the first evaluation that reaches ``accuracy``; None if none does."""
        reached = (at for value, at in zip(self.top1, self.seconds, strict=True) if value >= accuracy)
        return next(reached, None)


def read_results(folder: Path) -> dict[str, dict[int, AccuracyCurve]]:
    """Returns the curve of each finished run in a folder, by framework and seed."""
    results: dict[str, dict[int, AccuracyCurve]] = {}
    for path in sorted(folder.glob("*_seed*.json")):
        framework, _, seed = path.stem.rpartition("_seed")
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["finished"]:
            curve = AccuracyCurve(tuple(saved["top1"]), tuple(saved["seconds"]))
            results.setdefault(framework, {})[int(seed)] = curve
    return results


def describe(results: Mapping[str, Mapping[int, AccuracyCurve]], accuracy: float) -> str:
    """Returns a table of the frameworks, and whether their difference exceeds the noise of the seeds."""
    lines = [f"{'':10} {'top1 of the last evaluation':36} {f's to {accuracy:g}':>14} {'s in all':>10}"]
    final = {}
    for framework, curves in results.items():
        values = [curve.top1[-1] for curve in curves.values()]
        final[framework] = values
        text = f"{mean(values):.4f} ({min(values):.4f} to {max(values):.4f}), seeds: {len(values)}"
        times = [curve.seconds_to(accuracy) for curve in curves.values()]
        reached = [seconds for seconds in times if seconds is not None]
        until = (
            f"{mean(reached):.0f}" if len(reached) == len(times) else f"{len(reached)} of {len(times)} runs"
        )
        in_all = mean(curve.seconds[-1] for curve in curves.values())
        lines.append(f"{framework:10} {text:36} {until:>14} {in_all:>10.0f}")
    if len(final) == 2 and all(len(values) > 1 for values in final.values()):
        lines.append(_compare(final))
    return "\n".join(lines) + "\n"


def _compare(final: Mapping[str, Sequence[float]]) -> str:
    """Compares the difference of two frameworks' means with twice its standard error (Welch)."""
    (first, second), (values, others) = final.keys(), final.values()
    difference = mean(values) - mean(others)
    noise = 2 * (stdev(values) ** 2 / len(values) + stdev(others) ** 2 / len(others)) ** 0.5
    verdict = "exceeds" if abs(difference) > noise else "is within"
    return (
        f"the difference {difference:+.4f} ({first} - {second}) {verdict} two standard errors of the seeds, "
        f"{noise:.4f}"
    )


def _check_pytorch(options: AccuracyOptions) -> None:
    """Raises a `UserError` if the runs with PyTorch can't start, which others would precede by minutes."""
    from benchmarks.accuracy.job import describe_run

    describe_run(load_config(str(options.config), _settings(options)), Path(), compiled=False)
    line = [options.torch, "-c", "import numpy, torch"]
    try:
        check = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603 - the user's
    except OSError as error:
        raise UserError(f"--torch {options.torch}: {error.strerror}") from None
    if check.returncode:
        reason = (check.stderr.strip().splitlines() or [f"exit code {check.returncode}"])[-1]
        raise UserError(
            f"--torch {options.torch}: {reason}; name a Python interpreter with PyTorch and NumPy, or set "
            "--frameworks ppcls"
        )


def _settings(options: AccuracyOptions) -> list[str]:
    """Returns the overrides of all runs."""
    # The table shows the accuracy; a missed target would end the command before the other runs.
    settings = [*options.override, "Global.target=null"]
    return settings if options.epochs is None else [*settings, f"Global.epochs={options.epochs}"]


def _train(options: AccuracyOptions, framework: Framework, seed: int) -> None:
    """Trains one run, unless it is finished, and saves its curve after each evaluation.

    Raises:
        UserError: The output folder has a run with other settings, or the run failed or has no accuracy.
    """
    file = options.out / f"{framework}_seed{seed}.json"
    settings = [str(options.config), *_settings(options)]
    if framework == "PyTorch" and options.torch_eager:
        settings.append("eager")
    new = {"settings": settings, "finished": False, "top1": [], "seconds": [], "epochs": []}
    saved: dict[str, Any] = new
    if file.is_file():
        saved = json.loads(file.read_text(encoding="utf-8"))
    stored = saved.get("settings", ["those of an earlier version"])
    if stored != settings:
        raise UserError(
            f"{file}: expected a run with the settings {' '.join(settings)}, found {' '.join(stored)}; set "
            "another folder with --out"
        )
    if saved["finished"]:
        return
    output_dir = (options.out / f"{framework}_seed{seed}").resolve()
    overrides = [*_settings(options), f"Global.seed={seed}", f"Global.output_dir={output_dir}"]
    if framework == "ppcls":
        words = ["train", "-c", str(options.config), "-o", *overrides, "Global.checkpoints=auto"]
        line = ppcls_command(*words)
    else:
        saved = new  # it has no checkpoints
        line = _pytorch_command(options, overrides, output_dir)
    before = saved["seconds"][-1] if saved["seconds"] else 0.0
    with (options.out / f"{framework}_seed{seed}.log").open("a", encoding="utf-8") as log:
        for text, seconds in _lines(line):
            log.write(text)
            log.flush()
            if (evaluation := _parse(text)) is not None:
                epoch, top1 = evaluation
                saved["epochs"].append(epoch)
                saved["top1"].append(top1)
                saved["seconds"].append(round(before + seconds, 2))
                write_text(file, json.dumps(saved) + "\n")
                write_output(f"{framework}, seed {seed}, epoch {epoch}: top1 {top1:.4f}, {seconds:.0f} s\n")
    if not saved["top1"]:
        raise UserError(
            "the run printed no top1; expected Global.eval_during_train: True and TopkAcc with topk 1 in "
            "Metric.Eval"
        )
    saved["finished"] = True
    write_text(file, json.dumps(saved) + "\n")


def _pytorch_command(options: AccuracyOptions, overrides: Sequence[str], folder: Path) -> list[str]:
    """Writes the initial weights and the settings, and returns the command of the run with PyTorch."""
    from benchmarks.accuracy.job import describe_run, write_weights

    config = load_config(str(options.config), overrides)
    folder.mkdir(exist_ok=True)
    weights = folder / "initial_weights.npz"
    job = describe_run(config, weights, compiled=not options.torch_eager)
    job["optimizer"]["no_decay"] = write_weights(config, weights)
    job_file = folder / "job.json"
    write_text(job_file, json.dumps(job))
    return [options.torch, str(Path(__file__).with_name("torch_training.py")), str(job_file)]


def _lines(line: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Runs a command, and yields each line of its output with the seconds since its start.

    Raises:
        UserError: The command failed.
    """
    start = time.perf_counter()
    paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = child_environment({"PYTHONUNBUFFERED": "1", "PYTHONPATH": paths})
    with subprocess.Popen(  # noqa: S603 - our own command
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None  # because of PIPE
        reason = ""
        for text in process.stdout:
            # An error of ppcls may have several lines. The last line of another program is the reason.
            reason = reason + text if reason.startswith("error: ") else text
            yield text, time.perf_counter() - start
    if process.returncode:
        raise UserError(
            f"the run ended with exit code {process.returncode}; its log is in --out: "
            f"{reason.strip().removeprefix('error: ')}"
        )


def _parse(text: str) -> tuple[int, float] | None:
    """Returns epoch and accuracy of an evaluation; None for another line."""
    if line := _EVALUATION.match(text):
        return int(line[1]), float(line[2])
    if text.startswith('{"epoch"'):
        record = json.loads(text)
        return record["epoch"], record["top1"]
    return None
