"""Short options set the keys that their help names, and the config validates the result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

from ppcls.cli.arguments.training import set_label_smoothing
from ppcls.cli.command import Command
from ppcls.cli.eval import EvalOptions, evaluate
from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.cli.short_options import (
    apply_values,
    key_options,
    part_overrides,
    set_eval_data,
)
from ppcls.cli.train import train
from ppcls.config.base.overrides import Override
from ppcls.data.index.folders import ImageFolderDataset
from ppcls.errors import UserError
from ppcls.recipe.load import ConfigSource

MIXING = "DataLoader.Train.dataset.batch_transform_ops"
TRANSFORMS = "DataLoader.Train.dataset.transform_ops"
RESNET50 = ROOT / "configs" / "ResNet50.yaml"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "pictures" / name / f"{number}.jpg").touch()
    return tmp_path / "pictures"


def print_config(capsys: pytest.CaptureFixture[str], *arguments: object, command: Any = train) -> Any:
    assert command([*map(str, arguments), "--print-config"]) == 0, capsys.readouterr().err
    return yaml.safe_load(capsys.readouterr().out)


def value_at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "ResNet18"], {"Arch.name": "ResNet18"}),
        (
            ["--model", "EfficientNet_lite0"],
            {
                "DataLoader.Train.dataset.transform_ops.3.NormalizeImage.std": [0.5019608] * 3,
                "DataLoader.Eval.dataset.transform_ops.1.ResizeImage.interpolation": "bicubic",
                "Infer.transforms.3.NormalizeImage.mean": [0.4980392] * 3,
            },
        ),
        (["--epochs", "7"], {"Global.epochs": 7}),
        (
            ["--batch-size", "64"],
            {"DataLoader.Train.sampler.batch_size": 64, "DataLoader.Eval.sampler.batch_size": 16},
        ),
        (
            ["--on-error", "skip"],
            {"DataLoader.Train.dataset.on_error": "skip", "DataLoader.Eval.dataset.on_error": "skip"},
        ),
        (["--patience", "5"], {"Global.early_stopping": 5}),
        (["--optimizer", "adamw"], {"Optimizer.name": "AdamW", "Optimizer.weight_decay": 0.01}),
        (["--weight-decay", "0.05"], {"Optimizer.regularizer": {"name": "L2", "coeff": 0.05}}),
        (["--optimizer", "AdamW", "--weight-decay", "0.05"], {"Optimizer.weight_decay": 0.05}),
        (["--warmup-epochs", "2"], {"Optimizer.lr.warmup_epoch": 2}),
        (["--freeze"], {"Optimizer.train_only": ["classifier"]}),
        (["--class-weights"], {"Loss.Train.0.CELoss.class_weight": "balanced"}),
        (["--mixup", "0.2"], {f"{MIXING}.0.MixupOperator.alpha": 0.2}),
        (
            ["--mixup", "0.2", "--cutmix", "1"],
            {
                f"{MIXING}.0.OpSampler.MixupOperator": {"alpha": 0.2, "prob": 0.5},
                f"{MIXING}.0.OpSampler.CutmixOperator": {"alpha": 1, "prob": 0.5},
            },
        ),
        (["--mixup", "0"], {MIXING: []}),
        (["--auto-augment", "RandAugment"], {f"{TRANSFORMS}.3.RandAugment.num_layers": 2}),
        (["--color-jitter", "0.4"], {f"{TRANSFORMS}.3.ColorJitter.contrast": [0.6, 1.4]}),
        (["--random-erasing", "0.25"], {f"{TRANSFORMS}.4.RandomErasing.EPSILON": 0.25}),
        (["--model", "MobileNetV3_small_x0_35", "--dropout", "0.3"], {"Arch.dropout_prob": 0.3}),
        (
            ["--model", "SwinTransformer_tiny_patch4_window7_224", "--drop-path", "0.3"],
            {"Arch.drop_path_rate": 0.3},
        ),
        (
            ["--val-split", "0.4"],
            {"DataLoader.Train.dataset.val_share": 0.4, "DataLoader.Eval.dataset.val_share": 0.4},
        ),
        (["--label-smoothing", "0.2"], {"Loss.Train.0.CELoss.epsilon": 0.2}),
        (["--grad-accum", "4"], {"Global.update_freq": 4}),
        (["--ema", "0.99"], {"EMA.decay": 0.99}),
        (["--ema"], {"EMA.decay": 0.999}),
        (["--lr", "1e-5"], {"Optimizer.lr.learning_rate": 1e-5}),
        (["--pretrained"], {"Arch.pretrained": True, "Global.pretrained_model": None}),
        (["--pretrained", "a b.pdparams"], {"Global.pretrained_model": "a b.pdparams"}),
        (
            ["--output", "runs/pets"],
            {"Global.output_dir": "runs/pets", "Global.save_inference_dir": "runs/pets/inference"},
        ),
        (["--resume"], {"Global.checkpoints": "auto"}),
        (["--resume", "run/latest"], {"Global.checkpoints": "run/latest"}),
        (["--device", "cpu"], {"Global.device": "cpu"}),
        (["--amp"], {"AMP.level": "O1"}),
        (["--amp", "O2"], {"AMP.level": "O2"}),
        (
            ["--workers", "3"],
            {
                "DataLoader.Train.loader.num_workers": 3,
                "DataLoader.Train.loader.dali.num_threads": 3,
                "DataLoader.Eval.loader.num_workers": 3,
            },
        ),
        (["--workers", "0"], {"DataLoader.Train.loader.num_workers": 0}),
        (["--seed", "5"], {"Global.seed": 5}),
        (["--epochs", "7", "-o", "Global.epochs=8"], {"Global.epochs": 8}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_train_flag_sets_its_keys(
    pictures: Path, arguments: list[str], expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = print_config(capsys, pictures, *arguments)
    assert {key: value_at(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("mixing", "arguments", "expected"),
    [
        (
            {"MixupOperator": {"alpha": 0.4, "last_epoch": 2}},
            ["--cutmix", 1],
            {
                "OpSampler": {
                    "last_epoch": 2,
                    "MixupOperator": {"alpha": 0.4, "prob": 0.5},
                    "CutmixOperator": {"alpha": 1, "prob": 0.5},
                }
            },
        ),
        (
            {"OpSampler": {"last_epoch": 2, "MixupOperator": {"prob": 0.5}}},
            ["--mixup", 0.4],
            {"MixupOperator": {"alpha": 0.4, "last_epoch": 2}},
        ),
        (
            {"MixupOperator": {"alpha": 0.4, "last_epoch": 2}},
            ["--mixup", 0.2],
            {"MixupOperator": {"alpha": 0.2, "last_epoch": 2}},
        ),
    ],
)
def test_mixing_options_keep_the_last_epoch_of_the_config(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    mixing: dict[str, Any],
    arguments: list[object],
    expected: dict[str, Any],
) -> None:
    tree = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    tree["DataLoader"]["Train"]["dataset"]["batch_transform_ops"] = [mixing]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert value_at(print_config(capsys, "-c", path, *arguments), MIXING) == [expected]


@pytest.mark.parametrize("option", ["--mixup", "--cutmix"])
def test_mixing_options_leave_invalid_settings_to_validation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    tree = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    tree["DataLoader"]["Train"]["dataset"]["batch_transform_ops"] = [{"MixupOperator": 5}]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert train(["-c", str(path), option, "1"]) == 2
    assert "batch_transform_ops[0].MixupOperator: expected a mapping" in capsys.readouterr().err


def test_train_without_config_uses_the_packaged_one(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_file = ["-c", ROOT / "configs" / "finetune.yaml"]
    key = "DataLoader.Train.dataset.image_root"
    expected = print_config(capsys, *as_file, "-o", f"{key}={pictures}")
    assert expected["Arch"]["class_num"] == 2
    assert print_config(capsys, pictures) == expected
    assert print_config(capsys, "--data", pictures) == expected


def test_data_sets_the_folder_of_all_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    config = print_config(capsys, "-c", RESNET50, "--data", "mine", "--image-size", 224)
    roots = [config["DataLoader"][name]["dataset"]["image_root"] for name in ("Train", "Eval")]
    assert roots == ["mine", "mine"]


def test_data_sets_the_folder_of_idx_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t10k-labels-idx1-ubyte").touch()  # decompressed
    arguments = ["-c", ROOT / "configs" / "fashion_mnist_wrn.yaml", "-o", "AMP.use_amp=False"]
    config = print_config(capsys, "--data", tmp_path, *arguments)
    loader = config["DataLoader"]
    assert config["Infer"]["PostProcess"]["class_id_map_file"] == str(tmp_path / "label_list.txt")
    expected = {
        "Train": ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
        "Eval": ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"],
    }
    for name, files in expected.items():
        dataset = loader[name]["dataset"]
        found = [dataset["image_file"], dataset["label_file"]]
        assert found == [str(tmp_path / file) for file in files]
    evaluated = print_config(capsys, "--data", tmp_path, *arguments, command=evaluate)["DataLoader"]
    assert evaluated["Eval"] == loader["Eval"]
    assert evaluated["Train"] != loader["Train"]
    (tmp_path / "t10k-labels-idx1-ubyte").rename(tmp_path / "t10k-labels-idx1-ubyte.gz")
    plain = "DataLoader.Eval.dataset.label_file=t10k-labels-idx1-ubyte"
    source = ConfigSource.read(ROOT / "configs" / "fashion_mnist_wrn.yaml")
    source.apply([Override.parse(plain)])
    key = "DataLoader.Eval.dataset.label_file"
    assert set_eval_data(source.tree, str(tmp_path))[key] == str(tmp_path / "t10k-labels-idx1-ubyte.gz")


@pytest.mark.parametrize("parts", ["", "train val"])
def test_class_folders_for_a_config_of_idx_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: str
) -> None:
    folders = [tmp_path / part / name for part in parts.split() or ["."] for name in ("cat", "dog", "empty")]
    for folder in folders:
        folder.mkdir(parents=True)
        if folder.name != "empty":
            (folder / "0.jpg").touch()
    arguments = ["-c", str(ROOT / "configs" / "fashion_mnist_wrn.yaml"), "--data", str(tmp_path)]
    found = f"error: {tmp_path}: expected IDX files, which this config reads, such as "
    root = "DataLoader.Eval.dataset"
    for command, file, remedy in (
        (train, "train-images-idx3-ubyte.gz", f"`ppcls train {tmp_path}` trains on them"),
        (
            evaluate,
            "t10k-images-idx3-ubyte.gz",
            f"instead of --data, use -o {root}.name=ImageFolderDataset {root}.image_root={tmp_path}",
        ),
    ):
        assert command(arguments) == 2
        expected = f"{found}{file}, found class folders (cat, dog); {remedy}\n"
        assert capsys.readouterr().err == expected
    (tmp_path / "mnist.npz").touch()
    for command in (train, evaluate):
        assert command([*arguments[:-1], str(tmp_path / "mnist.npz")]) == 2
        assert "found a file; docs/data.md#sources lists what other" in capsys.readouterr().err


def sizes_of(config: Any) -> list[Any]:
    """Returns the shape of the model's input and all sizes in the transforms."""
    loader = config["DataLoader"]
    chains = [loader[name]["dataset"]["transform_ops"] for name in ("Train", "Eval")]
    ops = [
        settings
        for chain in [*chains, config["Infer"]["transforms"]]
        for op in chain
        for settings in op.values()
    ]
    sizes = [op.get("size") or op.get("resize_short") for op in ops if op]
    return [config["Global"]["image_shape"], *filter(None, sizes)]


