"""Options of other tools work, or get a hint that itself runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ppcls.cli import dataset as dataset_cli
from ppcls.cli.arguments import hints
from ppcls.cli.arguments.hints import Hint, find_hint, python_arguments, to_python
from ppcls.cli.arguments.options import read_options
from ppcls.cli.benchmark.command import main as benchmark
from ppcls.cli.command import Command
from ppcls.cli.doctor import doctor
from ppcls.cli.eval import calibrate, evaluate
from ppcls.cli.export import export, verify
from ppcls.cli.index import main as index
from ppcls.cli.infer import infer
from ppcls.cli.models import main as models
from ppcls.cli.results.runs import runs
from ppcls.cli.serve import serve
from ppcls.cli.train import train, tune
from ppcls.recipe.reference import render

COMMANDS: dict[str, Command[Any]] = {
    each.name: each for each in (train, tune, evaluate, calibrate, infer, export, serve, verify, runs, doctor)
}
COMMANDS |= models.commands | index.commands
COMMANDS |= {
    name: dataset_cli.main.commands[name]
    for name in ("split", "resize", "stats", "check", "audit", "convert", "labels")
}
REQUIRED = {  # arguments without which a command reports what is missing
    "split": "pictures --out lists",
    "resize": "pictures --max-size 8 --out small",
    "stats": "pictures",
    "labels": "labels.csv",
    "check": "pictures",
    "audit": "pictures",
    "tune": "-c quickstart",
    "list": "",
    "measure": "",
    "fetch": "ResNet50",
    "runs": "runs",
    "doctor": "",
    "verify": "bundle",
    "build": "pets.index pictures --model runs/pets",
    "add": "pets.index pictures",
    "search": "pets.index photo.jpg",
    "remove": "pets.index photo.jpg",
    "convert": "webdataset pictures --out shards",
}
GUESSES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("guessed_options.yaml").read_text())
TABLE: dict[str, dict[str, str]] = yaml.safe_load(hints._FILE.read_text())
# A model whose architecture has all rates that options set.
MODELS = {"--dropout": "MobileNetV3_small_x0_35", "--drop-path": "SwinTransformer_tiny_patch4_window7_224"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "pictures"
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (8, 8)).save(folder / name / f"{number}.png")
    return folder


def check_runs(words: tuple[str, ...], pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that a command with the words of a hint is accepted, config included."""
    words = tuple(str(pictures) if word == "pictures" else word for word in words)
    folder = [] if "--data" in words or "-c" in words else [str(pictures)]
    model = next((["--model", MODELS[word]] for word in words if word in MODELS), [])
    assert train([*folder, *model, *words, "--print-config"]) == 0, capsys.readouterr().err
    capsys.readouterr()


