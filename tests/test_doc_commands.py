"""Every command that the documents print runs as printed, or the text beside it says why no test runs it.

The reason, such as ``needs a GPU``, is in the command's comment, in a comment above it, or in brackets after
it. Each block runs in a folder of its own with the small files that the documents name, and must exit with 0.
What needs a network downloads weights from a local server, or runs in a fresh clone and installs from PyPI.

`test_found_commands` checks that no command is ignored.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from documents import RUNNERS, WRITTEN, Example, all_examples, examples, read
from few_digits import write_few_digits
from paths import ROOT
from running import free_port
from weights_server import weights_server

EXAMPLES = all_examples()
PLACEHOLDERS = {
    "CONFIG": "mine.yaml",
    "FILE": "mine.yaml",
    "KEY=VALUE": "Global.seed=2",
    "NAME": "MobileNetV3_small_x0_35",
    "PATH": "photo.jpg",
    "PATTERN": "'MobileNetV3*'",
    "PREFIX": "output/mine/best_model",
    "PHOTO": "photo.jpg",
    "IMAGES": "photo.jpg",
    "RUN": "runs/pets",
    "EXPORT": "exported",
    "BUNDLE": "runs/pets/bundle",
}
# What changes in a command to save time, or to use a free port: patterns and replacements. Besides, the
# configs in the folder train for one epoch, and the fine-tuning study runs only its first setting.
SHORTER = {
    r"^make .*": r"\g<0> -o setup DEVICE=cpu",
    r"^(?:ppcls |python tools/)serve.*|^tensorboard .*": r"\g<0> --port PORT",
    r"^curl ": "curl --silent --show-error --fail ",
    r"http://127.0.0.1:8000": "http://127.0.0.1:PORT",
    r"model\.serve\(port=8000\)": "model.serve(port=PORT, wait=False).terminate()",
    r"^ppcls train (scanned|pets)/": r"\g<0> --model RegNetX_200MF --image-size 32",
    r"^ppcls train pictures/(?! .*hf-hub)": r"\g<0> --model RegNetX_200MF",
    r"^ppcls train pictures/": r"\g<0> --output runs/new_NUMBER --image-size 32",
    r"^ppcls train .*--epochs (8|10|20) .*": r"\g<0> --epochs 1",
    r"epochs=20": "epochs=1, image_size=32",
    r" photos \d+": " photos 32",
    r" measure 'MobileNet\*'": " measure 'MobileNetV3_small_x0*'",
    r" --precision int8": r"\g<0> --calibration-images 16",
    r" --trials 50": " --trials 1",
    r" --profile 20:40": " --profile 1:3",
    r".* -c configs/quickstart.yaml --(find|folds).*": r"\g<0> -o Arch.name=ShuffleNetV2_x0_25",
    r".* -c examples/few_labels.yaml": r"\g<0> -o Arch.name=ShuffleNetV2_x0_25"
    " Global.epochs=1 DataLoader.Train.sampler.samples=32",
    r"^python ppcls/static/train.py .*": r"\g<0> -o Global.output_dir=output/static",
    r"^ppcls tune (?!.*--trials).*": r"\g<0> --trials 1 -o Global.output_dir=output/tune",
    (
        r"^(taskset .*)?((ppcls |python tools/)benchmark(\.py)?|python benchmarks/run.py) "
        r"(?!compare|charts|limits|predictions).*"
    ): r"\g<0> --seconds 0.05 --rounds 2",
    r"^.*benchmark.*ResNet50_photos.yaml": r"\g<0> -o DataLoader.Train.sampler.batch_size=4",
    r" --clients 1 8 64": " --clients 1 2",
    # Examples of `--help` and comments, which use results of other commands.
    r" output/(?:best_model|inference)\b": " runs/embeddings",
    r" output/quickstart/best_model\b": " runs/pets/best_model",
    r"catalogue\.index 'photos": "photos.index 'photos",
    r" --undo audit/undo-\S+": " --undo audit/undo-*.csv",
    r" --out (lists|shards)/": r" --out \1_NUMBER/",
    r"^(ppcls |python tools/)verify": (
        r"([ -e runs/pets/bundle ] || ppcls export --model runs/pets --trust --format bundle) && \g<0>"
    ),
    r" --model FOLDER": " --model exported",
    r"^ppcls runs FOLDER": "ppcls runs runs",
    r" --pretrained runs/pets-head": " --pretrained runs/pets",
    r"^python benchmarks/run.py limits .*": r"\g<0> --seconds 0.05",
    r"^cp -rL runs/digits/best_model": "cp -rL runs/pets/best_model",
    r" digits_model dataset/digits/images/7/0007.jpg": " digits_model photo.jpg",
    r" bundle\.zip": " runs/pets/bundle.zip",
    r"^ppcls dataset cells$": r"\g<0> 20",
    r"^.*-c configs/cells.yaml --improvement": r"ppcls dataset cells 80; \g<0>",
    r" photos 32 --classes 32": " photos 64 --classes 32",
    r" \[--dali\] \[--steps 150\]": " --steps 2",
    r" --batch-size 1 8 32 128": " --batch-size 1 2",
    r"^(python tests/reliability/soak.py) .*": r"\1 --minutes 0.1 --interval 5 --epochs 1 --output soak",
}
# Two folders with copies of the same images, and models of ImageNet.
SHORTER |= {
    r"( -c mine\.yaml .*)/hdd/photos /ssd/photos": r"\1mine pictures",
    r" /hdd/photos /ssd/photos": " hdd ssd",
    r"(benchmarks/run\.py predictions) accuracy/\S+": r"\1 runs/pets",
    r"^(?:ppcls |python (?:tools|ppcls)/)(?:train|eval|infer|export)\b.* -c \S*/ResNet50\.yaml.*": (
        r"\g<0> -o Arch.name=ShuffleNetV2_x0_25 Global.epochs=1 DataLoader.Train.sampler.batch_size=4"
    ),
}
# The same in a clone, where commands install what they need, and `make test` only collects the tests.
SHORTER_IN_CLONE = {
    r"^pip ": "python -m venv --clear new && new/bin/pip ",
    r"^make fuzz MINUTES=10": "make fuzz MINUTES=0.01 TARGETS=manifest",
    r"^make soak MINUTES=10": "make soak MINUTES=0.1",
}
KEY = "0123456789abcdef" * 4  # of the HTTP API
# What the fixture `models` adds.
MODELS = (
    r"runs/(pets|cats|embeddings)|ppcls runs|runs\.py|output/(best|inf|quick)|BUNDLE|onnx/|ResNet50_photos"
    r"|(eval|infer|export)\b.* -c configs/ResNet50\.yaml|run\.py predictions"
    r"|exported/|--resume RUN|--model (FOLDER|EXPORT)|cp -rL runs"
)
SERVER = r"(ppcls |python tools/)serve|tensorboard|make visualdl"
QUICK = r"find|make (help|docs|requirements)|.*--(print-config|help)\b"


def run(command: str, folder: Path, variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment() | (variables or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Without GPUs, the commands do the same on all machines.
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "KEY": KEY, "CUDA_VISIBLE_DEVICES": ""}


@contextmanager
def running(command: str, folder: Path, port: int, variables: dict[str, str]) -> Iterator[None]:
    """Starts a server, waits until it listens, and interrupts it at the end."""
    log = folder / "server.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment() | variables,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            while not listens(port):
                assert process.poll() is None, f"{command}\n{log.read_text()}"
                time.sleep(0.1)
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)


def listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def write_pictures(folder: Path, count: int, suffix: str = ".jpg", size: tuple[int, int] = (40, 48)) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(len(folder.name))
    for number in range(count):
        image = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
        assert cv2.imwrite(str(folder / f"{number}{suffix}"), image)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code, and with what the documents' commands read, except models."""
    folder = tmp_path_factory.mktemp("documents")
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    for config in (folder / "configs").glob("*.yaml"):
        config.write_text(re.sub(r"^  epochs: \d+$", "  epochs: 1", config.read_text(), flags=re.MULTILINE))
    study = folder / "examples" / "finetune_study.py"
    study.write_text(study.read_text().replace("EPOCHS = 20", "EPOCHS = 1\nSETTINGS = SETTINGS[:1]"))
    study = folder / "examples" / "head_study.py"
    shorter = 'SETTINGS = {"head": SETTINGS["head"]}\nDATA = {"digits": DATA["digits"]}\nSEEDS = (1,)\n'
    study.write_text(study.read_text().replace("SEEDS = (1, 2)\n", shorter))
    for path in [*ROOT.glob("requirements*.txt"), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        shutil.copy(path, folder)
    for name in ("docs", ".ci"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("ppcls", "benchmarks", "tools", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    for name in ("pictures", "mine"):
        for kind in ("cats", "dogs"):
            write_pictures(folder / name / kind, 10)
    for name in ("photos/2026", "folder", "catalogue", "samples"):
        write_pictures(folder / name, 3)
    write_pictures(folder / "more" / "folders", 2, ".png")
    for name in ("img", "gt"):  # equal sizes; 48 pixels and more for the example's crop
        write_pictures(folder / "train" / name / "scene", 2, ".png", (56, 64))
    for name in ("photo.jpg", "one.jpg"):
        shutil.copy(folder / "samples" / "0.jpg", folder / name)
    shutil.copy(folder / "more" / "folders" / "0.png", folder / "two.png")
    write_pictures(folder / "catalogue" / "old", 2)
    shutil.copy(folder / "samples" / "0.jpg", folder / "catalogue" / "17.jpg")
    shutil.copy(folder / "samples" / "0.jpg", folder / "catalogue" / "18.jpg")
    write_pictures(folder / "scanned", 10)
    rows = [f"{number},{('cats', 'dogs')[number % 2]}\n" for number in range(10)]
    (folder / "labels.csv").write_text("".join(["id,species\n", *rows]))
    write_pictures(folder / "breeds", 10)
    (folder / "breeds.csv").write_text("".join(["id,breed\n", *rows]))
    (folder / "my_parts.py").touch()
    for name in ("scans", "held_out", "other", "pets"):
        shutil.copytree(folder / "pictures", folder / name)
    write_pictures(folder / "other_photos", 3)
    for split in ("train", "val"):
        write_pictures(folder / "dataset" / "ILSVRC2012" / split / "n01440764", 8, ".JPEG")
    rows = [f"{split}/n01440764/{number}.JPEG 0\n" for split in ("train", "val") for number in range(8)]
    for name, lines in (("train", rows[:8]), ("val", rows[8:])):
        (folder / "dataset" / "ILSVRC2012" / f"{name}_list.txt").write_text("".join(lines))
    run("ppcls dataset photos 32", folder)
    for name in ("hdd", "ssd"):
        shutil.copytree(folder / "dataset" / "photos", folder / name)
    paths = sorted((folder / "pictures").rglob("*.jpg"))
    lines = [f"{path.relative_to(folder / 'pictures')} {int(path.parent.name == 'dogs')}" for path in paths]
    (folder / "list.txt").write_text("\n".join(lines) + "\n")
    (folder / "keys.txt").write_text(KEY + "\n")
    write_few_digits(folder / "dataset" / "digits", train=64, evaluation=16)
    options = "--model ShuffleNetV2_x0_25 --image-size 32 --batch-size 4 --epochs 1 --output output/mine"
    run(f"ppcls train mine {options} --print-config > mine.yaml", folder)
    run("ppcls dataset convert webdataset pictures --out shards", folder)
    run("ppcls dataset convert tfrecord pictures --out records && cp records/*.tfrecord part-000", folder)
    return folder


@pytest.fixture(scope="session")
def models(files: Path) -> Path:
    """The same folder with the models that the commands read."""
    run("ppcls train -c mine.yaml --model RegNetX_200MF --output runs/pets", files)  # timm has it
    config = yaml.safe_load((files / "mine.yaml").read_text())
    config["Global"]["eval_mode"] = "retrieval"
    config["Arch"] = {
        "name": "RecModel",
        "Backbone": {"name": "ShuffleNetV2_x0_25"},
        "Head": {"name": "ArcMargin", "embedding_size": 512, "class_num": 2},
    }
    config["Metric"] = {"Eval": [{"Recallk": {"topk": 1}}]}
    del config["Infer"]["PostProcess"]
    (files / "embeddings.yaml").write_text(yaml.safe_dump(config))
    run("ppcls train -c embeddings.yaml --output runs/embeddings", files)
    for name in ("cats", "dogs", "birds"):  # not links, which a server's folder of models ignores
        shutil.copytree(files / "runs" / "pets", files / "runs" / name, symlinks=True)
    run(shorten("ppcls train -c configs/ResNet50.yaml", SHORTER), files)
    run("ppcls export --model runs/pets --trust --output exported", files)
    run("ppcls export --model runs/pets --trust --format onnx --output onnx", files)
    run(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.crt -subj /CN=localhost",
        files,
    )
    return files


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment variables for a local server of published weights."""
    with weights_server(tmp_path_factory.mktemp("weights") / "server") as variables:
        yield variables


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the last commit, whose virtual environment the first `make` creates."""
    skip_without_network()
    folder = tmp_path_factory.mktemp("clone") / "ppcls"
    run(f"git clone --quiet {shlex.quote(str(ROOT))} {folder}", ROOT)
    return folder


def skip_without_network() -> None:
    pip = [sys.executable, "-m", "pip", "--retries", "0", "--timeout", "10"]
    if subprocess.run([*pip, "index", "versions", "paddlepaddle"], capture_output=True).returncode:
        pytest.skip("no network: pip can't reach its package index")


def is_quick(example: Example) -> bool:
    return not needs_clone(example) and all(re.match(QUICK, command) for command in example.commands)


def needs_clone(example: Example) -> bool:
    """Whether the commands install packages, which takes minutes; ``.ci/run`` also runs ``make docs``.

    ``pip`` never runs in the environment of the tests, where it would replace packages.
    """
    programs = r"(?:^|&& )(?:make|pip) " if example.network else r"(?:^|&& )pip "
    return any(re.search(programs, command) for command in example.commands)


@pytest.mark.timeout(3600)  # some documents have many commands
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=example.name, marks=() if is_quick(example) else pytest.mark.slow)
        for example in EXAMPLES
        if example.commands
    ],
)
def test_printed_commands_succeed(example: Example, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if any("ppcls tune" in command for command in example.commands):
        pytest.importorskip("optuna")  # an extra
    text = "\n".join(example.commands)
    if re.search(r"make (?:lock|sbom)", text) and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    variables, shorter = {}, SHORTER
    if needs_clone(example):
        folder, shorter = request.getfixturevalue("clone"), SHORTER_IN_CLONE
        variables = {"PYTHONPATH": "", "PYTEST_ADDOPTS": "--collect-only -q"}
    else:
        folder = tmp_path / "work"
        files = request.getfixturevalue("models" if re.search(MODELS, text) else "files")
        shutil.copytree(files, folder, symlinks=True)
        for name in re.findall(r"--output (\S+)|output=\"(\S+?)\"|benchmark .*--out (\S+)", text):
            shutil.rmtree(folder / "".join(name), ignore_errors=True)  # made by the commands themselves
        if re.search(r"train.* -c \S*/ResNet50\.yaml", text):
            shutil.rmtree(folder / "output", ignore_errors=True)
        if example.network:
            variables = request.getfixturevalue("weights")
    port = 0
    with ExitStack() as server:
        for number, printed in enumerate(example.commands):
            if changed := re.fullmatch(r"cd (\S+)", printed):
                folder /= changed[1]
                continue
            is_server = re.match(SERVER, printed)
            if is_server:
                server.close()  # the previous one
                port = 8040 if "visualdl" in printed else free_port()
            command = shorten(printed, shorter).replace("NUMBER", str(number)).replace("PORT", str(port))
            if is_server:
                server.enter_context(running(command, folder, port, variables))
            else:
                run(command, folder, variables)


@pytest.fixture(scope="session")
def bundle(models: Path) -> Path:
    programs = ",".join(readme.parent.name for readme in RUNNERS)
    run(f"ppcls export --model runs/pets --trust --format bundle --runners {programs} --output all", models)
    return models / "all"


JARS = os.environ.get("JAVA_CLASSPATH", "").split(os.pathsep)  # see `make test-runners`


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("readme", RUNNERS, ids=lambda path: path.parent.name)
def test_commands_for_programs_of_bundles_succeed(readme: Path, bundle: Path, tmp_path: Path) -> None:
    skip_without_network()
    (example,) = examples(readme)
    text = "\n".join(example.commands)
    for program in ("npm", "cmake", "javac"):
        if f"{program} " in text and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    for place in (folder, folder / "runners" / "js"):
        shutil.copy(bundle.parent / "photo.jpg", place)
    if "javac" in text:
        if len(JARS) != 2 or not all(map(os.path.exists, JARS)):
            pytest.skip("JAVA_CLASSPATH does not contain the jars of ONNX Runtime and Gson")
        for jar, name in zip(JARS, ("onnxruntime.jar", "gson.jar"), strict=True):
            (folder / name).symlink_to(jar)
    if installed := re.search(r"apt-get install (.*)", text):
        if subprocess.run(["dpkg", "--status", *installed[1].split()], capture_output=True).returncode:
            pytest.skip(f"needs the packages {installed[1]}")
        text = text.replace(installed[0], "true")
    variables = {"PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if "pip install" in text:
        text = f"python -m venv new\nsource new/bin/activate\n{text}"
    text, is_server, server = text.partition("python -m http.server 8000")
    run(f"set -e\n{text}", folder, variables)
    if is_server:
        port = free_port()
        assert not server
        with running(is_server.replace("8000", str(port)), folder, port, variables):
            run(f"curl --silent --fail http://localhost:{port}/runners/web/", folder)


def shorten(command: str, replacements: dict[str, str]) -> str:
    for placeholder, value in PLACEHOLDERS.items():
        command = re.sub(rf"(?<=[ =]){re.escape(placeholder)}(?= |$)", value, command)
    for pattern, replacement in replacements.items():
        command = re.sub(pattern, replacement, command)
    return command


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)
def test_sentence_names_only_make_targets_of_blocks(document: Path) -> None:
    """So that each is run or marked, there or in another document."""
    listed = {
        match[1]
        for example in EXAMPLES
        for command in [*example.commands, *example.marked]
        if (match := re.match(r"make ([\w-]+)", command))
    }
    assert set(re.findall(r"`make ([a-z][\w-]*)", read(document))) <= listed
