"""Models from elsewhere: their code does not run, and paths that they name are neither read nor written."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from paths import ROOT as REPOSITORY
from small_classifier import CLASSES, config_tree, export_model, write_checkpoint, write_image, write_weights

from benchmarks.infer.predictions import measure
from ppcls.classifier import Classifier
from ppcls.cli import dataset as dataset_cli
from ppcls.cli import index as index_cli
from ppcls.cli.eval import calibrate, evaluate
from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.config.base.errors import ConfigError
from ppcls.deploy.image_index import ImageIndex
from ppcls.deploy.index_folder import create_index
from ppcls.deploy.models.path_keys import PATH_KEYS
from ppcls.deploy.models.source import find_source
from ppcls.deploy.models.untrusted import TRUST, UntrustedConfig
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.recipe.load import ConfigSource, load_config
from ppcls.serve.limits import RequestError
from ppcls.serve.models import LoadableModels, ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions, load

pytestmark = pytest.mark.hostile
MODULE = "parts_of_a_stranger"


def write_model(run: Path, tree: dict[str, Any]) -> Path:
    """Writes a run whose best model has a config, and returns the folder of the run."""
    weights = write_weights(run.parent / "weights.safetensors")
    files = {"model.safetensors": weights.read_bytes(), "config.yaml": yaml.safe_dump(tree).encode()}
    write_checkpoint(run, files)
    return run


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run whose config names a module, which marks that it was imported, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{MODULE}.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n"
    )
    tree = config_tree(tmp_path / "gone", None)
    tree["Global"]["import_modules"] = [MODULE]
    yield write_model(tmp_path / "run", tree)
    sys.modules.pop(MODULE, None)


def predict(model: Path, image: Path) -> None:
    Predictor(model, device="cpu").predict([image.read_bytes()])


def classify(model: Path, image: Path) -> None:
    Classifier(model, device="cpu").predict(image)


def assess(model: Path, image: Path) -> None:
    Classifier(model, device="cpu").evaluate(image.parent)


def write_onnx(model: Path, image: Path) -> None:
    Classifier(model, device="cpu").export("onnx", image.parent / "onnx")


def serve(model: Path, _: Path) -> None:
    load(find_source(model), 2)


def run_infer(model: Path, image: Path) -> None:
    need(infer(["--model", str(model), str(image)]))


def run_eval(model: Path, image: Path) -> None:
    need(evaluate(["--model", str(model), "--data", str(image.parent)]))


def run_calibrate(model: Path, _: Path) -> None:
    need(calibrate(["--model", str(model)]))


def run_export(model: Path, image: Path) -> None:
    need(export(["--model", str(model), "--output", str(image.parent / "new")]))


def export_weights(model: Path, image: Path) -> None:
    need(export(["--model", str(model), "--pdparams", str(image.parent / "new.pdparams")]))


def build_index(model: Path, image: Path) -> None:
    need(index_cli.main(["build", str(image.parent / "new.index"), str(image), "--model", str(model)]))


def search_index(model: Path, image: Path) -> None:
    """The index names the model."""
    vectors = np.eye(2, 3, dtype=np.float32)
    index = ImageIndex((Path("a"), Path("b")), vectors, model=str(model.absolute()))
    create_index(image.parent / "of_a_stranger.index", index)
    need(index_cli.main(["search", str(image.parent / "of_a_stranger.index"), str(image)]))


def benchmark(model: Path, _: Path) -> None:
    task = {"model": str(model), "overrides": ["Global.device=cpu"], "trust": False, "batch_size": 1}
    measure({**task, "warm_up": 0, "requests": 1, "seconds": 1.0})


def put(model: Path, _: Path) -> None:
    """PUT /models/run of a server."""

    async def answer() -> None:
        with TimedPool(1, "model") as worker:
            folder = model.resolve()  # links to subfolders are ignored
            served = ServedModels({}, worker, BatchingOptions(1, 0.0, 4), LoadableModels(folder.parent))
            try:
                await served.load(folder.name)
            except RequestError as error:
                raise UserError(error.reason) from None
            finally:
                await served.stop()

    asyncio.run(answer())


def audit(model: Path, image: Path) -> None:
    write_image(image.parent / "class" / "other.png", 1)
    out = str(image.parent.parent / "audit")
    need(dataset_cli.main(["audit", str(image.parent), "--model", str(model), "--out", out]))


def split(model: Path, image: Path) -> None:
    write_image(image.parent / "class" / "other.png", 1)
    words = ["split", str(image.parent), "--out", str(image.parent.parent / "lists"), "--group-duplicates"]
    need(dataset_cli.main([*words, "--model", str(model)]))


def explain(model: Path, image: Path) -> None:
    need(infer(["--model", str(model), str(image), "--explain", str(image.parent / "heat")]))


def need(code: int) -> None:
    if code:
        raise UserError(f"code {code}")


WAYS: tuple[Callable[[Path, Path], None], ...] = (
    *(predict, classify, assess, write_onnx, serve, run_infer, run_eval, run_calibrate, run_export),
    *(export_weights, build_index, search_index, benchmark, put, audit, split, explain),
)


@pytest.mark.parametrize("place", ["run", "checkpoint"])
@pytest.mark.parametrize("way", WAYS)
def test_modules_of_a_model_are_not_imported(
    way: Callable[[Path, Path], None], place: str, stranger: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image = write_image(stranger.parent / "images" / "image.png", 0)
    model = stranger if place == "run" else stranger / "best_model"
    with pytest.raises(UserError) as caught:
        way(model, image)
    message = f"{caught.value}{capfd.readouterr().err}"
    assert re.search(
        r"config.yaml: Global.import_modules names Python modules.* use (--trust|trust=True)", message
    )
    assert message.count("trust=True") == 1
    assert not (stranger.parent / "imported").exists()


def test_trusted_model_imports_its_modules(stranger: Path) -> None:
    image = write_image(stranger.parent / "image.png", 0)
    assert infer(["--model", str(stranger), "--trust", str(image)]) == 0
    assert (stranger.parent / "imported").exists()


def test_user_can_replace_the_modules(stranger: Path) -> None:
    find_source(stranger, ["Global.import_modules=[]"])
    assert not (stranger.parent / "imported").exists()
    find_source(stranger, [f"Global.import_modules=[{MODULE}]"])
    assert (stranger.parent / "imported").exists()


# Paths


@pytest.fixture
def with_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose config names paths in the folder ``victim`` wherever it can."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    victim = tmp_path / "victim"
    victim.mkdir()
    lines = "".join(f"{number} secret {number}\n" for number in range(len(CLASSES)))
    (victim / "secret.txt").write_text(lines)
    write_image(victim / "secret.png", 0)
    (victim / "list.txt").write_text("secret.png 0\n")
    tree = config_tree(victim / "gone", victim / "secret.txt")
    settings = {"output_dir": str(victim / "output"), "save_inference_dir": str(victim / "inference")}
    settings |= {"checkpoint_fallback_dir": str(victim / "fallback"), "checkpoints": str(victim)}
    tree["Global"] |= {**settings, "hooks": ["victims_hook:Hook"], "loggers": ["tensorboard"]}
    tree["Arch"]["pretrained"] = str(victim / "gone.pdparams")
    tree["Infer"]["infer_imgs"] = str(victim)
    files = {"image_root": str(victim), "cls_label_path": str(victim / "list.txt")}
    dataset = {"name": "ImageNetDataset", **files, "transform_ops": tree["Infer"]["transforms"]}
    split = {"dataset": dataset, "sampler": {"batch_size": 1}, "loader": {"num_workers": 0}}
    tree["DataLoader"] = {"Train": split, "Eval": split}
    return write_model(tmp_path / "run", tree)


@pytest.fixture
def no_access(with_paths: Path) -> Iterator[list[str]]:
    """Records files in the folder ``victim`` that are opened, listed, or created."""
    victim = str(with_paths.parent / "victim")
    used: list[str] = []
    events = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.symlink"}
    active = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if active[0] and event in events and str(arguments[0] or "").startswith(victim):
            used.append(f"{event} {arguments[0]}")

    sys.addaudithook(watch)
    yield used
    active[0] = False


@pytest.mark.parametrize(
    "way", [predict, classify, serve, run_infer, run_export, write_onnx, benchmark, put, audit, explain]
)
def test_paths_of_a_config_are_not_used(
    way: Callable[[Path, Path], None], with_paths: Path, no_access: list[str]
) -> None:
    way(with_paths, write_image(with_paths.parent / "images" / "image.png", 0))
    assert no_access == []


def test_trusted_paths_are_used(with_paths: Path, no_access: list[str]) -> None:
    """Shows that the test above would find an access."""
    source = find_source(with_paths, trust=True)
    assert source.description.names == tuple(f"secret {number}" for number in range(len(CLASSES)))
    assert source.run.output_dir == str(with_paths.parent / "victim" / "output")
    assert any("secret.txt" in line for line in no_access)


def test_evaluation_needs_trust_or_data(
    with_paths: Path, no_access: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(["--model", str(with_paths), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert (
        "the data sets that the config of a model names are not read. Set DataLoader.Eval.dataset.image_root "
        "with --data FOLDER, and DataLoader.Eval.dataset.cls_label_path with -o, or, if you trust" in error
    )
    assert "--trust" in error
    assert no_access == []
    # With --data, only the list is missing, and --data is not suggested again.
    assert evaluate(["--model", str(with_paths), "--device", "cpu", "--data", "pictures"]) == 2
    assert "not read. Set DataLoader.Eval.dataset.cls_label_path with -o, or, if" in capsys.readouterr().err
    assert no_access == []
    with pytest.raises(UserError, match=r"cls_label_path, or, if you trust .*, use trust=True$"):
        Classifier(with_paths, device="cpu").evaluate("pictures")
    victim = with_paths.parent / "victim"
    own = ["--data", str(victim), "-o", f"DataLoader.Eval.dataset.cls_label_path={victim / 'list.txt'}"]
    assert evaluate(["--model", str(with_paths), "--device", "cpu", *own]) == 0
    assert evaluate(["--model", str(with_paths), "--device", "cpu", "--trust"]) == 0


def test_export_says_that_evaluation_images_need_trust(
    with_paths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = f"the data sets that the config of a model names are only read with {TRUST}"
    assert export(["--model", str(with_paths), "--output", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"[Export] not compared on evaluation images: there are none ({reason})"
    )
    assert export(["--model", str(with_paths), "--format", "onnx", "--precision", "int8"]) == 2
    assert f"int8 needs training images for calibration: {reason}; pass images" in capsys.readouterr().err
    assert export(["--model", str(with_paths), "--format", "bundle"]) == 2
    assert f"bundle needs images for golden samples: {reason}; pass some" in capsys.readouterr().err


def test_default_images_are_not_read(with_paths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(["--model", str(with_paths)]) == 2
    assert "nothing to predict: pass images" in capsys.readouterr().err


def test_default_folder_of_an_export_is_in_the_folder_of_the_run(with_paths: Path) -> None:
    assert export(["--model", str(with_paths), "-o", "Global.device=cpu"]) == 0
    assert (with_paths / "inference" / "inference.yml").is_file()
    assert Classifier(with_paths, device="cpu").export("onnx") == with_paths / "onnx"


def test_names_file_of_an_exported_model_is_not_read(tmp_path: Path) -> None:
    exported = export_model(tmp_path)
    secret = tmp_path / "secret.txt"
    secret.write_text("0 root\n1 daemon\n2 bin\n")
    file = exported / "inference.yml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree["PostProcess"]["Topk"] |= {"class_id_map_file": str(secret), "label_list": None}
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"PostProcess\.Topk\.class_id_map_file: not supported"):
        find_source(exported)


CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_without_its_paths_is_valid(path: Path) -> None:
    """Every kind of model can be loaded from its folder; only its data sets are missing."""
    tree = ConfigSource.read(path).tree
    for section in (tree["Arch"], tree["Arch"].get("Head") or {}):
        if section.get("class_num") == "auto":
            section["class_num"] = 10
    stored = load_config(tree)
    config = UntrustedConfig(stored.model_dump(mode="json"), path.name).load()
    assert config.Arch.model_dump(exclude=PATH_KEYS)["name"] == stored.Arch.name
    assert config.Infer is None or config.Infer.transforms == stored.Infer.transforms
    assert config.Global.output_dir.startswith("./output")
    text = json.dumps(config.DataLoader.model_dump(mode="json"))
    assert not re.search(r'"(image_root|cls_label_path)": "', text)


# Texts of the config that are no paths: names, patterns, and words.
TEXTS = {
    *("name", "experiment", "run_name", "project", "entity", "folder", "tracking_uri", "replace_layer"),
    *("remove_layers", "infer_model_name", "infer_model_key", "return_patterns", "keys", "model_names"),
    *("model_name_pairs", "key", "student_keepkeys", "teacher_keepkeys", "s_key", "t_key", "s_keys"),
    *("t_keys", "model_name_pair", "no_weight_decay_name", "freeze", "train_only", "pattern", "delimiter"),
    *("extensions", "source", "config_str", "model_key", "label_0", "label_1", "class_names"),
    *("image_column", "label_column", "machine"),
}


def test_every_text_of_a_config_is_known_as_a_path_or_as_harmless() -> None:
    """A new key with text must be added to `PATH_KEYS`, or to the list above."""
    reference = (REPOSITORY / "docs" / "config.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", reference, re.MULTILINE)
    keys = {key for key, kind in rows if re.search(r"\btext\b|\bany\b|mapping", kind)}
    assert keys - TEXTS <= PATH_KEYS


# Links


def lead_out(folder: Path, name: str) -> None:
    """Moves a file out of a folder, and replaces it by a link."""
    outside = folder.parent / f"outside_{name}"
    shutil.move(folder / name, outside)
    (folder / name).symlink_to(outside)


@pytest.mark.parametrize("name", ["inference.yml", "inference.onnx"])
def test_link_out_of_an_exported_folder_is_rejected(name: str, tmp_path: Path) -> None:
    folder = export_model(tmp_path)
    lead_out(folder, name)
    with pytest.raises(UserError, match=f"{name}: a link that leads out of the folder of the model"):
        find_source(folder)
    find_source(folder, trust=True)


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "label_list.txt", "temperature.json"])
def test_link_out_of_a_checkpoint_is_rejected(name: str, tmp_path: Path) -> None:
    run = write_model(tmp_path / "run", config_tree(tmp_path / "gone", None))
    checkpoint = (run / "best_model").resolve()
    if not (checkpoint / name).exists():
        (checkpoint / name).write_text("0 a\n")
    lead_out(checkpoint, name)
    for place in (run, run / "best_model", checkpoint):
        with pytest.raises(UserError, match=f"{name}: a link that leads out of the folder of the model"):
            find_source(place)


def test_links_out_of_a_run_are_rejected(tmp_path: Path) -> None:
    run = write_model(tmp_path / "run", config_tree(tmp_path / "gone", None))
    shutil.move(run / "checkpoints", tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="a link that leads out of the folder of the model"):
        find_source(run)


def test_links_within_a_model_are_followed(tmp_path: Path) -> None:
    folder = export_model(tmp_path)
    (folder / "inference.onnx").rename(folder / "real.onnx")
    (folder / "inference.onnx").symlink_to("real.onnx")
    find_source(folder)
    (tmp_path / "link").symlink_to(folder)
    find_source(tmp_path / "link")


def test_names_beside_a_checkpoint_of_no_run_are_not_read(tmp_path: Path) -> None:
    run = write_model(tmp_path / "run", config_tree(tmp_path / "gone", None))
    copy = tmp_path / "a" / "b"
    shutil.copytree((run / "best_model").resolve(), copy)
    (tmp_path / "label_list.txt").write_text("0 secret\n1 b\n2 c\n")
    assert find_source(copy).description.names is None
