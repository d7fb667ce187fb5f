"""An error in ``train`` or ``eval`` is one message on stderr and exit code 1, and overwrites nothing."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
import yaml
from paddle import nn
from paths import ROOT
from runs import GUARD

from ppcls.cli.eval import evaluate
from ppcls.cli.train import train
from ppcls.recipe.load import load_config
from ppcls.report import jsonlines
from ppcls.weights import store

TOOLS = ROOT / "tools"
DATA = "DataLoader.Train.dataset"
BOTH = pytest.mark.parametrize("command", [train, evaluate])
Fails = Callable[..., str]

HAS_GPU = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
NO_GPU = pytest.mark.skipif(HAS_GPU, reason="Paddle finds a GPU")


# Configs


def test_missing_config_error_lists_existing_configs(fails: Fails, tmp_path: Path, config: Path) -> None:
    message = fails(train, path=tmp_path / "gone.yaml")
    assert message.startswith(f"{tmp_path}/gone.yaml: no such config file")
    assert config.name in message


@BOTH
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("Global.epochs", "expected path=value, such as Global.epochs=10; put images before -o"),
        ("Global.epoch=2", "Global.epoch: unknown key; did you mean 'epochs'?"),
        ("Global.epochs=two", "Global.epochs: expected an integer > 0, got 'two'"),
        (f"{DATA}.transform_ops[3]=1", "is a list: expected a number from 0 to 2, got '3'"),
        ("Global.output_dir=''", "Global.output_dir: expected a folder such as ./output, got ''"),
        ("Arch.class_num=null", "Arch.class_num: expected an integer > 0 and <= 10000000 or auto, got None"),
        ("Global.seed.x=1", "Global.seed is 3, so it has no 'x'"),
        ("Arch.name=ResNet5", "unknown architecture 'ResNet5'; did you mean 'ResNet50' or"),
    ],
)
def test_wrong_override_is_rejected(fails: Fails, command: Any, override: str, message: str) -> None:
    assert message in fails(command, "Global.seed=3", override)


def test_all_config_errors_are_reported_together(fails: Fails) -> None:
    message = fails(train, "Global.epoch=2", "Arch.class_num=0", f"{DATA}.image_root=3")
    keys = [line.split(":")[0].strip() for line in message.splitlines() if line.startswith("  ")]
    assert keys == ["Global.epoch", "Arch.class_num", f"{DATA}.image_root"]


def test_config_errors_come_before_the_import_of_paddle(config: Path) -> None:
    code = (
        "import sys; from ppcls.cli.train import train; code = train(sys.argv[1:]); "
        "assert 'paddle' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "-c", str(config), "-o", "Global.epoch=2", "Arch.name=ResNet18"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: -o Global.epoch=2\n  Global.epoch: unknown key; did you mean 'epochs'?\n"


def test_printed_config_is_read_as_the_same_config(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    override = "Optimizer.lr.learning_rate=1e-5"
    assert train(["-c", str(config), "-o", override, "--print-config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path / "printed.yaml") == load_config(config, [override])
    assert not (tmp_path / "run").exists()


def test_explain_data_prints_without_training_or_writing(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    override = f"{DATA}.transform_ops.1.ResizeImage.size=9"
    assert train(["-c", str(config), "--explain-data", "-o", override]) == 0
    printed = capsys.readouterr().out
    assert "DataLoader.Train: DALI on the CPU" in printed
    assert "[9, 9, 3] HWC uint8" in printed
    assert "DataLoader.Eval" in printed
    assert not (tmp_path / "run").exists()


def test_explain_data_ends_quietly_if_the_reader_closes_the_pipe(config: Path) -> None:
    explain = [sys.executable, f"{TOOLS}/train.py", "-c", str(config), "--explain-data"]
    command = f"{shlex.join(explain)} -o Arch.name=ResNet18 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == "DataLoader.Train: DALI on the CPU\n"
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


# Data


def test_missing_list_is_named(fails: Fails, tmp_path: Path) -> None:
    message = fails(train, f"{DATA}.cls_label_path={tmp_path}/gone.txt")
    assert message.startswith(f"{tmp_path}/gone.txt: no such list file; expected lines of 'path label'")


def test_missing_image_root_is_named(fails: Fails, tmp_path: Path) -> None:
    assert fails(train, f"{DATA}.image_root={tmp_path}/gone").startswith(f"{tmp_path}/gone: no such folder")


@BOTH
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3.jpg", "expected 'path label', got no label"),
        ("3.jpg cat", "got 'cat'"),
        ("3.jpg 3", "label 3 is not in 0..2"),
        ("3.jpg -1", "label -1 is not in 0..2"),
    ],
)
def test_wrong_line_of_a_list_is_named(
    fails: Fails, images: Path, weights: Path, command: Any, line: str, message: str
) -> None:
    lines = (images / "list.txt").read_text().splitlines()
    lines[3] = line
    (images / "list.txt").write_text("\n".join(lines))
    found = fails(command, *([f"Global.pretrained_model={weights}"] if command is evaluate else []))
    assert found.startswith(f"{images}/list.txt, line 4: ")
    assert message in found


def test_empty_list_is_rejected(fails: Fails, images: Path) -> None:
    (images / "list.txt").write_text("\n")
    assert fails(train).startswith(f"{images}/list.txt: the list is empty; expected lines of 'path label'")


def test_batch_larger_than_the_data_set_is_rejected(fails: Fails, images: Path) -> None:
    sampler = "DataLoader.Train.sampler"
    message = fails(train, f"{sampler}.batch_size=10", f"{sampler}.drop_last=True")
    assert message.startswith(f"{images}/list.txt: 9 images are fewer than one batch of 10; ")
    assert message.endswith(" DataLoader.Train.sampler.batch_size (--batch-size)\n")


DAMAGES: dict[str, tuple[Callable[[bytes], bytes] | None, str]] = {
    "text": (lambda _good: b"this is no image\n", ""),
    "cut off": (lambda good: good[:120], ""),
    "empty": (lambda _good: b"", "the file is empty"),
    "missing": (None, "no such file"),
}


@pytest.mark.parametrize("reader", ["dali", "paddle.io", "a worker of paddle.io"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_training_image_is_named(fails: Fails, images: Path, reader: str, damage: str) -> None:
    change, reason = DAMAGES[damage]
    image = images / "7.jpg"
    if change is None:
        image.unlink()
    else:
        image.write_bytes(change(image.read_bytes()))
    workers = int(reader == "a worker of paddle.io")
    message = fails(
        train, f"Global.use_dali={reader == 'dali'}", f"DataLoader.Train.loader.num_workers={workers}"
    )
    assert f"{image} ({images}/list.txt, line 8): " in message
    assert reason in message
    assert "0.jpg" not in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("use_dali", [True, False])
def test_bad_evaluation_image_is_named(fails: Fails, images: Path, weights: Path, use_dali: bool) -> None:
    (images / "8.jpg").write_bytes(b"this is no image\n")
    message = fails(evaluate, f"Global.use_dali={use_dali}", f"Global.pretrained_model={weights}")
    assert f"{images}/8.jpg ({images}/list.txt, line 9): " in message


@pytest.mark.parametrize(("command", "split"), [(train, "Train"), (evaluate, "Eval")])
def test_missing_data_section_is_named(fails: Fails, weights: Path, command: Any, split: str) -> None:
    message = fails(command, f"DataLoader.{split}=null", f"Global.pretrained_model={weights}")
    assert f"DataLoader.{split}" in message


# Weights and checkpoints


@BOTH
@pytest.mark.parametrize("name", ["gone", "gone.pdparams", "gone.safetensors"])
def test_missing_pretrained_file_is_named(fails: Fails, tmp_path: Path, command: Any, name: str) -> None:
    assert fails(command, f"Global.pretrained_model={tmp_path}/{name}").startswith(f"{tmp_path}/{name}: ")


@BOTH
def test_weights_of_another_model_are_rejected(fails: Fails, tmp_path: Path, command: Any) -> None:
    paddle.save(nn.Linear(2, 3).state_dict(), str(tmp_path / "other.pdparams"))
    message = fails(command, f"Global.pretrained_model={tmp_path}/other")
    assert message.startswith(f"{tmp_path}/other: ")
    assert "1.bias" in message


def test_evaluation_without_weights_is_rejected(fails: Fails, tmp_path: Path) -> None:
    message = fails(evaluate)
    assert "set Global.pretrained_model" in message
    assert f"{tmp_path}/run/best_model" in message


def test_missing_checkpoint_is_named(fails: Fails, tmp_path: Path) -> None:
    message = fails(train, f"Global.checkpoints={tmp_path}/gone")
    assert message.startswith(f"{tmp_path}/gone: not a checkpoint folder (no manifest.json)")


def test_trained_run_is_evaluated_and_not_overwritten(
    config: Path, tmp_path: Path, fails: Fails, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(["-c", str(config)]) == 0
    message = fails(train)
    assert message.startswith(f"{tmp_path}/run already holds a run")
    assert "Global.checkpoints=auto" in message
    run = tmp_path / "run"
    # The folder of a model names data sets, which are read only if the user trusts the model.
    trusted = (["--model", run, "--trust"], ["--model", run / "best_model", "--trust"])
    for arguments in (["-c", config], *trusted):
        assert evaluate([str(each) for each in arguments]) == 0
        found = capfd.readouterr().out
        assert found.startswith(f"[Eval] {run}/best_model: loss ")
        assert ", 9 images, " in found
    (run / "latest" / "state.json").write_text("{")
    assert "state.json: damaged: " in fails(train, "Global.checkpoints=auto", "Global.epochs=2")


# The machine


@pytest.mark.parametrize(
    ("folder", "option"), [("file", []), ("file/run", []), ("/proc/run", []), ("file/run", ["--dry-run"])]
)
def test_output_folder_that_cannot_be_written_is_named(
    config: Path, tmp_path: Path, folder: str, option: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    assert train(["-c", str(config), *option, "-o", f"Global.output_dir={tmp_path / folder}"]) == 2
    message = capfd.readouterr().err
    assert message.startswith(f"error: {tmp_path / folder}: can't write to this output folder: ")
    assert message.endswith("; set Global.output_dir\n")
    assert (tmp_path / "file").read_text() == "precious"


@NO_GPU
@BOTH
def test_gpu_that_paddle_cannot_use_is_rejected(fails: Fails, weights: Path, command: Any) -> None:
    message = fails(command, "Global.device=gpu", f"Global.pretrained_model={weights}")
    assert message.startswith("Global.device is gpu, but ")
    assert message.endswith("set Global.device=cpu\n")


def test_float16_is_rejected_if_the_config_chooses_the_cpu(fails: Fails) -> None:
    assert "AMP.dtype: float16 needs a GPU, but Global.device is cpu" in fails(train, "AMP.level=O1")


@NO_GPU
@BOTH
def test_float16_is_rejected_if_auto_finds_the_cpu(fails: Fails, weights: Path, command: Any) -> None:
    message = fails(command, "AMP.level=O2", "Global.device=auto", f"Global.pretrained_model={weights}")
    assert message.startswith("AMP.dtype: float16 needs a GPU")
    assert "AMP.dtype=bfloat16" in message


def fail_with_full_disk(*_arguments: Any) -> None:
    raise OSError(28, "No space left on device")


def test_full_disk_during_a_checkpoint_suggests_another_folder(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store, "write_file", fail_with_full_disk)
    message = fails(train)
    assert message.startswith(
        f"{tmp_path}/run/checkpoints: can't write a checkpoint: No space left on device"
    )
    assert "Global.checkpoint_fallback_dir" in message


def test_full_disk_during_a_record_is_reported(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines.MetricsFile, "record", fail_with_full_disk)
    assert fails(train) == "No space left on device\n"


def test_folder_in_place_of_the_log_is_named(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "run" / "train.log").mkdir(parents=True)
    assert fails(train).startswith(
        f"{tmp_path}/run/train.log: expected a regular file or nothing, found a folder"
    )


# Separate processes


def without_paddles_lines(stderr: str) -> str:
    """Returns stderr without the lines that a GPU build of Paddle prints first on a machine without a GPU."""
    assert "Traceback" not in stderr
    return stderr.splitlines(keepends=True)[-1] if paddle.is_compiled_with_cuda() else stderr


INTERRUPTED_WHILE_BUILDING = """
import os, signal, sys
from ppcls.cli.eval import evaluate
from ppcls.cli.train import train
from ppcls.registry import ARCHITECTURES

