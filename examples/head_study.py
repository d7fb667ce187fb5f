"""Compares a linear head with fine-tuning on small data sets, for docs/own-data.md.

    python examples/head_study.py run output/head-study      # trains; more than an hour on two cores
    python examples/head_study.py report output/head-study   # prints the table and draws head-study.svg

The data sets are those of finetune_study.py, with EfficientNet-Lite0 and 64×64 pixels: photographs of 16
classes with 4 training images each, and digits of 10 classes with 6 or with 60 training images each. Times
start with the command, so they include Paddle's import.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from finetune_study import ROOT, make_data

DATA = {"photos": 2 / 3, "digits": 2 / 3, "more digits": 0.5}  # with the share of the validation images
SETTINGS = {
    "head": ["--head"],
    "head without views": ["--head", "-o", "LinearHead.views=0"],
    "fine-tuning": ["--pretrained", "--epochs", "20"],
}
SEEDS = (1, 2)
_EVALUATION = re.compile(r"\[Eval\] epoch \d+ .*top1 ([\d.]+)")


def make_more_digits(folder: Path) -> None:
    """Adds a data set with 120 digits per class."""
    for source in sorted((folder / "all-digits" / "images").iterdir()):
        target = folder / "more digits" / source.name
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir())[:120]:
            (target / path.name).write_bytes(path.read_bytes())


def train(folder: Path, data: str, setting: str, seed: int) -> None:
    """Trains once, and appends the accuracy after each evaluation with its time to results.jsonl."""
    output = folder / "runs" / f"{data}-{setting}-{seed}".replace(" ", "-")
    if output.exists():
        return
    command = [sys.executable, str(ROOT / "tools" / "train.py"), str(folder / data)]
    command += ["--model", "EfficientNet_lite0", "--image-size", "64", "--seed", str(seed), "--device", "cpu"]
    command += ["--workers", "0", "--output", str(output), *SETTINGS[setting]]
    command += [] if "-o" in command else ["-o"]
    command += ["Global.use_dali=False", f"DataLoader.Train.dataset.val_share={DATA[data]}"]
    start = time.monotonic()
    curve = []
    # A separate cache, so that no run uses the features of another one.
    variables = {**os.environ, "PPCLS_HOME": str(output.with_suffix(".cache"))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:  # noqa: S603
        assert process.stdout is not None
        for line in process.stdout:
            if match := _EVALUATION.search(line):
                curve.append((time.monotonic() - start, float(match[1])))
    if process.returncode:
        raise SystemExit(f"{output}: failed")
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps({"data": data, "setting": setting, "seed": seed, "curve": curve}) + "\n")


def run(folder: Path) -> None:
    """Trains with all settings and seeds, the fastest first."""
    if not (folder / "photos").is_dir():
        make_data(folder)
        make_more_digits(folder)
    for seed in SEEDS:
        for setting in SETTINGS:
            for data in DATA:
                train(folder, data, setting, seed)


def report(folder: Path) -> None:
    """Prints a table of top-1 and durations, and draws top-1 over time to head-study.svg."""
    import matplotlib.pyplot as plt

    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    print("| data | setting | runs | last top-1 | duration |\n| --- | --- | --- | --- | --- |")
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "head-study", "font.size": 9}
    figure = plt.figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(1, len(DATA), sharey=True, squeeze=False)[0]
    for place, data in zip(axes, DATA, strict=True):
        for number, setting in enumerate(SETTINGS):
            curves = [each["curve"] for each in results if (each["data"], each["setting"]) == (data, setting)]
            if not curves:
                continue
            last = [curve[-1][1] for curve in curves]
            seconds = statistics.mean(curve[-1][0] for curve in curves)
            top1 = " and ".join(f"{value:.3f}" for value in last)
            print(f"| {data} | {setting} | {len(last)} | {top1} | {seconds:.0f} s |")
            for run_number, curve in enumerate(curves):
                label = None if run_number else setting
                place.plot(*zip(*curve, strict=True), marker="o", ms=3, color=f"C{number}", label=label)
        place.set(title=data, xlabel="seconds", xscale="log", ylim=(0, 1.02))
    axes[0].set_ylabel("top-1")
    axes[0].legend(frameon=False)
    figure.savefig(folder / "head-study.svg", metadata={"Date": None})


if __name__ == "__main__":
    {"run": run, "report": report}[sys.argv[1]](Path(sys.argv[2]))
