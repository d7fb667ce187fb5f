"""Each command reads its config once, and the values of short options keep their type."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from file_reads import counted_opens

from ppcls.classifier import Classifier
from ppcls.cli.eval import evaluate
from ppcls.cli.infer import infer
from ppcls.cli.train import train
from ppcls.config.base.errors import ConfigError
from ppcls.config.base.overrides import Override
from ppcls.config.base.tree import node_at
from ppcls.config.base.yaml import read_yaml
from ppcls.recipe import load as loading
from ppcls.recipe.load import ConfigSource
from ppcls.report import jsonlines

# YAML reads these texts as a number, a truth value, null and a mapping.
TEXTS = ["1e5", "010", "on", "null", "{a: 1}", "2024-01-01", "it's"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (train, ["--epochs", "2", "--output", "mine", "--print-config"]),
        (train, ["--epochs", "2", "--find-lr", "-o", "Arch.name=none"]),  # invalid
        (evaluate, ["--batch-size", "2", "--print-config"]),
        (infer, ["--topk", "1", "--print-config"]),
    ],
)
def test_command_opens_its_config_once(command: Any, options: list[str], config: Path) -> None:
    with counted_opens() as opens:
        command(["-c", str(config), *options])
    assert opens[str(config)] == 1


def test_training_and_evaluation_read_each_config_once(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with counted_opens() as opens:
        assert train(["-c", str(config), "--output", "1e5", "--epochs", "2"]) == 0
    assert opens[str(config)] == 1
    assert len(jsonlines.read_records(tmp_path / "1e5" / "metrics.jsonl")) == 4
    reads: Counter[str] = Counter()

    def read(path: Path) -> Any:
        reads[os.path.realpath(path)] += 1
        return read_yaml(path)

    # The checkpoint's manifest is also checked, which opens the config without reading it as YAML.
    monkeypatch.setattr(loading, "read_yaml", read)
    assert evaluate(["--model", "1e5", "--trust"]) == 0
    files = [tmp_path / "1e5" / "config.yaml", tmp_path / "1e5" / "best_model" / "config.yaml"]
    assert reads == {os.path.realpath(file): 1 for file in files}


@pytest.fixture
def printed(config: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Returns a function that runs ``ppcls train --print-config`` and returns the config."""

    def run(*options: str) -> Any:
        assert train(["-c", str(config), *options, "--print-config"]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("text", TEXTS)
def test_short_option_keeps_its_type(text: str, printed: Callable[..., Any]) -> None:
    config = printed("--output", text, "--pretrained", text, "--data", text)
    assert config["Global"]["output_dir"] == text
    assert config["Global"]["pretrained_model"] == text
    assert config["DataLoader"]["Train"]["dataset"]["image_root"] == text


def test_error_names_the_short_option(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["-c", str(config), "--epochs", "3", "--batch-size", "1000001", "--print-config"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: --batch-size 1000001\n  DataLoader.Train.sampler.batch_size: expected")


@pytest.mark.parametrize("text", TEXTS)
def test_python_values_keep_their_type(text: str, tmp_path: Path) -> None:
    key = "Infer.PostProcess.class_id_map_file"
    with pytest.raises(ConfigError) as caught:
        Classifier("MobileNetV3_small_x0_35").train(
            tmp_path / "pictures", output=text, overrides={key: Path(text), "Arch.class_num": 0}
        )
    assert "Arch.class_num: expected" in str(caught.value)
    assert key not in str(caught.value)
    source = ConfigSource({}, "the config")
    source.apply([Override.of_value(key, text)])
    assert node_at(source.tree, key) == text


def test_model_in_a_folder_with_a_quote_is_evaluated(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(["-c", str(config), "--output", "it's"]) == 0
    assert Classifier("it's", device="cpu", trust=True).evaluate().images == 9
