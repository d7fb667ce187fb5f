"""Plants faults in a data set, and measures what ``ppcls dataset audit`` finds, for docs/own-data.md.

    python examples/audit_study.py digits output/audit-digits
    python examples/audit_study.py fashion-mnist output/audit-fashion        # 70,000 pictures

The faults are 5 % wrong labels, 20 duplicates of training images in the validation images and 10 pictures of
something else. 10 of the duplicates have the same content; 10 are saved again as JPEG with quality 70, after
a change of brightness and size, or without two columns of pixels.
"""

import csv
import gzip
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
WRONG = 0.05
DUPLICATES = 20
FOREIGN = 10


def digits(folder: Path) -> None:
    """Writes the digits as folders ``train`` and ``val``."""
    from ppcls.dataset_tools.digits import make_digits

    make_digits(folder / "all")
    for part in ("train", "val"):
        for line in (folder / "all" / f"{part}_list.txt").read_text().splitlines():
            path, label = line.split()
            target = folder / "pictures" / part / label / Path(path).name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((folder / "all" / path).read_bytes())


def fashion_mnist(folder: Path) -> None:
    """Writes Fashion-MNIST as folders ``train`` and ``val`` of PNG files."""
    source = Path("/usr/share/datasets/fashion-mnist")
    for part, name in {"train": "train", "val": "t10k"}.items():
        images, labels = (
            np.frombuffer(gzip.decompress((source / f"{name}-{kind}-ubyte.gz").read_bytes())[skip:], np.uint8)
            for kind, skip in (("images-idx3", 16), ("labels-idx1", 8))
        )
        for position, label in enumerate(labels.tolist()):
            target = folder / "pictures" / part / str(label) / f"{position:05}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.reshape(-1, 28, 28)[position]).save(target)


def plant(pictures: Path, foreign: Iterator[Image.Image], seed: int = 0) -> dict[str, list]:
    """Plants the faults, and returns the files with wrong labels, the pairs of duplicates and the strangers.

    Args:
        pictures: Folder with ``train`` and ``val``, which is changed.
        foreign: Pictures of something else.
        seed: Seed of all choices.
    """
    rng = np.random.default_rng(seed)
    files = sorted(pictures.glob("train/*/*"))
    chosen = rng.permutation(len(files))
    wrong = []
    classes = sorted(folder.name for folder in (pictures / "train").iterdir())
    count = round(WRONG * len(files))
    for position in chosen[:count]:
        file = files[position]
        label = rng.choice([name for name in classes if name != file.parent.name])
        target = file.parents[1] / label / f"{file.parent.name}-{file.name}"
        file.rename(target)
        wrong.append(str(target.relative_to(pictures)))
    exact, near = [], []
    for number, position in enumerate(chosen[count : count + DUPLICATES]):
        file = files[position]
        copy = pictures / "val" / file.parent.name / f"copy-{number}{file.suffix}"
        if number < DUPLICATES // 2:
            copy.write_bytes(file.read_bytes())
            exact.append([str(file.relative_to(pictures)), str(copy.relative_to(pictures))])
            continue
        copy = copy.with_suffix(".jpg")
        image = Image.open(file).convert("RGB")
        width, height = image.size
        if number % 2:
            image = ImageEnhance.Brightness(image.resize((width * 5 // 4, height * 5 // 4))).enhance(0.9)
        else:
            image = image.crop((1, 0, width - 1, height))
        image.save(copy, quality=70)
        near.append([str(file.relative_to(pictures)), str(copy.relative_to(pictures))])
    strangers = []
    for number, image in zip(range(FOREIGN), foreign, strict=False):
        file = pictures / "train" / classes[number % len(classes)] / f"stranger-{number}.png"
        image.save(file)
        strangers.append(str(file.relative_to(pictures)))
    return {"wrong": wrong, "exact": exact, "near": near, "foreign": strangers}


def photographs(size: tuple[int, int]) -> Iterator[Image.Image]:
    """Yields crops of scikit-image's photographs."""
    from skimage import data

    for number, name in enumerate(("astronaut", "coffee", "chelsea", "rocket", "retina") * 2):
        image = Image.fromarray(getattr(data, name)()).convert("RGB")
        yield image.crop((100 * (number // 5), 50, 250 + 100 * (number // 5), 200)).resize(size)


def some_digits(folder: Path) -> Iterator[Image.Image]:
    """Yields digits, which are strangers among clothes."""
    from ppcls.dataset_tools.digits import make_digits

    make_digits(folder / "digits")
    for label in range(FOREIGN):
        yield Image.open(min((folder / "digits" / "images" / str(label)).iterdir())).resize((28, 28))


def score(folder: Path, planted: dict[str, list]) -> dict[str, float]:
    """Returns the shares of the planted faults that the audit in ``folder`` found."""
    with (folder / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = [row["file"] for row in rows if row["kind"] == "label"]
    groups: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["kind"] in ("leak", "contradiction", "exact", "near"):
            groups.setdefault((row["kind"], row["rank"]), set()).add(row["file"])
    joined = list(groups.values())

    def share(pairs: list[list[str]]) -> float:
        return sum(any(set(pair) <= group for group in joined) for pair in pairs) / len(pairs)

    known = {name for kind in ("exact", "near") for pair in planted[kind] for name in pair}
    outliers = [row["file"] for row in rows if row["kind"] == "outlier"]
    return {
        "planted among the first 50 suspicious labels": len({*labels[:50]} & {*planted["wrong"]})
        / min(50, len(labels)),
        "wrong labels found": len({*labels} & {*planted["wrong"]}) / len(planted["wrong"]),
        "suspicious labels": len(labels),
        "exact duplicates found": share(planted["exact"]),
        "near duplicates found": share(planted["near"]),
        "other groups of duplicates": sum(not group & known for group in joined),
        "strangers among the outliers": len({*outliers} & {*planted["foreign"]}) / len(planted["foreign"]),
        "outliers": len(outliers),
    }


def main(name: str, folder: Path) -> None:
    """Prepares a data set, audits it, and prints what was found."""
    pictures = folder / "pictures"
    if not pictures.is_dir():
        {"digits": digits, "fashion-mnist": fashion_mnist}[name](folder)
        foreign = photographs((32, 32)) if name == "digits" else some_digits(folder)
        planted = plant(pictures, foreign)
        (folder / "planted.json").write_text(json.dumps(planted, indent=1))
    planted = json.loads((folder / "planted.json").read_text())
    command = [sys.executable, str(ROOT / "tools" / "dataset.py"), "audit", str(pictures)]
    start = time.monotonic()
    subprocess.run([*command, "--out", str(folder / "audit")], check=True)  # noqa: S603
    seconds = time.monotonic() - start
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    for key, value in score(folder / "audit", planted).items():
        print(f"| {key} | {value:.2f} |" if isinstance(value, float) else f"| {key} | {value} |")
    print(f"| duration | {seconds:.0f} s |\n| largest memory | {memory:.1f} GiB |")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
