"""Whatever goes wrong: one clear text on stderr, exit code 1, no traceback, and nothing overwritten."""

from __future__ import annotations

import copy
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
import pytest
import yaml
from paddle import nn
from paths import ROOT

from ppcls.cli import deploy as deploy_cli
from ppcls.cli import train as cli
from ppcls.cli.command import command
from ppcls.cli.eval import evaluate
from ppcls.config.load import load_config
from ppcls.registry import ARCHITECTURES
from ppcls.report import jsonlines
from ppcls.weights import store

TOOLS = ROOT / "tools"
CLASSES = 3


HAS_GPU = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
NO_GPU = pytest.mark.skipif(HAS_GPU, reason="Paddle finds a GPU")


def build(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * input_image_channel, class_num))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(ARCHITECTURES._entries, "Linear", build)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Folder of 9 images, listed in ``list.txt``."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for i in range(9):
        cv2.imwrite(str(folder / f"{i}.jpg"), rng.integers(0, 256, (12, 10, 3)).astype(np.uint8))
    (folder / "list.txt").write_text("".join(f"{i}.jpg {i % CLASSES}\n" for i in range(9)))
    return folder


@pytest.fixture
def config(images: Path, tmp_path: Path) -> Path:
    split = {
        "dataset": {
            "name": "ImageNetDataset",
            "image_root": str(images),
            "cls_label_path": str(images / "list.txt"),
            "transform_ops": [{"DecodeImage": None}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": {}}],
        },
        "sampler": {"batch_size": 3},
        "loader": {"num_workers": 0, "dali": {"num_threads": 1}},
    }
    tree = {
        "Global": {"device": "cpu", "output_dir": str(tmp_path / "run"), "epochs": 1, "use_dali": True},
        "Arch": {"name": "Linear", "class_num": CLASSES},
        "Optimizer": {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 0.01}},
        "DataLoader": {"Train": split, "Eval": copy.deepcopy(split)},
        "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Fails = Callable[..., str]


@pytest.fixture
def fails(config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Fails:
    """Runs a tool that must fail, holds it to the rules, and returns what it said."""

    def check(tool: Callable[[Any], int], *overrides: str, path: Path = config) -> str:
        before = files(tmp_path)
        capfd.readouterr()
        assert tool(["-c", str(path), *(["-o", *overrides] if overrides else [])]) == 1
        lines = capfd.readouterr().err.splitlines(keepends=True)
        said = "".join(line for line in lines if "[jpeg_parser]" not in line)  # DALI's own word
        assert said.startswith("error: ")
        assert "Traceback" not in said
        after = files(tmp_path)
        assert {path: after.get(path) for path in before} == before
        return said.removeprefix("error: ")

    return check


DATA = "DataLoader.Train.dataset"


# Configs


def test_a_missing_config(fails: Fails, tmp_path: Path, config: Path) -> None:
    said = fails(cli.train, path=tmp_path / "gone.yaml")
    assert said == f"{tmp_path}/gone.yaml: no such config file; there are: {config}\n"


@pytest.mark.parametrize("tool", [cli.train, evaluate])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("Global.epochs", "expected path=value, such as Global.epochs=10"),
        ("Global.epoch=2", "Global.epoch: unknown key; did you mean 'epochs'?"),
        ("Global.epochs=two", "Global.epochs: expected an integer > 0, got 'two'"),
        (f"{DATA}.transform_ops[3]=1", "is a list: expected a number from 0 to 2, got '3'"),
        (
            "Global.output_dir=''",
            "Global.output_dir: expected a folder, such as ./output, got ''; . is the current one",
        ),
        ("Arch.class_num=null", "Arch.class_num: expected an integer > 0 or auto, got None"),
        ("Global.seed.x=1", "Global.seed is 3, so it has no 'x'"),
        ("Arch.name=ResNet5", "unknown architecture 'ResNet5'; did you mean 'ResNet50'?"),
    ],
)
def test_wrong_overrides(fails: Fails, tool: Any, override: str, message: str) -> None:
    assert message in fails(tool, "Global.seed=3", override)


def test_all_that_is_wrong_is_said_at_once(fails: Fails) -> None:
    said = fails(cli.train, "Global.epoch=2", "Arch.class_num=0", f"{DATA}.image_root=3")
    assert [line.split(":")[0].strip() for line in said.splitlines()[1:]] == [
        "Global.epoch",
        "Arch.class_num",
        f"{DATA}.image_root",
    ]


