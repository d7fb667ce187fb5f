"""`ppcls train --resume` continues a run with its own settings, wherever the run and its data are now."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppcls import Classifier
from ppcls.cli.train import train
from ppcls.config.base.yaml import read_yaml
from ppcls.deploy.models.source import find_checkpoint
from ppcls.errors import UserError
from ppcls.recipe.resume_config import find_run, set_moved_data

_SHORT = ["--model", "MobileNetV3_small_x0_35", "--image-size", "32", "--batch-size", "4", "--lr", "0.02"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a data set `pets` and a run `run` of one epoch."""
    root = tmp_path_factory.mktemp("trained")
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / "pets" / name).mkdir(parents=True)
        for number in range(5):
            pixels = generator.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "pets" / name / f"{number}.png")
    words = [str(root / "pets"), *_SHORT, "--epochs", "1", "--output", str(root / "run")]
    assert train([*words, "-o", "Arch.pretrained=False"]) == 0
    return root


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """Returns a copy of the folder at another path. The run names the old one."""
    shutil.copytree(trained, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def _printed(capfd: pytest.CaptureFixture[str]) -> str:
    return "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "form", [["--resume", "run"], ["--resume", "--output", "run"], ["pets", "--resume", "--output", "run"]]
)
def test_only_typed_options_change_the_settings_of_a_run(
    place: Path, form: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = read_yaml(Path("run/config.yaml"))
    moved = [] if "pets" in form else ["--data", "pets"]
    assert train([*form, *moved, "--epochs", "2"]) == 0
    after = read_yaml(Path("run/config.yaml"))
    before["Global"] |= {"epochs": 2, "output_dir": "run", "save_inference_dir": "run/inference"}
    before["Global"]["checkpoints"] = "auto"
    for split in ("Train", "Eval"):
        before["DataLoader"][split]["dataset"]["image_root"] = "pets"
    assert after == before
    assert "changed: Global.epochs, 1 -> 2" in _printed(capfd)


def test_notebooks_resume_a_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    first = read_yaml(Path("run/config.yaml"))
    model = Classifier("MobileNetV3_small_x0_35")
    assert model.train(resume=True, output="run", epochs=2, data="pets").history[-1]["epoch"] == 2
    assert Classifier("run").train(resume=True, epochs=3).history[-1]["epoch"] == 3
    now = read_yaml(Path("run/config.yaml"))
    assert (now["Arch"], now["Optimizer"]) == (first["Arch"], first["Optimizer"])
    with pytest.raises(UserError, match="holds no run"):
        model.train(resume=True, output="elsewhere")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--resume", "pets"], "--resume uses the next word as its value"),
        (["run"], "found the output folder of a run; to continue the run: ppcls train --resume run"),
        (["run", "--resume"], "ppcls train --resume run"),
        (["--resume", "both"], "could mean two things"),
        (["--resume", "missing"], "missing holds no run"),
        (["--resume", "empty"], "--resume empty: this folder is empty: its run ended before training began"),
        (["--resume"], "holds no run"),
    ],
)
def test_ambiguous_forms_are_errors(
    place: Path,
    words: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    Path("empty").mkdir(exist_ok=True)
    shutil.copytree("run", "both", symlinks=True)
    for name in ("cat", "dog"):
        shutil.copytree(f"pets/{name}", f"both/{name}")
    assert train(words) != 0
    assert text in capsys.readouterr().err


def test_a_checkpoint_continues_in_the_folder_of_its_run_or_in_another_one(place: Path) -> None:
    for path in (place / "run" / "latest", next((place / "run" / "checkpoints").iterdir())):
        run = find_run(str(path), "output")
        assert run is not None
        assert (run.folder, run.checkpoint) == (place / "run", str(path))


def test_lists_and_parts_move_with_the_folder_of_the_data() -> None:
    datasets = {
        "Train": {"image_root": "old/train", "cls_label_path": "old/lists/train.txt"},
        "Eval": {"image_root": "old/val", "cls_label_path": "/elsewhere/val.txt"},
    }
    tree = {"DataLoader": {split: {"dataset": dataset} for split, dataset in datasets.items()}}
    assert set_moved_data(tree, "new") == {
        "DataLoader.Train.dataset.image_root": "new/train",
        "DataLoader.Train.dataset.cls_label_path": "new/lists/train.txt",
        "DataLoader.Eval.dataset.image_root": "new/val",
    }


def _zip(run: Path) -> None:
    archive = shutil.make_archive(str(run.with_name("archive")), "zip", run)
    shutil.rmtree(run)
    shutil.unpack_archive(archive, run)
    assert not any((run / "best_model").iterdir())


def _remove_links(run: Path) -> None:
    for path in run.iterdir():
        if path.is_symlink():
            path.unlink()


def _write_targets(run: Path) -> None:
    for path in run.iterdir():
        if path.is_symlink():
            target = str(path.readlink())
            path.unlink()
            path.write_text(target)


def _follow(run: Path) -> None:
    shutil.copytree(run, run.with_name("followed"))
    shutil.rmtree(run)
    run.with_name("followed").rename(run)


@pytest.mark.parametrize(
    "lose", [_zip, pytest.param(_remove_links, marks=pytest.mark.slow), _write_targets, _follow]
)
def test_a_run_without_links_is_read_and_resumed(
    place: Path,
    lose: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = place / "run"
    links = {path.name: path.resolve() for path in run.iterdir() if path.is_symlink()}
    newest = links["latest"]
    lose(run)
    checkpoint = find_checkpoint(run)
    assert checkpoint is not None
    if lose is not _follow:
        assert checkpoint.resolve() == newest
        assert "the link best_model was lost" in _printed(capfd)
    monkeypatch.chdir(place)
    assert train(["pets", "--output", "run", *_SHORT]) != 0  # a new run would remove the checkpoints
    assert train(["--resume", "run", "--data", "pets", "--epochs", "2"]) == 0
    assert "a copy of this folder lost its links; restored: latest" in _printed(capfd)
    assert Path("run/best_model").is_symlink()
    assert Path("run/latest").is_symlink()


def test_a_run_without_evaluations_is_read_by_its_latest_checkpoint(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = place / "run"
    (run / "best_model").unlink()
    checkpoint = find_checkpoint(run)
    assert checkpoint is not None
    assert checkpoint.resolve() == (run / "latest").resolve()
    assert "the run was not evaluated, so it has no best_model; using" in _printed(capfd)


def test_folders_of_users_are_kept_where_links_are_expected(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = place / "run"
    _zip(run)
    (run / "best_model" / "notes.txt").write_text("mine")
    monkeypatch.chdir(place)
    assert train(["--resume", "run", "--data", "pets", "--epochs", "2"]) != 0
    assert "best_model: expected a link to a checkpoint or nothing, found a folder" in _printed(capfd)
    assert (run / "best_model" / "notes.txt").read_text() == "mine"


def test_run_without_a_checkpoint_is_started_again_from_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("Global: {}\n")
    with pytest.raises(UserError, match=r"before it saved a checkpoint; to restart it: ppcls train -c "):
        find_run(str(tmp_path), "output")