def test_image_size_scales_every_size(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square = [160, 160]
    assert sizes_of(print_config(capsys, pictures, "--image-size", 160)) == [
        [3, *square],
        square,
        183,
        square,
        183,
        square,
    ]
    unchanged = print_config(capsys, pictures, "--image-size", 224)
    assert unchanged == print_config(capsys, pictures)


def test_image_size_keeps_the_ratio_of_training_to_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "configs" / "fixres_train.yaml"
    before = sizes_of(print_config(capsys, "-c", config))
    after = sizes_of(print_config(capsys, "-c", config, "--image-size", 2 * before[0][1]))
    double = lambda size: [2 * each for each in size] if isinstance(size, list) else 2 * size  # noqa: E731
    assert after[1:] == [double(size) for size in before[1:]]


def test_image_size_sets_the_positions_of_a_vision_transformer(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = print_config(capsys, pictures, "--model", "ViT_base_patch16_224", "--image-size", 160)
    assert config["Arch"]["img_size"] == 160


def test_image_size_is_rejected_with_sizes_of_the_sampler(
    pictures: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tree = yaml.safe_load((ROOT / "configs" / "finetune.yaml").read_text())
    tree["DataLoader"]["Train"]["sampler"] = {
        "name": "MultiScaleSampler",
        "scales": [160, 224],
        "first_bs": 8,
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert train(["-c", str(path), "--data", str(pictures), "--image-size", "160"]) == 2
    assert "DataLoader.Train.sampler.scales sets the image sizes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data", "mine"], {"DataLoader.Eval.dataset.image_root": "mine"}),
        (["--batch-size", "8"], {"DataLoader.Eval.sampler.batch_size": 8}),
        (["--image-size", "112"], {"Global.image_shape": [3, 112, 112]}),
        (["--device", "cpu"], {"Global.device": "cpu"}),
        (["--amp", "O2"], {"AMP.level": "O2"}),
        (["--workers", "2"], {"DataLoader.Eval.loader.num_workers": 2}),
    ],
)
def test_eval_flag_sets_its_keys(
    arguments: list[str], expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = print_config(capsys, "-c", RESNET50, *arguments, command=evaluate)
    assert {key: value_at(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        (infer, ["--topk", "5"], {"Infer.PostProcess.topk": 5}),
        (infer, ["--batch-size", "8"], {"Infer.batch_size": 8}),
        (infer, ["--device", "cpu"], {"Global.device": "cpu"}),
        (infer, ["--device", "cpu", "-o", "Global.device=auto"], {"Global.device": "auto"}),
        (export, ["--output", "onnx"], {"Global.save_inference_dir": "onnx"}),
    ],
)
def test_model_flag_sets_its_key(
    command: Any, arguments: list[str], expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = print_config(capsys, "-c", RESNET50, *arguments, command=command)
    assert {key: value_at(config, key) for key in expected} == expected


def test_home_folder_is_expanded_after_an_equals_sign(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(pictures.parent))
    config = print_config(capsys, "--data=~/pictures")
    assert value_at(config, "DataLoader.Train.dataset.image_root") == str(pictures)
    assert train(["--data=~/pictures", "--output=~/run", "--epochs", "1", "--model=Wrong"]) == 2
    assert "no such folder" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [train, evaluate, infer, export])
def test_help_names_the_key_of_each_short_option(command: Command[Any]) -> None:
    text = " ".join(command.parser().format_help().split())
    options = key_options(command.options)
    assert options
    assert all(option.name in text and f"({option.key})" in text for option in options)


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (train, [], "expected a folder of images, or -c CONFIG"),
        (train, ["a", "--data", "b"], "--data: not allowed with the folder a"),
        (train, ["a", "--epohcs", "3"], "did you mean '--epochs'?"),
        (train, ["a", "--Global.epochs=3"], "use -o Global.epochs=3"),
        (train, ["a", "--confusion", "x"], "--confusion is an option of eval"),
        (train, ["a", "--epochs", "0"], "argument --epochs: expected an integer > 0, got '0'"),
        (evaluate, ["-c", "a.yaml", "--epochs", "3"], "--epochs is an option of train"),
        (evaluate, ["model=runs/x"], "or -c CONFIG; use --model runs/x"),
        (infer, ["--model", "x", "--source", "a.jpg"], "--source; put the paths after the options"),
    ],
)
def test_wrong_option_is_rejected_with_a_suggestion(
    command: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_eval_of_a_folder_without_a_checkpoint_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(["--model", str(tmp_path)]) == 2
    assert f"--model {tmp_path}: expected a run's output folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["epochs=3"], "epochs=3: no such folder; use --epochs 3"),
        (["x", "epochs=3"], "unrecognized arguments: epochs=3; use --epochs 3"),
        (["x", "--imgsz", "160"], "unrecognized arguments: --imgsz 160; use --image-size 160"),
        (["x", "model=y", "epochs=3"], "\n  model=y: use --model y\n  epochs=3: use --epochs 3\n"),
        (["x", "-b", "64", "--sched", "cosine"], "\n  --sched cosine: use -o Optimizer.lr.name=Cosine\n"),
        (["x", "--profiler_options", "batch_range=1"], "batch_range=1; use --profile 10:20\n"),
        (["-p", "batch_range=[10,20]", "--lr0=1"], "\n  --lr0=1: use --lr 1\n"),
        (["model=y", "epochs=3"], "model=y epochs=3\n  model=y: use --model y\n  epochs=3: use --epochs 3"),
        (["x", "--batch_size", "8"], "--batch_size 8; use --batch-size"),
        (["x", "--epocs", "8"], "--epocs 8; did you mean '--epochs'?"),
        (["x", "--Global.epochs=8"], "; to set a key of the config, use -o Global.epochs=8"),
    ],
)
def test_unknown_option_names_the_one_to_use(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train(arguments)
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--dropout", "0.2"],
            "--dropout 0.2: ResNet50 has no setting for dropout; families of architectures",
        ),
        (["--drop-path", "0.2"], "--drop-path 0.2: ResNet50 has no setting for stochastic depth"),
        (["-c", RESNET50, "--val-split", "0.2"], "use `ppcls dataset split`"),
    ],
)
def test_option_that_does_not_fit_the_config_is_an_error(
    pictures: Path, arguments: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train([str(each) for each in (pictures, *arguments, "--print-config")]) == 2
    assert message in capsys.readouterr().err


def test_val_split_of_a_folder_with_parts_is_an_error(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "val"):
        shutil.copytree(pictures, tmp_path / "parts" / part)
    assert train([str(tmp_path / "parts"), "--val-split", "0.3", "--print-config"]) == 2
    assert "has folders for training and validation, which are used as they are" in capsys.readouterr().err


def test_increment_output_finds_the_first_free_folder(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [pictures, "--output", tmp_path / "pets", "--increment-output"]
    free = ["pets", "pets", "pets-2", "pets-4"]
    for name, used in zip(free, [None, "pets", "pets/log", "pets-2/log"], strict=True):
        if used is not None:
            (tmp_path / used).mkdir(parents=True)
            (tmp_path / "pets-3").mkdir(exist_ok=True)
        config = print_config(capsys, *arguments)
        assert config["Global"]["output_dir"] == str(tmp_path / name)
    with pytest.raises(SystemExit):
        train([*map(str, arguments), "--resume"])
    assert "--increment-output: not allowed with --resume" in capsys.readouterr().err


def test_label_smoothing_without_a_loss_that_has_it_is_an_error() -> None:
    with pytest.raises(
        UserError, match=r"--label-smoothing 0.1: Loss.Train has DMLLoss; label smoothing exists"
    ):
        set_label_smoothing({"Loss": {"Train": [{"DMLLoss": {}}]}}, 0.1)


def test_missing_data_used_output_and_unknown_keys_are_reported_together(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "latest").symlink_to("checkpoints/step_1")
    output = ["--output", str(run)]
    assert train([str(tmp_path / "gone"), *output, "--model", "ResNet99", "-o", "Global.epoch=1"]) == 2
    message = capsys.readouterr().err
    assert "Arch.name: unknown architecture 'ResNet99'" in message
    assert "Global.epoch: unknown key; did you mean 'epochs'?" in message
    assert f"{tmp_path}/gone: no such folder (DataLoader.Train.dataset.image_root)" in message
    assert f"{run} already holds a run; resume it with --resume" in message
    assert train([str(pictures), *output]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_missing_evaluation_data_is_ignored_without_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(["-c", "ResNet50", "-o", "Global.eval_during_train=False"]) == 2
    message = capsys.readouterr().err
    assert "DataLoader.Train" in message
    assert "DataLoader.Eval" not in message


def test_missing_lists_are_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(["-c", "ResNet50"]) == 2
    message = capsys.readouterr().err
    assert "/train_list.txt: no such list file" in message
    assert "(DataLoader.Eval.dataset.cls_label_path)" in message
    assert train(["-c", "ResNet50", "-o", "Global.eval_during_train=False"]) == 2
    assert "DataLoader.Eval" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "part"),
    [
        ("other", None),
        ("pictures", "val"),
        ("./pictures/../pictures", "val"),
        ("link", "val"),
        ("parts", "val"),
        ("missing", None),
    ],
)
@pytest.mark.parametrize("by_option", [True, False])
def test_eval_data_is_the_whole_folder_unless_the_model_was_trained_on_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, part: str | None, by_option: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pictures/a", "pictures/b", "other/a", "other/b", "parts/train/a", "parts/val/a"):
        Path(name).mkdir(parents=True)
        for i in range(5):
            Path(name, f"{i}.jpg").touch()
    Path("link").symlink_to("pictures")
    source = ConfigSource.read(str(ROOT / "configs" / "finetune.yaml"))
    overrides = ["DataLoader.Train.dataset.image_root=pictures", "DataLoader.Train.dataset.val_share=0.4"]
    source.apply(map(Override.parse, overrides))
    trained = ConfigSource(source.load().model_dump(mode="json"), "config.yaml")  # as a run writes it
    if by_option:
        apply_values(EvalOptions, {"data": folder}, trained)
    else:
        texts = [f"DataLoader.Eval.dataset.image_root={folder}"]
        trained.apply([*part_overrides(texts, trained.tree), *map(Override.parse, texts)])
    dataset = trained.load().DataLoader.evaluated["Eval"].dataset
    assert isinstance(dataset, ImageFolderDataset)
    assert (dataset.image_root, dataset.part) == (folder, part)
    if folder == "other":
        assert len(dataset.read(None)) == 10
    if folder == "pictures":
        assert len(dataset.read(None)) == 4


def test_training_folder_is_recognized_from_another_folder(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the images that the model was trained on would be evaluated."""
    monkeypatch.chdir(tmp_path)
    source = ConfigSource.read(str(ROOT / "configs" / "finetune.yaml"))
    source.apply([Override.parse("DataLoader.Train.dataset.image_root=./pictures/")])
    tree = source.load().model_dump(mode="json")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "other").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    assert set_eval_data(tree, str(pictures)) == {"DataLoader.Eval.dataset.image_root": str(pictures)}
    assert set_eval_data(tree, "other")["DataLoader.Eval.dataset.part"] is None


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "Cosine", "learning_rate": 1}, {"learning_rate": 0.2}),
        ({"name": "Piecewise", "decay_epochs": [1], "values": [0.1, 0.01]}, {"values": [0.2, 0.02]}),
        (
            {"name": "Piecewise", "learning_rate": 0.1, "decay_epochs": [1], "values": [0.1, 0.01]},
            {"values": [0.2, 0.02], "learning_rate": 0.2},
        ),
        (
            {"name": "OneCycleLR", "max_learning_rate": 0.1, "end_learning_rate": 0.001},
            {"max_learning_rate": 0.2, "end_learning_rate": 0.002},
        ),
        (
            {"name": "Cyclic", "base_learning_rate": 0.01, "max_learning_rate": 0.1, "step_size_up": 1},
            {"max_learning_rate": 0.2, "base_learning_rate": 0.02},
        ),
    ],
)
def test_a_learning_rate_scales_all_rates_of_a_schedule(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, schedule: dict[str, Any], expected: dict[str, Any]
) -> None:
    tree = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    tree["Optimizer"]["lr"] = schedule
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(tree))
    printed = print_config(capsys, "-c", file, "--lr", "0.2")["Optimizer"]["lr"]
    assert {key: printed[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("words", "warmup", "warns"),
    [
        (["--epochs", "1"], 0.5, False),
        (["-o", "Global.epochs=1"], 0.5, False),
        (["--epochs", "2"], 1, False),
        (["--epochs", "1", "--warmup-epochs", "1"], 1, True),
        (["--epochs", "1", "-o", "Optimizer.lr.warmup_epoch=3"], 3, True),
        (["--epochs", "1", "-c", "MINE"], 1, True),
    ],
)
def test_warmup_of_the_default_config_fits_a_short_run(
    words: list[str],
    warmup: float,
    warns: bool,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only a warm-up that the user chose is reported."""
    mine = tmp_path / "mine.yaml"
    mine.write_text((ROOT / "ppcls/configs/finetune.yaml").read_text())
    words = [str(mine) if word == "MINE" else word for word in words]
    assert train([str(pictures), *words, "--print-config"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["Optimizer"]["lr"]["warmup_epoch"] == warmup
    assert ("the warm-up is shortened" in printed.err) == warns
