"""Measures how much ImageNet weights improve training on small data sets, for the study in docs/recipes.md.

    python examples/finetune_study.py run output/study      # trains; can be interrupted and restarted
    python examples/finetune_study.py report output/study   # prints the table and draws study.svg

There are two data sets: 64 training and 128 validation images cut from scikit-image's photographs, in 16
classes, and 60 training and 120 validation images of scikit-learn's digits. The model is EfficientNet-Lite0
with 64×64 pixels, and the config is configs/finetune.yaml. You can start `run` several times at once. Each
process then starts the next run that no other process has started.
"""

import json
import statistics
import subprocess
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FROZEN = "Optimizer.train_only=classifier"
SCRATCH = "Arch.pretrained=False"
NO_AUGMENTATION = "DataLoader.Train.dataset.transform_ops=" + json.dumps(
    [
        {"DecodeImage": None},
        {"ResizeImage": {"size": 64}},
        {"NormalizeImage": {"mean": [0.4980392] * 3, "std": [0.5019608] * 3}},
    ]
)
# Name, overrides of the config, and learning rates. Seeds other than 1 use only the first learning rate.
SETTINGS = [
    ("weights, all layers", [], [0.003, 0.01, 0.03]),
    ("weights, last layer only", [FROZEN], [0.03, 0.01, 0.1]),
    ("from scratch", [SCRATCH], [0.01, 0.003, 0.03, 0.1]),
    ("weights, no augmentation", [NO_AUGMENTATION], [0.003]),
]
EPOCHS = 20


def make_data(folder: Path) -> None:
    """Writes both data sets as folders with one subfolder per class."""
    from PIL import Image

    from ppcls.dataset_tools.digits import make_digits
    from ppcls.dataset_tools.photos import make_photos

    make_digits(folder / "all-digits")
    make_photos(folder / "all-photos", images=16 * 12, classes=16)
    for name, count in (("digits", 18), ("photos", 12)):
        for source in sorted((folder / f"all-{name}" / "images").iterdir()):
            target = folder / name / source.name
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(source.iterdir())[:count]:
                image = Image.open(path)
                image.thumbnail((128, 128))
                image.save(target / path.name, quality=95)


def train(folder: Path, data: str, setting: int, rate: float, seed: int) -> None:
    """Trains once and appends the accuracy to results.jsonl; skips a run that has already started."""
    output = folder / "runs" / f"{data}-{setting}-{rate}-{seed}"
    try:
        output.mkdir(parents=True)
    except FileExistsError:
        return
    name, extra, _ = SETTINGS[setting]
    command = [sys.executable, str(ROOT / "tools" / "train.py"), str(folder / data)]
    command += ["--model", "EfficientNet_lite0", "--pretrained", "--image-size", "64", "--lr", str(rate)]
    command += ["--epochs", str(EPOCHS), "--seed", str(seed), "--workers", "0", "--device", "cpu"]
    command += ["--output", str(output), "-o", "Global.use_dali=False", "Global.eval_interval=5", *extra]
    command += [f"DataLoader.Train.dataset.val_share={2 / 3}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    curve = {record["epoch"]: record["metrics"]["top1"] for record in records if record["kind"] == "eval"}
    result = {"data": data, "setting": name, "rate": rate, "seed": seed, "curve": curve}
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(result) + "\n")


def run(folder: Path) -> None:
    """Trains on the photographs with all learning rates, then with all seeds, and then on the digits."""
    if not (folder / "photos").is_dir():
        make_data(folder)
    jobs = [("photos", setting, line[2][0], 1) for setting, line in enumerate(SETTINGS)]
    jobs += [("photos", setting, rate, 1) for setting, line in enumerate(SETTINGS) for rate in line[2][1:]]
    for data, seed in [("photos", 2), ("photos", 3), ("digits", 1), ("digits", 2), ("digits", 3)]:
        jobs += [(data, setting, line[2][0], seed) for setting, line in enumerate(SETTINGS)]
    for job in jobs:
        train(folder, *job)


def key_of(result: dict) -> tuple[str, str, float]:
    """Returns data set, setting and learning rate, which are equal for all seeds in one row of the table."""
    return result["data"], result["setting"], result["rate"]


def report(folder: Path) -> None:
    """Prints a table of top-1 after the last epoch, and draws the settings with three seeds to study.svg."""
    import matplotlib.pyplot as plt

    lines = (folder / "results.jsonl").read_text().splitlines()
    print("| data | setting | learning rate | seeds | top-1 |\n| --- | --- | --- | --- | --- |")
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "study", "font.size": 9}
    figure, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    for key, group in groupby(sorted(map(json.loads, lines), key=key_of), key_of):
        curves = [result["curve"] for result in group]
        last = [list(curve.values())[-1] for curve in curves]
        spread = f" ({min(last):.2f} to {max(last):.2f})" if len(last) > 1 else ""
        print(f"| {key[0]} | {key[1]} | {key[2]} | {len(last)} | {statistics.mean(last):.2f}{spread} |")
        if key[0] == "photos" and len(curves) > 2:
            epochs = [int(epoch) for epoch in curves[0]]
            values = list(zip(*(curve.values() for curve in curves), strict=True))
            axes.plot(epochs, list(map(statistics.mean, values)), marker="o", label=key[1])
            axes.fill_between(epochs, list(map(min, values)), list(map(max, values)), alpha=0.2)
    axes.set(xlabel="epoch", ylabel="top-1", ylim=(0, 1), xticks=[5, 10, 15, 20])
    axes.legend(frameon=False)
    figure.savefig(folder / "study.svg", metadata={"Date": None})


if __name__ == "__main__":
    {"run": run, "report": report}[sys.argv[1]](Path(sys.argv[2]))