def terminate(**_):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass

ARCHITECTURES._entries["Linear"] = terminate
sys.exit({"train": train, "evaluate": evaluate}[sys.argv.pop(1)]())
"""


@pytest.mark.parametrize(
    "command", [pytest.param(["evaluate"], marks=pytest.mark.slow), ["train", "--dry-run"]]
)
def test_sigterm_ends_a_command_that_saves_nothing_quietly(
    config: Path, weights: Path, command: list[str]
) -> None:
    arguments = [*command, "-c", str(config), "-o", f"Global.pretrained_model={weights}"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED_WHILE_BUILDING, *arguments],
        capture_output=True,
        text=True,
        timeout=GUARD,
        cwd=ROOT,
    )
    assert (done.returncode, without_paddles_lines(done.stderr)) == (143, "interrupted\n")


def test_stderr_of_a_process_holds_only_the_error(config: Path, images: Path) -> None:
    (images / "7.jpg").write_bytes(b"this is no image\n")
    command = [sys.executable, str(TOOLS / "train.py"), "-c", str(config), "-o", "Arch.name=ResNet18"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    message = without_paddles_lines(done.stderr)
    assert message.startswith(f"error: {images}/7.jpg ({images}/list.txt, line 8): ")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("reader", [pytest.param("dali", marks=pytest.mark.slow), "workers of paddle.io"])
def test_ctrl_c_in_a_terminal_saves_and_stops(config: Path, tmp_path: Path, reader: str) -> None:
    """A terminal sends the signal to all processes in the foreground, including workers."""
    overrides = ["Arch.name=ResNet18", "Global.epochs=1000000"]
    overrides += [f"Global.use_dali={reader == 'dali'}", "Global.save_interval=1000000"]
    command = [sys.executable, str(TOOLS / "train.py"), "-c", str(config), "--workers", "2", "-o", *overrides]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            if line.startswith("[Eval] epoch 1 "):
                break
        os.killpg(running.pid, signal.SIGINT)
        stderr = running.stderr.read()
        running.stdout.read()
    assert running.returncode == 130
    assert without_paddles_lines(stderr).splitlines()[-1].startswith("stopped by SIGINT")
    assert (tmp_path / "run" / "latest" / "state.json").is_file()


def test_demo_data_replaces_the_images_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["-c", str(ROOT / "configs/ResNet50.yaml")]
    assert train(command) == 2
    said = capsys.readouterr().err
    assert "https://image-net.org" in said
    assert "add --demo-data" in said
    monkeypatch.setattr("ppcls.cli.train._DEMO_IMAGES", 16)
    assert train([*command, "--demo-data", "--print-config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["Global"]["epochs"] == 1
    for part in ("Train", "Eval"):
        dataset = config["DataLoader"][part]["dataset"]
        assert Path(dataset["cls_label_path"]).is_file()
        assert Path(dataset["image_root"]).is_dir()
    assert train([*command, "--demo-data", "--epochs", "3", "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["Global"]["epochs"] == 3
    assert train(["-c", str(ROOT / "configs/fashion_mnist_wrn.yaml"), "--demo-data"]) == 2
    assert "--demo-data: expected DataLoader.Train.dataset.cls_label_path" in capsys.readouterr().err