@pytest.mark.parametrize("tool", GUESSES)
def test_each_guessed_option_works_or_has_a_hint(
    tool: str, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = []
    for guess in GUESSES[tool].split():
        written, _, value = guess.partition("=") if guess.startswith("-") else (guess, "", "")
        words = [written, *([value] if value else [])]
        try:
            train.parse([str(pictures), *words])
        except SystemExit:
            message = capsys.readouterr().err
            if not re.search(r"; (use|leave|--)|; [^;]{20,}", message) or "did you mean" in message:
                problems.append(f"{guess}: {message}")
    assert not problems, "\n".join(problems)


def test_options_that_hints_name_are_accepted(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    templates = {find_hint("train", names.split()[0]) for names in TABLE["train"]}
    templates |= {find_hint("train", name, [value]) for name, value in translated_values("train")}
    commands = {hint.words for hint in templates if hint is not None and hint.words}
    assert len(commands) > 60
    for words in sorted(commands):
        check_runs(words, pictures, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_options_of_other_tools(command: str) -> None:
    assert command in TABLE


@pytest.mark.parametrize(
    ("command", "guess", "hint"),
    [
        ("calibrate --model runs/pets", "--data held_out", "-o DataLoader.Eval.dataset.image_root=held_out"),
        ("calibrate --model runs/pets", "--ood others", "--unknown --foreign others"),
        ("calibrate", "--weights runs/pets", "--model runs/pets"),
        ("runs runs", "--output a.html", "--html a.html"),
        ("runs runs", "--sort date", "its page sorts them"),
        ("serve --model runs/pets", "--bind 0.0.0.0:80", "--host 0.0.0.0 --port 8000"),
        ("labels labels.csv", "--label-col breed", "--label-column breed"),
        ("doctor", "--gpu 0", "all devices and packages are checked"),
        ("doctor", "--fix", "nothing is installed"),
        (
            "train pictures",
            "--data-dir pictures",
            "leave it out, because the folder pictures is there already",
        ),
        ("train", "--data-dir pictures", "use --data pictures"),
    ],
)
def test_guessed_option_has_a_hint(
    command: str, guess: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *words = command.split()
    with pytest.raises(SystemExit):
        COMMANDS[name].parse([*words, *guess.split()])
    message = capsys.readouterr().err
    assert hint in message


def translated_values(command: str) -> list[tuple[str, str]]:
    """Returns the options whose values a table translates, with each of these values."""
    found = [
        (names.split()[0], match["table"])
        for names, template in TABLE[command].items()
        if (match := hints._TRANSLATED.search(template)) and "=" not in names
    ]
    return [
        (name, value) for name, table in found for value in (TABLE["values"] | {"one_minus": ["0.1"]})[table]
    ]


@pytest.mark.parametrize("command", [name for name in TABLE if name not in ("train", "values")])
def test_options_that_hints_of_other_commands_name_are_accepted(command: str) -> None:
    guesses = [(names.split()[0], list[str]()) for names in TABLE[command]]
    guesses += [(name, [value]) for name, value in translated_values(command)]
    for name, values in guesses:
        hint = find_hint(command, name, values)
        assert hint is not None
        if hint.words:
            others = REQUIRED.get(command, "" if "--model" in hint.words else "--model runs/pets")
            COMMANDS[command].parse([*others.split(), *hint.words])


def test_texts_of_hints_name_existing_options_commands_and_keys() -> None:
    reference = render()
    known = {
        name for each in COMMANDS.values() for option in read_options(each.options) for name in option.names
    }
    for command, rows in TABLE.items():
        if command == "values":
            continue
        for names in rows:
            hint = find_hint(command, names.split()[0])
            assert hint is not None
            for quoted in re.findall(r"`ppcls ([^`]+)`", hint.text):
                check_command(quoted)
            text = re.sub(r"`[^`]*`", "", hint.text)
            assert set(re.findall(r"--[a-z-]+", text)) <= known, text
            for key in re.findall(r"(?:Global|Optimizer|EMA|AMP|Metric|Loss|DataLoader)\.([a-z_]+)", text):
                assert f"`{key}`" in reference, text


def check_command(text: str) -> None:
    name, *words = shlex.split(text)
    groups = {"benchmark": benchmark, "dataset": dataset_cli.main, "index": index, "models": models}
    if name in groups:
        assert not words or words[0] in groups[name].commands
    elif name == "launch":
        check_command(shlex.join(words[1:]))
    elif name == "help":
        assert not words or words[0] in COMMANDS
    elif words and words != ["--help"]:
        COMMANDS[name].parse(words)


def test_no_option_of_ppcls_has_a_hint() -> None:
    for command, rows in TABLE.items():
        if command != "values":
            names = {name for line in rows for name in line.split()}
            own = {
                name.lstrip("-")
                for option in read_options(COMMANDS[command].options)
                for name in option.names
                if name[0] == "-"
            }
            assert not {name for name in names & own if not name.startswith("no-")}


def test_names_are_unique() -> None:
    for command, rows in TABLE.items():
        if command != "values":
            names = [name for line in rows for name in line.split()]
            assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--lr0", "0.1", "PICTURES"], "; use --lr 0.1\n"),
        (["PICTURES", "--input-size", "3", "64", "64"], "; use --image-size 64\n"),
        (["--exist-ok", "PICTURES"], "; use --increment-output: a run is never overwritten"),
        (["PICTURES", "--no-pretrained"], "; use -o Arch.pretrained=False\n"),
        (["PICTURES", "pretrained=False"], "; use -o Arch.pretrained=False\n"),
        (["PICTURES", "--fliplr", "0.5"], "; half of the images are flipped by default"),
        (["PICTURES", "--aa", "rand-m9-mstd0.5"], "; use --auto-augment RandAugment\n"),
        (["PICTURES", "--opt", "adamw"], "; use --optimizer AdamW --lr 0.0001\n"),
        (["PICTURES", "--opt", "adamw", "--lr", "0.1"], "; use --optimizer AdamW\n"),
        (["PICTURES", "--opt", "sgd"], "; use --optimizer Momentum: the SGD of other tools has momentum"),
        (["PICTURES", "--opt", "nadam"], "; use --optimizer AdamW --lr 0.0001: ppcls does not have this"),
        (["PICTURES", "--optimizer", "auto"], "; the config has an optimizer and its learning rate"),
        (["PICTURES", "--sched", "step"], "Optimizer.lr.name=Step Optimizer.lr.step_size=30: in epochs\n"),
        (["PICTURES", "--decay-milestones", "3", "6"], "'Optimizer.lr.milestones=[3,6]'\n"),
        (["PICTURES", "--scale", "0.08", "1"], "RandCropImage.scale=[0.08,1]'\n"),
        (["PICTURES", "--scale", "0.5"], "RandCropImage.scale=[0.35,1.0]'\n"),
        (["PICTURES", "--amp", "--amp-dtype", "bf16"], "; use -o AMP.dtype=bfloat16\n"),
        (["PICTURES", "--amp", "True"], "invalid choice: 'True' (choose from 'O1', 'O2'); use --amp\n"),
        (["PICTURES", "--amp", "False"], "; float32 without mixed precision is the default"),
        (["PICTURES", "--auto-augment", "rand-m9-mstd0.5"], "; use --auto-augment RandAugment\n"),
        (["PICTURES", "--batch", "-1"], "; use --find-batch-size\n"),
        (["PICTURES", "--time", "0.5"], "got '0.5'; use --time 1h: a duration with its unit\n"),
        (["PICTURES", "--device", "mps"], "got 'mps'; only GPUs of NVIDIA and CPUs are supported\n"),
        (["PICTURES", "--device", "0,1"], "; `ppcls launch --gpus=0,1 train FOLDER` starts one process"),
        (["PICTURES", "--use-gpu", "False"], "; use --device cpu\n"),
        (["PICTURES", "--profile"], "expected a value: --profile START:STOP\n"),
        (["PICTURES", "epochs", "3"], "; options start with two dashes: --epochs\n"),
        (["PICTURES", "--tag", "x"], "; names of runs are those of their folders"),
        (["PICTURES", "--xyzzy", "x"], "unrecognized arguments: --xyzzy x\n"),
        (
            ["PICTURES", "--data-dir", "PICTURES"],
            "leave it out, because the folder ",
        ),
        (["PICTURES", "PICTURES"], "; one folder is expected, with train and val as its subfolders\n"),
        (["PICTURES", "freeze=10"], "; use --freeze: it trains only the last layer"),
        (["PICTURES", "--wandb"], "; use -o 'Global.loggers=[wandb]': needs the package wandb\n"),
        (["PICTURES", "amp=True"], "; use --amp\n"),
        (["PICTURES", "amp=False"], "; float32 without mixed precision is the default"),
        (["PICTURES", "val=False"], "; use -o Global.eval_during_train=False\n"),
        (["PICTURES", "--freeze", "10"], "unrecognized arguments: 10; --freeze has no value"),
        (
            ["PICTURES", "device=0"],
            "; --device: expected auto, gpu or cpu, got '0'; use gpu; CUDA_VISIBLE_DEVICES=0 ",
        ),
        (
            ["PICTURES", "--device", "0"],
            "argument --device: expected auto, gpu or cpu, got '0'; use gpu; CUDA_VISIBLE_DEVICES=0 ",
        ),
        (["PICTURES", "--device", "cuda:1"], "CUDA_VISIBLE_DEVICES=1"),
        (
            ["PICTURES", "--bn-momentum", "0.1"],
            "; use -o Arch.batch_norm_momentum=0.9: in Paddle, the weight",
        ),
        (["PICTURES", "--bn-momentum=0.01"], "; use -o Arch.batch_norm_momentum=0.99: in Paddle, the weight"),
        (["PICTURES", "--grad-checkpointing"], "; use -o Global.recompute=True\n"),
        (["PICTURES", "-p", "100"], "; use -o Global.print_batch_step=100\n"),
        (["PICTURES", "-p", "batch_range=[10,20]"], "; use --profile 10:20\n"),
        (["PICTURES", "--no-patience"], "; leave out --patience\n"),
        (["PICTURES", "--val-split", "validation"], "; a data folder with subfolders train and val is used"),
        (["PICTURES", "--num-epochs", "0"], "; use --epochs 20\n"),
        (["PICTURES", "--val", "x"], "; the run is evaluated after each epoch by default"),
        (["PICTURES", "--lr0=1", "--fp16"], "\n  --lr0=1: use --lr 1\n  --fp16: use --amp O1\n"),
    ],
)
def test_hint_replaces_what_was_typed(
    words: list[str], hint: str, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train([str(pictures) if word == "PICTURES" else word for word in words])
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_choices_are_listed_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A hint for a value that other tools accept does not repeat the choices."""
    for option in read_options(COMMANDS[name].options):
        if not option.choices or option.kind is not str:
            continue
        # Only these values have a hint of their own. One other value stands for all others.
        start = f"{option.name.lstrip('-')}="
        keys = [key for names in TABLE.get(name, ()) for key in names.split()]
        values = {key.removeprefix(start) for key in keys if key.startswith(start)}
        for value in sorted({"torchscript", "tflite", "on", "off", "learning-rate", *values}):
            if not option.reject(value):
                continue
            words = [value] if option.argument.positional else [f"{option.name}={value}"]
            with pytest.raises(SystemExit):
                COMMANDS[name](words)
            message = capsys.readouterr().err.partition("(choose from")[2]
            if message:
                listed, _, hint = message.partition(")")
                assert not all(str(choice) in hint for choice in option.choices), (listed, hint)


@pytest.mark.parametrize(
    ("command", "words", "hint"),
    [
        ("eval", ["runs/pets"], "-c CONFIG; use --model runs/pets\n"),
        ("export", ["runs/pets"], "-c CONFIG; use --model runs/pets\n"),
        ("serve", ["runs/pets"], "-c CONFIG; use --model runs/pets\n"),
        ("infer", ["RUN", "photo.jpg"], "-c CONFIG; use --model RUN\n"),
        ("infer", ["photo.jpg"], "or -c CONFIG\n"),
        ("infer", ["--weights", "runs/pets", "photo.jpg"], "-c CONFIG; use --model runs/pets\n"),
        ("eval", ["--checkpoint", "runs/pets"], "-c CONFIG; use --model runs/pets\n"),
        ("eval", ["--model", "x", "--confusion"], "expected a value: --confusion FILE; use --confusion"),
        ("eval", ["--model", "x", "--verbose"], "; standard output has the results"),
        ("infer", ["--model", "x", "--classes", "0"], "; the table of --out has the scores"),
        ("export", ["--model", "x", "--torchscript"], "; formats are paddle, onnx, openvino and bundle"),
        ("export", ["--model", "x", "--format", "engine"], "; use --format onnx: TensorRT runs this file"),
        ("export", ["--model", "x", "--format", "timm"], "; use --safetensors weights.safetensors\n"),
        ("export", ["--model", "x", "onnx"], "unrecognized arguments: onnx; use --format onnx\n"),
        ("export", ["--model", "x", "--format", "onnx", "--half"], "; use --precision float16\n"),
        ("list", ["--pretrained"], "; architectures with published weights come first"),
        ("split", ["pictures", "--ratio", "0.8", "--out", "x"], "; use --val 0.2: the share or the number"),
        ("resize", ["pictures", "--size", "256", "--out", "x"], "--max-size; use --max-size 256\n"),
        ("export", ["--model", "x", "--precision", "fp16"], "; use --precision float16\n"),
        ("train", ["pictures", "--image-size", "224x224"], "; use --image-size 224: one number"),
        ("train", ["pictures", "--image-size", "224", "224"], "224; --image-size has one value\n"),
        ("train", ["pictures", "--lr", "0,01"], "got '0,01'; numbers have a decimal point"),
    ],
)
def test_hint_of_other_commands(
    command: str, words: list[str], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "best_model").mkdir(parents=True)
    with pytest.raises(SystemExit):
        COMMANDS[command]([str(run) if word == "RUN" else word for word in words])
    assert hint.replace("RUN", str(run)) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option", "wrong"),
    [
        ("export --model x", "--trt", "--trust"),
        ("export --model x", "--overwrite", "--override"),
        ("serve --model x", "--pid-file x", "--api-key-file"),
        ("serve --model x", "--log-config x", "use --config"),
        ("serve --model x", "--no-access-log", "did you mean '--access-log'"),
        ("serve --model x", "--reload", "--access-log"),
        ("serve --model x", "--files x", "--api-key-file"),
        ("infer --model x", "--output-type prob", "did you mean '--output'"),
        ("infer --model x", "--num-classes 3", "--out"),
    ],
)
def test_a_similar_name_with_another_meaning_is_not_suggested(
    command: str, option: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *words = command.split()
    with pytest.raises(SystemExit):
        COMMANDS[name].parse([*words, *option.split()])
    assert wrong not in capsys.readouterr().err.splitlines()[0].partition("; ")[2]


@pytest.mark.parametrize(
    ("typed", "right"), [("--epcohs", "--epochs"), ("--bacth-size", "--batch-size"), ("--modle", "--model")]
)
def test_typing_errors_are_recognized(typed: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.parse(["pictures", typed, "3"])
    assert f"did you mean '{right}'" in capsys.readouterr().err


def test_choices_are_accepted_in_any_case() -> None:
    assert train.parse(["pictures", "--auto-augment", "randaugment"]).auto_augment == "RandAugment"
    assert train.parse(["pictures", "--amp", "o2"]).amp == "O2"
    assert export.parse(["--model", "x", "--format", "ONNX"]).format == "onnx"


@pytest.mark.parametrize(
    ("word", "pretrained"), [("True", True), ("imagenet", True), ("false", False), ("w.pt", "auto")]
)
def test_pretrained_accepts_the_words_of_other_tools(
    word: str, pretrained: bool | str, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train([str(pictures), "--pretrained", word, "--print-config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["Arch"]["pretrained"] == pretrained
    assert config["Global"]["pretrained_model"] == (word if pretrained == "auto" else None)


def test_hint_in_python_uses_names_of_arguments() -> None:
    assert find_hint("train", "lr0", ["0.1"]) == Hint(("--lr", "0.1"))
    assert Hint(("--lr", "0.1")).in_python() == "use lr=0.1"
    assert python_arguments(["--amp", "O1", "-o", "AMP.dtype=bfloat16"]) == [
        "amp='O1'",
        "overrides={'AMP.dtype': 'bfloat16'}",
    ]
    assert python_arguments(["--freeze"]) == ["freeze=True"]
    assert to_python(
        "choose --output or --grad-accum, or run `ppcls train --resume`; a--b; ppcls eval --model x; --lr"
    ) == ("choose output or grad_accum, or run `ppcls train --resume`; a--b; ppcls eval --model x; lr")


@given(st.text())
def test_any_name_has_a_hint_or_none(name: str) -> None:
    find_hint("train", name, [name])