def test_print_config_is_read_again_as_the_same(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    override = "Optimizer.lr.learning_rate=1e-5"
    assert cli.train(["-c", str(config), "-o", override, "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    assert load_config(tmp_path / "printed.yaml") == load_config(config, [override])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tool", [cli.train, evaluate, deploy_cli.infer, deploy_cli.export])
def test_help(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool(["--help"])
    assert ended.value.code == 0
    assert "-c CONFIG" in capsys.readouterr().out


def test_explain_data_trains_nothing(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.train(["-c", str(config), "--explain-data", "-o", f"{DATA}.transform_ops.1.ResizeImage.size=9"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "DataLoader.Train: DALI on the CPU" in printed
    assert "[9, 9, 3] HWC uint8" in printed
    assert "DataLoader.Eval" in printed
    assert printed.endswith(f"drawn as {tmp_path}/run/pipeline.png\n")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["pipeline.png"]


def test_explain_data_of_a_broken_pipe(config: Path, tmp_path: Path) -> None:
    """The reader may leave; the picture is drawn."""
    train = [sys.executable, f"{TOOLS}/train.py", "-c", str(config), "--explain-data"]
    command = f"{shlex.join(train)} -o Arch.name=ResNet18 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == "DataLoader.Train: DALI on the CPU\n"
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
    assert (tmp_path / "run" / "pipeline.png").is_file()


# Data


def test_a_missing_list_file(fails: Fails, tmp_path: Path) -> None:
    said = fails(cli.train, f"{DATA}.cls_label_path={tmp_path}/gone.txt")
    assert said == f"{tmp_path}/gone.txt: no such list file; expected lines of 'path label'\n"


def test_a_missing_image_root(fails: Fails, tmp_path: Path) -> None:
    said = fails(cli.train, f"{DATA}.image_root={tmp_path}/gone")
    assert said.startswith(f"{tmp_path}/gone: no such folder; expected the images of image_root there")


@pytest.mark.parametrize("tool", [cli.train, evaluate])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3.jpg", "line 4: expected 'path label', got no label"),
        ("3.jpg cat", "line 4: expected a whole number as label, got 'cat'"),
        ("3.jpg 3", "line 4: label 3 is not in 0..2; Arch.class_num is 3"),
        ("3.jpg -1", "line 4: label -1 is not in 0..2; Arch.class_num is 3"),
    ],
)
def test_a_wrong_line(fails: Fails, images: Path, weights: Path, tool: Any, line: str, message: str) -> None:
    lines = (images / "list.txt").read_text().splitlines()
    lines[3] = line
    (images / "list.txt").write_text("\n".join(lines))
    said = fails(tool, *([f"Global.pretrained_model={weights}"] if tool is evaluate else []))
    assert said.startswith(f"{images}/list.txt, {message}")


def test_an_empty_list(fails: Fails, images: Path) -> None:
    (images / "list.txt").write_text("\n")
    assert fails(cli.train).startswith(
        f"{images}/list.txt: the list is empty; expected lines of 'path label'"
    )


def test_a_batch_larger_than_the_dataset(fails: Fails, images: Path) -> None:
    said = fails(cli.train, "DataLoader.Train.sampler.batch_size=10")
    assert said == (
        f"{images}/list.txt: 9 images are fewer than one batch of 10; "
        "decrease DataLoader.Train.sampler.batch_size\n"
    )


BAD: dict[str, tuple[Callable[[bytes], bytes] | None, str]] = {
    "text": (lambda _good: b"this is no image\n", ""),
    "cut": (lambda good: good[:120], ""),
    "empty": (lambda _good: b"", "the file is empty"),
    "missing": (None, "no such file"),
}


@pytest.mark.parametrize("reader", ["dali", "paddle.io", "a worker of paddle.io"])
@pytest.mark.parametrize("bad", BAD)
def test_an_image_that_does_not_decode(fails: Fails, images: Path, reader: str, bad: str) -> None:
    change, reason = BAD[bad]
    image = images / "7.jpg"
    if change is None:
        image.unlink()
    else:
        image.write_bytes(change(image.read_bytes()))
    workers = int(reader == "a worker of paddle.io")
    said = fails(
        cli.train, f"Global.use_dali={reader == 'dali'}", f"DataLoader.Train.loader.num_workers={workers}"
    )
    assert f"{image} ({images}/list.txt, line 8): " in said
    assert reason in said
    assert "0.jpg" not in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("use_dali", [True, False])
def test_an_image_for_evaluation_that_does_not_decode(
    fails: Fails, images: Path, weights: Path, use_dali: bool
) -> None:
    (images / "8.jpg").write_bytes(b"this is no image\n")
    said = fails(evaluate, f"Global.use_dali={use_dali}", f"Global.pretrained_model={weights}")
    assert f"{images}/8.jpg ({images}/list.txt, line 9): " in said


def test_no_section_of_data(fails: Fails, weights: Path) -> None:
    assert "training needs DataLoader.Train" in fails(cli.train, "DataLoader.Train=null")
    said = fails(evaluate, "DataLoader.Eval=null", f"Global.pretrained_model={weights}")
    assert "evaluation needs DataLoader.Eval" in said


# Weights and checkpoints


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    paddle.save(build(CLASSES, "NCHW", 3).state_dict(), str(tmp_path / "weights.pdparams"))
    return tmp_path / "weights.pdparams"


@pytest.mark.parametrize("tool", [cli.train, evaluate])
@pytest.mark.parametrize("name", ["gone", "gone.pdparams", "gone.safetensors"])
def test_a_missing_pretrained_file(fails: Fails, tmp_path: Path, tool: Any, name: str) -> None:
    said = fails(tool, f"Global.pretrained_model={tmp_path}/{name}")
    assert said.startswith(f"{tmp_path}/{name}: no ")


@pytest.mark.parametrize("tool", [cli.train, evaluate])
def test_pretrained_weights_of_another_model(fails: Fails, tmp_path: Path, tool: Any) -> None:
    paddle.save(nn.Linear(2, 3).state_dict(), str(tmp_path / "other.pdparams"))
    said = fails(tool, f"Global.pretrained_model={tmp_path}/other")
    assert said.startswith(
        f"{tmp_path}/other: weights of another model (is Arch the same?): 1.bias: missing; "
    )


def test_evaluation_without_weights(fails: Fails, tmp_path: Path) -> None:
    assert fails(evaluate) == (
        f"no weights: Global.pretrained_model is not set, and there is no {tmp_path}/run/best_model\n"
    )


def test_a_missing_checkpoint(fails: Fails, tmp_path: Path) -> None:
    said = fails(cli.train, f"Global.checkpoints={tmp_path}/gone")
    assert said.startswith(f"{tmp_path}/gone: not a checkpoint folder (no manifest.json); expected one such")


def test_training_evaluation_and_a_second_run(
    config: Path, tmp_path: Path, fails: Fails, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.train(["-c", str(config)]) == 0
    said = fails(cli.train)
    assert said.startswith(f"{tmp_path}/run already holds a run; resume it with -o Global.checkpoints=auto")
    assert evaluate(["-c", str(config)]) == 0
    assert evaluate(["--model", str(tmp_path / "run")]) == 0
    assert evaluate(["--model", str(tmp_path / "run" / "latest")]) == 0
    found = capfd.readouterr().out
    assert found.startswith(f"[Eval] {tmp_path}/run/best_model: loss ")
    assert ", 9 images, " in found
    (tmp_path / "run" / "latest" / "state.json").write_text("{")
    assert "state.json: damaged: " in fails(cli.train, "Global.checkpoints=auto", "Global.epochs=2")


# Where the run takes place


@pytest.mark.parametrize("folder", ["file", "file/run", "/proc/run"])
def test_an_output_folder_that_cannot_be_written(fails: Fails, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("precious")
    said = fails(cli.train, f"Global.output_dir={tmp_path / folder}")
    assert said.startswith(f"{tmp_path / folder}: can't write to this output folder: ")
    assert said.endswith("; set Global.output_dir\n")


@NO_GPU
@pytest.mark.parametrize("tool", [cli.train, evaluate])
def test_a_gpu_that_this_paddle_cannot_use(fails: Fails, weights: Path, tool: Any) -> None:
    said = fails(tool, "Global.device=gpu", f"Global.pretrained_model={weights}")
    if paddle.is_compiled_with_cuda():
        assert said.startswith("Global.device is gpu, but Paddle finds none (")
    else:
        assert f"the installed Paddle {paddle.__version__} is a CPU build; install paddlepaddle-gpu" in said
    assert said.endswith("set Global.device=cpu\n")


def test_float16_where_the_config_says_cpu(fails: Fails) -> None:
    assert "AMP.dtype: float16 needs a GPU, and Global.device is cpu" in fails(cli.train, "AMP.level=O1")


@NO_GPU
@pytest.mark.parametrize("tool", [cli.train, evaluate])
def test_float16_where_auto_finds_a_cpu(fails: Fails, weights: Path, tool: Any) -> None:
    said = fails(tool, "AMP.level=O2", "Global.device=auto", f"Global.pretrained_model={weights}")
    assert said.startswith("AMP.dtype: float16 needs a GPU, and this run is on the CPU; use -o AMP.dtype=bfl")


def test_a_disk_that_is_full_when_a_checkpoint_is_written(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_file", full)
    assert fails(cli.train) == (
        f"{tmp_path}/run/checkpoints: can't write a checkpoint: No space left on device; "
        "earlier checkpoints are unchanged. Set Global.checkpoint_fallback_dir to a folder for this case\n"
    )


def test_a_disk_that_is_full_when_a_record_is_written(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jsonlines.JsonLines, "train", full)
    assert fails(cli.train) == "No space left on device\n"


def test_a_file_in_the_place_of_a_run_s_own(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "run" / "train.log").mkdir(parents=True)
    assert fails(cli.train) == f"{tmp_path}/run/train.log: Is a directory\n"


def test_an_error_of_the_programme_is_not_taken_for_the_users() -> None:
    def broken(_argv: Any) -> None:
        raise OSError("(External) an error of Paddle's, which has no number")

    with pytest.raises(OSError, match="External"):
        command(broken)([])


def test_ctrl_c(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_config", interrupted)
    assert cli.train(["-c", str(config)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


# As processes of their own


STOPPED = """
import os, signal, sys
from ppcls.cli.eval import evaluate
from ppcls.cli.train import train
from ppcls.registry import ARCHITECTURES

def stopped(**_):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass

ARCHITECTURES._entries["Linear"] = stopped
sys.exit({"train": train, "evaluate": evaluate}[sys.argv.pop(1)]())
"""


@pytest.mark.parametrize("tool", [["evaluate"], ["train", "--dry-run"]])
def test_sigterm_ends_what_has_nothing_to_save_quietly(config: Path, weights: Path, tool: list[str]) -> None:
    command = [sys.executable, "-W", "ignore", "-c", STOPPED, *tool, "-c", str(config)]
    done = subprocess.run(
        [*command, "-o", f"Global.pretrained_model={weights}"], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, own(done.stderr)) == (143, "interrupted\n")  # and nothing of Paddle's


def process(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def own(stderr: str) -> str:
    """Returns stderr without what a GPU build of Paddle says on a machine without a GPU, before all else."""
    assert "Traceback" not in stderr
    return stderr.splitlines(keepends=True)[-1] if paddle.is_compiled_with_cuda() else stderr


@pytest.mark.parametrize("use_dali", [True, False])
def test_stderr_of_a_process_holds_the_error_only(config: Path, images: Path, use_dali: bool) -> None:
    (images / "7.jpg").write_bytes(b"this is no image\n")
    done = process("train.py", "-c", config, "-o", "Arch.name=ResNet18", f"Global.use_dali={use_dali}")
    assert done.returncode == 1
    assert own(done.stderr).startswith(f"error: {images}/7.jpg ({images}/list.txt, line 8): ")
    assert len(own(done.stderr).splitlines()) == 1


def test_config_errors_come_before_paddle(config: Path) -> None:
    code = (
        "import sys; from ppcls.cli.train import train; code = train(sys.argv[1:]); "
        "assert 'paddle' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-c", str(config), "-o", "Global.epoch=2", "Arch.name=ResNet18"],
        capture_output=True,
        text=True,
        check=False,
        cwd=TOOLS.parent,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {config}\n  Global.epoch: unknown key; did you mean 'epochs'?\n"


@pytest.mark.parametrize("reader", ["dali", "workers of paddle.io"])
def test_ctrl_c_in_a_terminal(config: Path, tmp_path: Path, reader: str) -> None:
    """A terminal sends the signal to all processes in the foreground, workers included."""
    command = [sys.executable, str(TOOLS / "train.py"), "-c", str(config), "-o", "Arch.name=ResNet18"]
    command += [
        "Global.epochs=1000000",
        f"Global.use_dali={reader == 'dali'}",
        "Global.save_interval=1000000",
    ]
    command += ["DataLoader.Train.loader.num_workers=2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            if line.startswith("[Eval] epoch 2 "):
                break
        os.killpg(running.pid, signal.SIGINT)
        said = running.stderr.read()
        running.stdout.read()
    assert running.returncode == 130
    assert own(said).splitlines()[-1] == "ended by SIGINT; go on with -o Global.checkpoints=auto"
    assert (tmp_path / "run" / "latest" / "state.json").is_file()
